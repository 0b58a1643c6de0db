#!/bin/sh
# JAX's sums over segments in bfloat16 end at 256, where sums over an axis do not.
#
# Guess: segment_sum, bincount and x.at[i].add give what sum gives for each part.  XLA on a CPU sums
# an axis in float32 and rounds once; the scatter behind the other three adds one number after the
# other in the type of the array, where 256 + 1 is 256, in float16 2048 + 1 is 2048.  Of 5,000 ones
# bfloat16 gives 256 by segments and 4,992 by sum.  Numbers of examples or of right answers that are
# added up by client are 256 for all large clients, so that all of these get the same weight.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

print("jax", jax.__version__)
SIZES = (100, 1000, 5000)
clients = jnp.repeat(jnp.arange(3), jnp.array(SIZES), total_repeat_length=sum(SIZES))
found = {}
for kind in (jnp.float32, jnp.float16, jnp.bfloat16):
    ones = jnp.ones(sum(SIZES), kind)
    by_sum = [float(jnp.sum(ones[clients == k])) for k in range(3)]
    by_segments = jax.jit(lambda x: jax.ops.segment_sum(x, clients, 3))(ones).tolist()
    by_count = jnp.bincount(clients, weights=ones, length=3).tolist()
    by_add = jnp.zeros(3, kind).at[clients].add(ones).tolist()
    name = kind.__name__
    print(f"{name}: sum {by_sum}, segment_sum {by_segments}")
    assert by_segments == by_count == by_add
    found[name] = by_sum, by_segments
assert found["float32"][0] == found["float32"][1] == list(SIZES)
assert found["float16"][0] == list(SIZES)
assert found["float16"][1] == [100, 1000, 2048]
assert found["bfloat16"][0] == [100, 1000, 4992]
assert found["bfloat16"][1] == [100, 256, 256]
PYTHON
