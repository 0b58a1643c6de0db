#!/bin/sh
# optax's Prodigy and D-Adapt: a gradient of 0 in the first step makes everything NaN for ever.
#
# Guess: a step without a gradient changes nothing, as with Adam.  The estimate of the distance is a
# quotient of two sums over past gradients, 0 / 0 at first, and the maximum of NaN and the old
# estimate is NaN.  The authors' packages take no step while the sum is 0.  As server rules the two
# fail if the first round has no update, as local rules for clients whose first minibatch is padding
# only.  A gradient of 0 later does no harm.
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


def after(rule, gradients):
    """Two parameters that begin at 1, after one step for each gradient."""

    def step(carry, gradient):
        x, state = carry
        updates, state = rule.update(jnp.full(2, gradient), state, x)
        return (optax.apply_updates(x, updates), state), None

    x = jnp.ones(2)
    (x, _), _ = jax.lax.scan(step, (x, rule.init(x)), jnp.array(gradients))
    return np.asarray(x)


for name, rule in {
    "Adam": optax.adam(1e-3),
    "DoG": optax.contrib.dog(),
    "Prodigy": optax.contrib.prodigy(),
    "D-Adapt Adam": optax.contrib.dadapt_adamw(),
}.items():
    first, second = after(rule, [0.0] + [1.0] * 20), after(rule, [1.0, 0.0] + [1.0] * 19)
    print(f"{name} after 21 steps: gradient 0 first {first}, gradient 0 second {second}")
    assert np.isfinite(second).all()
    assert np.isnan(first).all() == (name in ("Prodigy", "D-Adapt Adam"))
PYTHON
