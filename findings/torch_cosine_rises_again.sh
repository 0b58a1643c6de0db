#!/bin/sh
# PyTorch's cosine annealing rises again after its end; optax's stays at 0.
#
# Guess: after T_max steps the rate stays at its minimum, as in optax.  It goes up along the same
# cosine and is the initial one after 2 T_max.  A client whose visits have more steps than planned, or
# a run that is continued, trains at growing rates; the port to optax stops learning there.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import optax
import torch

print("torch", torch.__version__, "optax", optax.__version__)
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
rates = [1.0]
for _ in range(20):
    optimizer.step()
    schedule.step()
    rates.append(schedule.get_last_lr()[0])
decay = optax.cosine_decay_schedule(1.0, 10)
for count in (0, 5, 10, 15, 20):
    print(count, f"torch {rates[count]:.3f} optax {float(decay(count)):.3f}")
assert abs(rates[20] - 1) < 1e-6
assert rates[10] < 1e-6
assert float(decay(15)) == float(decay(20)) == 0
PYTHON
