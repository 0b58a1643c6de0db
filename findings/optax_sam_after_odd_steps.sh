#!/bin/sh
# optax's SAM: a client with an odd number of minibatches returns a model that was moved up its loss.
#
# Guess: every update is one step of sharpness-aware minimisation.  By default an update is half a step: the
# first one goes up the loss by rho, the second goes back and down.  After an odd number of minibatches the
# parameters are the disturbed ones, farther from the optimum than before the last update.  If the state is
# kept, the next round's first update returns to the parameters of the round before and drops the model that
# the server sent.  With opaque_mode=True each update is a whole step as in the paper, and nothing is left over.
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
RATE, RHO, OPTIMUM, SENT = 0.1, 0.3, np.array([3.0, 4.0]), np.array([-6.0, 8.0])
ascent = optax.chain(optax.contrib.normalize(), optax.sgd(RHO))


@jax.jit
def gradient(x, _=0):
    return x - OPTIMUM  # of |x - optimum|^2 / 2, the same for each minibatch


def by_paper(x, steps):
    for _ in range(steps):
        up = x + RHO * (x - OPTIMUM) / np.linalg.norm(x - OPTIMUM)
        x = x - RATE * (up - OPTIMUM)
    return x


def visit(rule, x, state, minibatches, opaque):
    extra = {"grad_fn": gradient} if opaque else {}
    x = jnp.asarray(x, jnp.float32)
    for _ in range(minibatches):
        updates, state = rule.update(gradient(x), state, x, **extra)
        x = optax.apply_updates(x, updates)
    return np.asarray(x), state


def far(x):
    return float(np.linalg.norm(x - OPTIMUM))


for opaque in (False, True):
    rule = optax.contrib.sam(optax.sgd(RATE), ascent, opaque_mode=opaque)
    print("opaque_mode", opaque)
    for minibatches in (1, 2, 3, 4):
        x, state = visit(rule, np.zeros(2), rule.init(jnp.zeros(2)), minibatches, opaque)
        whole = minibatches if opaque else minibatches // 2
        disturbed = not opaque and minibatches % 2 == 1
        # The server's model is SENT; the client goes on with its state.
        after, _ = visit(rule, SENT, state, 1, opaque)
        expected = far(by_paper(np.zeros(2), whole))
        print(f"  {minibatches} minibatches: distance to the optimum {far(x):.3f}, after {whole} steps of "
              f"the paper {expected:.3f}; next round: sent {SENT}, after an update {after.round(2)}")
        assert abs(far(x) - expected - RHO * disturbed) < 1e-4
        assert (np.linalg.norm(after - SENT) > 5) == disturbed
PYTHON
