#!/bin/sh
# JAX's ravel_pytree: whole numbers come back changed when they share a tree with float32.
#
# Guess: unravel(ravel(tree)) is the tree.  The vector has one dtype, float32 for a tree of float32 and
# integers, so a count of 2^24 + 1 comes back as 2^24 and a key of random numbers as another key, both
# with their old dtype.  A checkpoint, a broadcast or a vmapped update that flattens the whole state of a
# client continues with other minibatches.  In 64-bit mode a float64 leaf hides it below 2^53.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

print("jax", jax.__version__)
state = {
    "count": jnp.int32(2**24 + 1),
    "key": jax.random.PRNGKey(123456789),
    "weight": jnp.ones(2),
}
vector, unravel = ravel_pytree(state)
back = unravel(vector)
print("vector", vector.dtype, vector.shape)
for name in state:
    print(name, state[name].dtype, state[name].tolist(), "->", back[name].dtype, back[name].tolist())
assert back["count"] == 2**24
assert back["count"].dtype == jnp.int32
assert back["key"].tolist() == [0, 123456792]
draws = [jax.random.permutation(tree["key"], 6).tolist() for tree in (state, back)]
print("order of six examples:", draws)
assert draws[0] != draws[1]
alone, unravel = ravel_pytree({"key": state["key"]})
assert (unravel(alone)["key"] == state["key"]).all()
PYTHON
