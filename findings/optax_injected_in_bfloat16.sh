#!/bin/sh
# optax.inject_hyperparams: Adam's steps in bfloat16 are NaN from the first on.
#
# Guess: making hyperparameters part of the state changes no number.  All of them, not only the rate, are
# cast to the dtype of the parameters, and b2 = 0.999 is 1 in bfloat16: the bias correction 1 - b2^t is 0
# and the step 0 / 0.  optax.adam itself, whose numbers are those of Python, takes the same first step
# as in float32.  hyperparam_dtype=float32 avoids it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax.numpy as jnp
import optax

print("optax", optax.__version__)
found = {}
for dtype in (jnp.float32, jnp.bfloat16):
    gradient = jnp.array([1.0, 0.0], dtype)
    for name, optimizer in {
        "plain": optax.adam(0.001),
        "injected": optax.inject_hyperparams(optax.adam)(learning_rate=0.001),
        "injected as float32": optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32)(
            learning_rate=0.001
        ),
    }.items():
        step, state = optimizer.update(gradient, optimizer.init(gradient))
        found[dtype.__name__, name] = step.astype(jnp.float32)
        print(dtype.__name__, name, step.astype(jnp.float32).tolist())
        if name == "injected":
            print("   ", {n: float(state.hyperparams[n]) for n in ("learning_rate", "b2", "eps")})
assert jnp.isnan(found.pop(("bfloat16", "injected"))).all()
for step in found.values():
    assert jnp.allclose(step, jnp.array([-0.001, 0.0]), rtol=0.01)  # two digits of bfloat16
PYTHON
