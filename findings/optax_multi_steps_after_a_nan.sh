#!/bin/sh
# optax's MultiSteps around apply_if_finite: after one NaN the model stands still, then is NaN.
#
# Guess: apply_if_finite leaves out the one step whose mean gradient is NaN, and training goes on.
# After a step the sum of gradients is multiplied by 0, not set to 0, so that the NaN stays in it,
# every later step is left out, and when max_consecutive_errors of them were, the model becomes NaN.
# apply_if_finite around MultiSteps, or skip_not_finite in it, loses the one minibatch only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax

print("optax", optax.__version__)
gradients = np.ones(40, np.float32)
gradients[2] = np.nan


def path(rule):
    """A parameter that begins at 40, after each minibatch."""

    def step(carry, gradient):
        x, state = carry
        updates, state = rule.update(gradient, state, x)
        x = optax.apply_updates(x, updates)
        return (x, state), x

    x = jnp.float32(40)
    return np.asarray(jax.lax.scan(step, (x, rule.init(x)), gradients)[1])


sgd = optax.sgd(1.0)
skipping = optax.MultiSteps(sgd, 2, should_skip_update_fn=optax.skip_not_finite)
for name, rule in {
    "apply_if_finite inside": optax.MultiSteps(optax.apply_if_finite(sgd, 10), 2),
    "apply_if_finite around": optax.apply_if_finite(
        optax.MultiSteps(sgd, 2).gradient_transformation(), 10
    ),
    "skip_not_finite": skipping,
}.items():
    x = path(rule)
    print(f"{name}: after 2, 4, 20 and 40 minibatches {x[[1, 3, 19, 39]].tolist()}")
    assert x[1] == 39
    if name == "apply_if_finite inside":
        assert (x[1:20] == 39).all()
        assert np.isnan(x[39])
    else:
        assert x[39] == 40 - 39 // 2
PYTHON
