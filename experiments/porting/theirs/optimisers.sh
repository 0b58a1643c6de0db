#!/bin/sh
# Column "theirs" of optimisers in docs/coming_from/table.toml, by running it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy optax==0.2.8 jax==0.10.2 jaxlib==0.10.2
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax
import torch
from compare import compare


def path(optimizer):
    x = torch.zeros(1, requires_grad=True)
    rule, result = optimizer([x]), []
    for _ in range(3):
        x.grad = -torch.ones(1)
        rule.step()
        result.append(x.item())
    return result


def optax_path(rule):
    x, result = jnp.zeros(()), []
    state = rule.init(x)
    for _ in range(3):
        change, state = rule.update(-jnp.ones(()), state, x)
        x = x + change
        result.append(float(x))
    return result


def variance():
    layer = torch.nn.BatchNorm1d(1, momentum=0.1)
    layer(torch.tensor([[0.0], [2.0]]))
    return layer.running_var.item()


schedule = jax.jit(optax.exponential_decay(1.0, 41, 0.5, staircase=True))
steps = jax.jit(optax.piecewise_constant_schedule(1.0, {41: 0.5, 82: 0.5}))
measured = {
    "sgd": path(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))
    + path(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True)),
    "dampening": path(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.9)),
    "nadam": path(lambda p: torch.optim.NAdam(p, 0.1)),
    "muon": optax_path(optax.contrib.muon(0.1)),
    "optax-adaptive": optax_path(optax.adam(0.1, 0.9, 0.99, 1e-3))
    + optax_path(optax.yogi(0.1, 0.9, 0.99, 1e-3))
    + optax_path(optax.adagrad(0.1, 0.0, 1e-3)),
    "torch-adaptive": path(lambda p: torch.optim.Adam(p, 0.1, (0.9, 0.99), 1e-3))
    + path(lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-3)),
    "batches": [len(x) for _ in range(2) for x in torch.utils.data.DataLoader(range(10), 4)],
    "staircase": [float(schedule(count)) for count in (40, 41, 42)],
    "piecewise": [float(steps(count)) for count in (40, 41, 42, 81, 82)],
    "variance": variance(),
}
compare("optimisers", "torch optax jax", measured)
PYTHON
