#!/bin/sh
# jax's Pallas for Triton: a load takes no cache modifier at all, though two are accepted by name.
#
# `load(..., cache_modifier=...)` checks that the name is ".ca" or ".cg", as PTX has them, and then
# looks it up among the dialect's own names, which are spelt otherwise: both raise a KeyError while
# the kernel is lowered, and every other name a ValueError.  So a kernel cannot keep data that its
# programs share in the first-level cache.  Lowering for CUDA needs no GPU in this version.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

print("jax", jax.__version__)


def error(modifier):
    def kernel(x_ref, out_ref):
        out_ref[...] = triton.load(x_ref.at[jnp.arange(16)], cache_modifier=modifier)

    def call(x):
        out = jax.ShapeDtypeStruct((16,), jnp.float32)
        return pl.pallas_call(kernel, out, compiler_params=triton.CompilerParams())(x)

    try:
        jax.jit(call).trace(jnp.zeros(16)).lower(lowering_platforms=("cuda",))
    except (KeyError, ValueError) as raised:
        return f"{type(raised).__name__}: {raised}"
    return "lowered"


found = {modifier: error(modifier) for modifier in (None, ".ca", ".cg", ".cv", "ca")}
print(found)
assert found[None] == "lowered"
assert found[".ca"] == "KeyError: '.ca'"
assert found[".cg"] == "KeyError: '.cg'"
assert found[".cv"] == "ValueError: unsupported cache modifier: .cv"
assert found["ca"] == "ValueError: unsupported cache modifier: ca"
PYTHON
