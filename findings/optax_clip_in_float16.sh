#!/bin/sh
# optax.clip_by_global_norm in float16: large gradients become 0, small ones are not clipped.
#
# Guess: clipping keeps the direction and bounds the norm.  Squares are summed in float16: one entry
# above 256 makes the norm infinite and all gradients 0, and entries below 0.0001 have squares of 0, so
# a norm of 0.1 in 4,000,000 of them counts as 0 and passes a bound of 0.01.  bfloat16 has the range and
# clips.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax.numpy as jnp
import numpy as np
import optax

print("optax", optax.__version__)


def norms(value, size, bound, dtype):
    gradient = jnp.full(size, value, dtype)
    clip = optax.clip_by_global_norm(bound)
    clipped, _ = clip.update(gradient, clip.init(gradient))
    return [float(np.linalg.norm(np.asarray(x).astype(np.float64))) for x in (gradient, clipped)]


found = {
    (name, dtype.__name__): norms(*case, dtype)
    for name, case in {"large": (300.0, 4, 1.0), "small": (5e-5, 4_000_000, 0.01)}.items()
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16)
}
for case, (before, after) in found.items():
    print(*case, f"norm {before:.4f} clipped {after:.4f}")
for dtype in ("float32", "bfloat16"):
    assert abs(found["large", dtype][1] - 1.0) < 0.01
    assert abs(found["small", dtype][1] - 0.01) < 0.0002
assert found["large", "float16"][1] == 0
assert found["small", "float16"][1] == found["small", "float16"][0] > 0.09
PYTHON
