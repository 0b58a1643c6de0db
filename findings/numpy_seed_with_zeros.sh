#!/bin/sh
# NumPy's generators: a trailing zero in a list of seeds changes nothing.
#
# Guess: default_rng([seed, client]) is a stream of its own for every client.  Client 0 has the stream
# of default_rng(seed), since a sequence of seeds is filled up with zeros.  A partition drawn from
# default_rng(seed) and the first client's minibatches from default_rng([seed, 0]) are then made of
# the same numbers; so are round 0 and the initial model.  A leading zero does count.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np

print("numpy", np.__version__)


def draws(seed):
    return np.random.default_rng(seed).integers(0, 1000, 3).tolist()


for seed in (5, [5], [5, 0], [5, 0, 0], [5, 1], [0, 5]):
    print(seed, draws(seed))
assert draws(5) == draws([5]) == draws([5, 0]) == draws([5, 0, 0])
assert draws([5, 1]) != draws(5) != draws([0, 5])
PYTHON
