#!/bin/sh
# diffprivlib: noise is cut at the bounds, so counts and means of many clients do not average out.
#
# Guess: noise has the mean 0, so the sum of the private histograms of many clients is near the histogram of
# all.  Counts below 0 are cut to 0 (and means to the bounds of the data), so each empty cell adds 0.43 examples
# on average with epsilon 1.  Of 2,000 clients with one example and ten cells the sum is 9,900 examples, and a
# label that nobody has gets 800.  The mean of 0.9 within the bounds 0 and 1 is 0.65 for clients with one
# example and 0.88 with ten.  The same noise without the cut gives the right sums up to their deviation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check diffprivlib==0.6.6 scikit-learn==1.6.1 numpy==2.2.6 scipy==1.15.3
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
from diffprivlib import mechanisms, tools

print("diffprivlib", importlib.metadata.version("diffprivlib"), "numpy", np.__version__)
CLIENTS, LABELS, EPSILON = 2000, 10, 1.0
state = np.random.RandomState(0)
labels = state.randint(0, LABELS - 1, CLIENTS)  # nobody has the last one
free = mechanisms.Geometric(epsilon=EPSILON, sensitivity=1, random_state=state)
total, uncut = np.zeros(LABELS), np.zeros(LABELS)
for label in labels:
    counts, _ = tools.histogram(
        np.array([label]), epsilon=EPSILON, bins=LABELS, range=(-0.5, LABELS - 0.5), random_state=state
    )
    total += counts
    uncut += [free.randomise(int(label == other)) for other in range(LABELS)]
true = np.bincount(labels, minlength=LABELS)
for name, counts in (("true", true), ("by diffprivlib", total), ("noise not cut", uncut)):
    print(f"{name}: {counts.sum():.0f} examples, by label {counts.astype(int).tolist()}")

means = {}
for size in (1, 10, 100):
    means[size] = np.mean(
        [
            tools.mean(np.full(size, 0.9), epsilon=EPSILON, bounds=(0, 1), random_state=state)
            for _ in range(CLIENTS)
        ]
    )
    print(f"mean over clients of the mean of {size} numbers 0.9: {means[size]:.3f}")
assert 4.5 * CLIENTS < total.sum() < 5.5 * CLIENTS and total[-1] > 700
assert abs(uncut.sum() / CLIENTS - 1) < 0.5 and abs(uncut[-1]) < 300
assert means[1] < 0.7 and means[10] < 0.89 and abs(means[100] - 0.9) < 0.005
PYTHON
