#!/bin/sh
# optax's schedule-free rule: one parameter in bfloat16 shortens the average of all parameters.
#
# Guess: parameters in float32 are trained and averaged in float32.  The sum of the weights of past
# iterates has the lowest type of all parameters.  In bfloat16 a sum of ones stays at 256, so that
# the mean of all iterates becomes one with a memory of 256 steps.  A float32 scalar that is 0 for
# 1,000 steps and 1 for 1,000 has an average of 0.5; beside another parameter in bfloat16, which
# never moves, it has 0.98.  Curves of mixed precision differ where no number was rounded.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

print("optax", optax.__version__)
STEPS = 2000


def schedule_free(kind):
    """The average of an iterate that jumps from 0 to 1 half-way."""
    params = {"x": jnp.float32(0.0), "other": jnp.zeros((), kind)}
    rule = optax.contrib.schedule_free_sgd(1.0)
    state = rule.init(params)

    def step(carry, gradient):
        params, state = carry
        updates, state = rule.update({"x": gradient, "other": jnp.zeros((), kind)}, state, params)
        return (optax.apply_updates(params, updates), state), None

    gradients = jnp.zeros(STEPS).at[STEPS // 2].set(-1.0)
    (params, state), _ = jax.lax.scan(step, (params, state), gradients)
    average = optax.contrib.schedule_free_eval_params(state, params)
    return float(average["x"]), float(state.weight_sum)


found = {kind.__name__: schedule_free(kind) for kind in (jnp.float32, jnp.bfloat16)}
for name, (average, total) in found.items():
    print(f"other leaf in {name}: average {average:.3f}, sum of weights {total:.0f} of {STEPS}")
average, total = found["float32"]
assert abs(average - 0.5) < 0.01 and total == STEPS
average, total = found["bfloat16"]
assert average > 0.95 and total == 256
PYTHON
