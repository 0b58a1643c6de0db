#!/bin/sh
# optax's AMSGrad keeps the largest second moment after the bias correction, PyTorch's before it.
#
# Guess: the two are one algorithm, as their Adams are.  In optax the first gradient counts as if it had
# been there for ever: after one gradient of 1 all later steps are of gradients divided by 1, while in
# PyTorch, as in the paper, the maximum is (1 - b2) 1^2.  With 999 gradients of 0.01 after it PyTorch's
# steps are 25 times as long.  Server optimizers, whose first update is the largest, are ported wrongly.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

print("optax", optax.__version__, "torch", torch.__version__)
gradients = [1.0] + [0.01] * 999


def by_torch(amsgrad):
    x = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([x], 1e-3, amsgrad=amsgrad)
    path = [0.0]
    for gradient in gradients:
        x.grad = torch.tensor([gradient])
        optimizer.step()
        path.append(x.item())
    return np.diff(path)


def by_optax(rule):
    optimizer = rule(1e-3)
    _, steps = jax.lax.scan(
        lambda state, gradient: optimizer.update(gradient, state)[::-1],
        optimizer.init(jnp.float32(0.0)),
        jnp.array(gradients),
    )
    return np.asarray(steps)


adam = by_torch(False), by_optax(optax.adam)
amsgrad = by_torch(True), by_optax(optax.amsgrad)
for name, pair in {"Adam": adam, "AMSGrad": amsgrad}.items():
    print(name, "steps 1 and 1000: torch", pair[0][[0, -1]], "optax", pair[1][[0, -1]])
assert np.allclose(*adam, atol=2e-7)  # positions of size 0.6 in float32
assert abs(amsgrad[0][0] - amsgrad[1][0]) < 1e-7
assert 24 < amsgrad[0][-1] / amsgrad[1][-1] < 26
PYTHON
