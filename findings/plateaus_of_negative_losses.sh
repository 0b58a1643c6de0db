#!/bin/sh
# PyTorch's and optax's reduce-on-plateau: a negative loss that stands still or rises is progress.
#
# Guess: the rate falls where the loss has not become smaller for some evaluations.  A loss is
# better if it is below the best one times 1 - threshold, which for a negative best is above it, so
# the same loss counts as a new best one, and a worse one too, which then is the best.  The rate of
# a model trained on log-likelihoods, an ELBO or rewards never falls, while the same losses plus a
# constant make it fall.  An absolute threshold alone (threshold_mode="abs" in PyTorch, rtol=0 in
# optax) is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 numpy==2.4.6 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax
import torch

print("torch", torch.__version__, "optax", optax.__version__)


def in_torch(losses, mode):
    """Rate and best loss after the losses; the rate begins at 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=4, threshold=1e-3, threshold_mode=mode
    )
    for loss in losses:
        optimizer.step()
        schedule.step(loss)
    return optimizer.param_groups[0]["lr"], float(schedule.best)


def in_optax(losses, mode):
    relative, absolute = (1e-3, 0.0) if mode == "rel" else (0.0, 1e-3)
    rule = optax.contrib.reduce_on_plateau(factor=0.5, patience=4, rtol=relative, atol=absolute)

    def step(state, loss):
        return rule.update(jnp.ones(1), state, value=loss)[1], None

    state, _ = jax.lax.scan(step, rule.init(jnp.ones(1)), jnp.asarray(losses))
    return float(state.scale), float(state.best_value)


still = [-1.0] * 40
rising = [-1.0 + 5e-4 * k for k in range(40)]
for name, losses in {"still at -1": still, "rising from -1": rising}.items():
    for mode in ("rel", "abs"):
        for library, run in {"torch": in_torch, "optax": in_optax}.items():
            below, best = run(losses, mode)
            above, _ = run([2 + loss for loss in losses], mode)
            print(f"{name}, {mode}, {library}: rate {below}, best {best:.4f}; with losses + 2 rate {above}")
            assert above < 0.05
            assert (below == 1) == (mode == "rel")
            if mode == "rel" and losses is rising:
                assert best > -0.99
PYTHON
