#!/bin/sh
# JAX on a CPU: a tensor divided by one number above 2^126 (float32) or 2^1022 (float64) is 0.
#
# Guess: x / max |x| has entries up to 1 for every finite x that is not 0.  XLA multiplies by the
# reciprocal if a tensor is divided by one number, and the reciprocal of such a number is subnormal,
# which a CPU program of XLA takes for 0.  A quotient of two single numbers, and one of two tensors,
# is right, and so is NumPy's.  Scaling the entries of a diverging model by the largest one, so that
# their squares stay within range, gives zeros, and the norm 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu JAX_ENABLE_X64=1 "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__)
for dtype, exponent in ((np.float32, 126), (np.float64, 1022)):
    for factor in (1.0, 1.5):
        divisor = dtype(factor * 2.0**exponent)
        x = np.array([0.5, 1.0], dtype) * divisor
        found = {
            "by one number": jnp.asarray(x) / jnp.asarray(divisor),
            "by a tensor": jnp.asarray(x) / jnp.full(2, divisor),
            "one by one": jnp.stack([a / jnp.asarray(divisor) for a in jnp.asarray(x)]),
            "numpy": x / divisor,
        }
        found = {name: np.asarray(value).tolist() for name, value in found.items()}
        print(dtype.__name__, f"{factor} x 2^{exponent}", found)
        right = [0.5, 1.0]
        assert found.pop("by one number") == ([0.0, 0.0] if factor > 1 else right)
        assert all(value == right for value in found.values())
x = jnp.array([3e38, 1e38], jnp.float32)
print("x / max |x|:", (x / jnp.abs(x).max()).tolist())
assert (x / jnp.abs(x).max()).tolist() == [0.0, 0.0]
PYTHON
