#!/bin/sh
# FedJAX's shuffled_clients: one of the first clients comes last in every pass; a buffer of two shuffles nothing.
#
# Guess: an element of the buffer is drawn at random and replaced by the next one, so the last client of a pass
# is nearly always one that was read late.  The next element takes the place of the one that leaves, and then
# changes places with a random one of the buffer but the last, which stays until all has been read.  With a
# buffer of ten the last of 1,000 clients is one of the first ten in every pass; with a buffer of two clients
# come in the order of the file, but one of the first two comes last.  Examples are shuffled in the same way.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check fedjax==0.0.17 jax==0.4.24 jaxlib==0.4.24 numpy==1.26.4 scipy==1.11.4 dm-haiku==0.0.11 optax==0.1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import itertools

import fedjax
import numpy as np

print("fedjax", importlib.metadata.version("fedjax"))
CLIENTS, PASSES = 1000, 300
data = fedjax.InMemoryFederatedData({i: {"x": np.zeros(1)} for i in range(CLIENTS)})
names = {name: i for i, (name, _) in enumerate(data.clients())}


def passes(buffer_size, seed):
    """Places, in the order of reading, of the clients of many passes."""
    shuffled = data.shuffled_clients(buffer_size, seed)
    order = [names[name] for name, _ in itertools.islice(shuffled, CLIENTS * PASSES)]
    return np.reshape(order, (PASSES, CLIENTS))


found = {}
for size in (2, 10, 100):
    order = passes(size, 0)
    found[size] = (order[:, -1] < size).mean().item(), (np.diff(order) == 1).mean().item()
    print(
        f"buffer {size}: last client of a pass among the first {size} read in {found[size][0]:.0%} of"
        f" {PASSES} passes; {found[size][1]:.0%} of clients followed by the one read after them"
    )
print("a pass with buffer 2:", passes(2, 0)[0][:6].tolist(), "...", passes(2, 0)[0][-3:].tolist())
assert all(last == 1 for last, _ in found.values())
assert found[2][1] > 0.99 and found[100][1] < 0.05
PYTHON
