#!/bin/sh
# optax's COCOB: the learning rate does nothing, and a model that arrives from a server is dropped.
#
# Guess: learning_rate scales the steps, "to e.g. inject some scheduler", so that half of it gives half
# the step.  It scales the gradients before the rule, whose bets are the same for gradients of every size:
# with rates of 0.001 and 1000 all iterates agree to four digits, and a search for the best rate finds
# none.  The new parameters are the initial ones plus a bet, whatever the current ones are: a client that
# keeps its state and starts a round from a model 100 away is within 8 of its own after one step.
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
OPTIMUM = jnp.array([10.0, -3.0])


def iterates(rule, steps=300, move=None):
    """From 0 on |x - optimum|; `move` (step, offset) is a model that arrives before that step."""
    gradient = jax.grad(lambda x: jnp.abs(x - OPTIMUM).sum())
    update = jax.jit(rule.update)
    x, found = jnp.zeros(2), []
    state = rule.init(x)
    for step in range(steps):
        if move is not None and step == move[0]:
            x = x + move[1]
        updates, state = update(gradient(x), state, x)
        x = optax.apply_updates(x, updates)
        found.append(np.asarray(x))
    return np.stack(found)


for name, rule in {"SGD": optax.sgd, "Adam": optax.adam, "COCOB": optax.contrib.cocob}.items():
    small, large = iterates(rule(0.001)), iterates(rule(1000.0))
    difference = np.abs(small - large).max() / np.abs(large).max()
    print(f"{name}: x after 300 steps with rate 0.001 {small[-1]}, with 1000 {large[-1]}, "
          f"relative difference of all iterates {difference:.1e}")
    assert (difference < 1e-4) == (name == "COCOB")

for name, rule in {"SGD": optax.sgd(1e-3), "COCOB": optax.contrib.cocob()}.items():
    alone, moved = iterates(rule, 100), iterates(rule, 100, (50, jnp.full(2, 100.0)))
    left = np.abs(moved[50] - alone[50]).max()
    print(f"{name}: a model 100 away at step 51 is {left:.2f} from the client's own after the step")
    assert (left < 20) == (name == "COCOB")
PYTHON
