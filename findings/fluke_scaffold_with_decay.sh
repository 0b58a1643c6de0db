#!/bin/sh
# fluke's SCAFFOLD: with a decaying rate the controls are divided by the next rate.
#
# Guess: c_i is the mean gradient of the visit, (x - y) / (K lr).  The scheduler has moved on by the
# end of the visit, and its last rate is that of the next epoch: with a decay of 0.5 per epoch and one
# epoch per visit a gradient of 1 becomes a control of 2.  SCAFFOLD then overcorrects by 1 / decay.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.scaffold import SCAFFOLDClient
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.x * inputs


def control(gamma):
    data = FastDataLoader(torch.ones(4, 1), torch.ones(4, 1), num_labels=1, batch_size=2)
    rule = OptimizerConfigurator(
        {"name": "SGD", "lr": 0.1}, {"name": "StepLR", "step_size": 1, "gamma": gamma}
    )
    client = SCAFFOLDClient(0, data, None, rule, lambda y, _: y.mean(), local_epochs=1)
    client.model, zero = Scalar(), {"x": torch.zeros(1)}
    client.control, client.server_control = zero, zero
    client.server_model = {"x": torch.zeros(1)}
    client.fit()
    return client.control["x"].item()


found = {gamma: control(gamma) for gamma in (1.0, 0.5)}
print("control after gradients of 1, by decay of the rate:", found)
assert abs(found[1.0] - 1) < 1e-6
assert abs(found[0.5] - 2) < 1e-6
PYTHON
