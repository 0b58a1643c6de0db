#!/bin/sh
# JAX's normal numbers end at 5.22 and -5.42, and in bfloat16 at 2.52 and -2.89.
#
# Guess: normal numbers of float32 go as far as their probability does.  They are values of the inverse
# error function at 2^23 uniform numbers (2^10 for float16, 2^7 for bfloat16): the largest is 5.22 and
# comes up once in ten million draws, while NumPy's float32 numbers go on.  In bfloat16 there are 128
# values, whose mean is -0.012 and not 0, and 0.8 % of the mass lies beyond the ends.  Gaussian noise for
# privacy that is drawn in the dtype of a half-precision model pulls every parameter down, and neighbouring
# data differ in which sums are possible at all, with far more than the usual delta of 1e-5.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

print("jax", jax.__version__, "numpy", np.__version__)
number, calls = 2**24, 8


def ends(dtype):
    keys = jax.random.split(jax.random.key(0), calls)
    drawn = [jax.random.normal(key, (number,), dtype) for key in keys]
    return min(float(x.min()) for x in drawn), max(float(x.max()) for x in drawn)


beyond = {}
for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
    bottom, top = ends(dtype)
    beyond[dtype] = norm.cdf(bottom) + norm.sf(top)
    print(f"{dtype.__name__}: from {bottom:.4f} to {top:.4f}, probability beyond {beyond[dtype]:.2g}")
generator = np.random.default_rng(0)
largest = max(generator.standard_normal(number, np.float32).max() for _ in range(calls))
half = np.asarray(jax.random.normal(jax.random.key(0), (number,), jnp.bfloat16).astype(jnp.float32))
values, mean = len(np.unique(half)), half.mean(dtype=float)
print(f"largest of as many float32 numbers of NumPy: {largest:.4f}")
print(f"bfloat16: {values} values, mean {mean:.4f}, deviation of such a mean {number ** -0.5:.4f}")
assert 5e-8 < beyond[jnp.float32] < 2e-7 and largest > 5.3
assert beyond[jnp.float16] > 5e-4 and beyond[jnp.bfloat16] > 5e-3
assert values == 128 and mean < -0.01
PYTHON
