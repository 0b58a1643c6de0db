#!/bin/sh
# FedScale's FedProx: the proximal step pushes a client away from the server's model.
#
# Guess: after each step the model is pulled back to the one that was received, x - lr mu (x - s).  The sign is
# the other one, x + lr mu (x - s), so that the distance to the server's model grows by the factor 1 + lr mu in
# each step.  On a loss with optimum 1 and curvature 1 a client that starts from 0 should end at 0.67 with mu
# 0.5 and at 0.33 with mu 2; it ends at 1.9 and, after 200 steps with rate 0.05, at 8,000.  A mu above the
# curvature diverges.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedscale==1.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
from types import SimpleNamespace

import torch
from fedscale.cloud.execution.optimizers import ClientOptimizer

print("fedscale", importlib.metadata.version("fedscale"), "torch", torch.__version__)
RATE = 0.05


def visit(mu, steps, curvature):
    """A client's model after steps from 0 on curvature / 2 (x - 1)^2."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    received = [p.data.clone() for p in model.parameters()]
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    settings = SimpleNamespace(gradient_policy="fed-prox", learning_rate=RATE, proxy_mu=mu)
    for _ in range(steps):
        sgd.zero_grad()
        (curvature / 2 * (model.weight - 1).square().sum()).backward()
        sgd.step()
        ClientOptimizer().update_client_weight(settings, model, received)
    return model.weight.item()


def paper(mu, steps, curvature):
    x = 0.0
    for _ in range(steps):
        x -= RATE * (curvature * (x - 1) + mu * x)
    return x


found = {}
for mu in (0.0, 0.1, 0.5, 1.0, 2.0):
    found[mu] = visit(mu, 200, 1.0), paper(mu, 200, 1.0)
    print(f"mu {mu}: after 200 steps from 0 to the optimum 1 {found[mu][0]:.4g}, FedProx {found[mu][1]:.2f}")
values = [value for value, _ in found.values()]
assert values == sorted(values) and abs(values[0] - 1) < 0.01
assert values[2] > 1.8 and values[-1] > 1000
assert [expected for _, expected in found.values()] == sorted((e for _, e in found.values()), reverse=True)
PYTHON
