#!/bin/sh
# JAX's keys: split(key, n)[i] and fold_in(key, i) are one key.
#
# Guess: both derive keys that differ from all others.  With today's default (partitionable Threefry) they
# are the same function: the keys of split(key, 3) are fold_in(key, 0), (key, 1) and (key, 2).  A program
# that splits a root key for the initial model and the loop, and folds the number of the round or of the
# client into the same root, draws the initial model and client 0's numbers from one stream.  With the
# older setting the keys differ, so the fault came with an update of JAX.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np

print("jax", jax.__version__)
root = jax.random.key(0)


def equal(number):
    split = jax.random.key_data(jax.random.split(root, number))
    folded = [jax.random.key_data(jax.random.fold_in(root, index)) for index in range(number)]
    return (np.asarray(split) == np.stack(folded)).all(1).tolist()


print("split(key, 5)[i] is fold_in(key, i):", equal(5))
assert all(equal(5)) and all(equal(100))
init_key, loop_key = jax.random.split(root)
model = jax.random.normal(init_key, (3,)).tolist()
noise = jax.random.normal(jax.random.fold_in(root, 0), (3,)).tolist()
print("initial model", model, "noise of client 0", noise)
assert model == noise
jax.config.update("jax_threefry_partitionable", False)
print("not partitionable:", equal(5))
assert not any(equal(5))
PYTHON
