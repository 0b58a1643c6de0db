#!/bin/sh
# grain's shuffle: the smaller a data set, the slower each element: one of ten takes a thousand times as long.
#
# Guess: an element of a small data set costs at most as much as one of a large one.  A place is permuted among
# 65,536 places or more, and again as long as the result lies beyond the end: once for 65,536 elements, some
# 6,500 times for ten.  So an epoch costs at least 65,536 permutations, whatever the number of elements, about 80
# ms here for ten.  A hundred clients of ten examples take as long as one data set of millions; without
# shuffle, or with the order drawn by NumPy and taken by index, they take no time.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check grain==0.2.18
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import time

import grain

print("grain", importlib.metadata.version("grain"))


def cost(size, shuffled):
    """Seconds for one element, the shortest of three measurements."""
    data = grain.MapDataset.range(size)
    data = data.shuffle(seed=0) if shuffled else data
    count = min(size, 200)
    durations = []
    for repeat in range(3):
        start = time.perf_counter()
        for index in range(count):
            data[(index * (size // count) + repeat) % size]
        durations.append((time.perf_counter() - start) / count)
    return min(durations)


found = {}
for size in (10, 100, 1000, 65536, 1_000_000):
    found[size] = cost(size, shuffled=True)
    plain = cost(size, shuffled=False)
    print(f"{size} elements: {found[size] * 1e6:.0f} microseconds for each, {plain * 1e6:.0f} without shuffle")
assert found[10] > 50 * found[65536] and found[100] > 10 * found[65536]
assert found[10] > 4 * found[100] > 16 * found[1000]
PYTHON
