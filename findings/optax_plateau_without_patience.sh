#!/bin/sh
# optax's reduce_on_plateau: with patience 0 the rate falls where the loss does, not on a plateau.
#
# Guess: patience 0 reduces the rate as soon as a loss is no better than the best, as in PyTorch.
# The count of bad values is compared with the patience by equality, also after an improvement, when
# it is 0.  So each improvement multiplies the rate by the factor, and after the first bad value the
# count is past 0 and nothing happens: eight falling losses with factor 0.5 leave a rate of 1/256,
# eight equal ones 1/2, where PyTorch has 1 and 1/128.  For patience p above 0 optax reduces at the
# p-th bad value in a row, PyTorch at the next one.
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


@jax.jit
def scales(patience, losses):
    rule = optax.contrib.reduce_on_plateau(factor=0.5, patience=patience)

    def step(state, loss):
        _, state = rule.update(jnp.float32(1.0), state, value=loss)
        return state, state.scale

    return jax.lax.scan(step, rule.init(jnp.float32(0.0)), losses)[1]


def documented(patience, losses):
    """Reduced after more than `patience` losses in a row that are no better than the best."""
    best, bad, rate, rates = float("inf"), 0, 1.0, []
    for loss in losses:
        if loss < best * (1 - 1e-4):
            best, bad = loss, 0
        else:
            bad += 1
        if bad > patience:
            rate, bad = rate / 2, 0
        rates.append(rate)
    return rates


found = {}
for patience in (0, 1, 2):
    for name, losses in {"falling": [1 / (k + 1) for k in range(8)], "equal": [1.0] * 8}.items():
        rates = scales(patience, jnp.array(losses)).tolist()
        found[patience, name] = rates, documented(patience, losses)
        print(f"patience {patience}, {name} losses")
        print("    optax     ", *found[patience, name][0])
        print("    by PyTorch", *found[patience, name][1])
assert found[0, "falling"] == ([0.5 ** (k + 1) for k in range(8)], [1.0] * 8)
assert found[0, "equal"] == ([0.5] * 8, [0.5**k for k in range(8)])
for patience in (1, 2):
    assert found[patience, "falling"] == ([1.0] * 8, [1.0] * 8)
    assert found[patience, "equal"][0].index(0.5) == patience
    assert found[patience, "equal"][1].index(0.5) == patience + 1
PYTHON
