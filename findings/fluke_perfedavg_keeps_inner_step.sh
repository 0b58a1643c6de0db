#!/bin/sh
# fluke's Per-FedAvg: the adaptation step stays in the model, which is FedAvg for small meta rates.
#
# Guess: the inner step w - a g(w) is taken only to find out where the meta gradient is computed, and the
# model moves by -b times that gradient from w.  Here it moves on from the adapted point, so that a visit
# does plain SGD with rate a and the meta steps as well.  With b = 1e-9 the model should stay where it is
# and goes where SGD goes; with a = 0.1 and b = 0.01 it moves eight times as far in ten steps as the
# paper's.  A comparison with FedAvg compares it with nearly itself.  Both variants do this.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.per_fedavg import PerFedAVGClient, PerFedAVGOptimizer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        return self.x * torch.ones(len(inputs))


def after(mode, inner, meta, epochs=10):
    data = FastDataLoader(torch.ones(2, 1), torch.zeros(2), num_labels=1, batch_size=2)
    rule = OptimizerConfigurator(
        {"name": PerFedAVGOptimizer, "lr": inner}, {"name": "StepLR", "step_size": 1, "gamma": 1.0}
    )
    client = PerFedAVGClient(
        0, data, None, rule, lambda x, y: ((x - y) ** 2).mean() / 2, epochs, mode=mode, beta=meta
    )
    client.model = Scalar()
    client.fit()
    return client.model.x.item()


inner, epochs = 0.1, 10
sgd = (1 - inner) ** epochs
for mode in ("FO", "HF"):
    still = after(mode, inner, 1e-9)
    moved = after(mode, inner, 0.01)
    print(f"{mode}: meta rate 1e-9 {still:.6f}, 0.01 {moved:.6f}, SGD with the inner rate {sgd:.6f}")
    assert abs(still - sgd) < 1e-5
    assert abs(moved - (0.9 * (1 - 0.01 * (1 if mode == "FO" else 0.9))) ** epochs) < 1e-5
paper = (1 - 0.01 * (1 - inner)) ** epochs
print(f"first-order rule of the paper with 0.01: {paper:.6f}")
assert 1 - sgd > 7 * (1 - paper)
PYTHON
