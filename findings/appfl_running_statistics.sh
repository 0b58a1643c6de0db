#!/bin/sh
# APPFL: weights by sample size apply to parameters, not to running statistics.
#
# Guess: client_weights_mode="sample_size" weights the whole model.  Of clients with 10 and 30 examples
# the second has 3/4 of weights and biases, and 1/2 of the running means and variances of batch
# normalisation, which are averaged equally: the model that is evaluated is no average of the two.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy omegaconf opacus==1.6.0 packaging
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps appfl==1.12.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from appfl.algorithm.aggregator import FedAvgAggregator
from omegaconf import DictConfig

print("appfl", importlib.metadata.version("appfl"), "torch", torch.__version__)
layer = torch.nn.BatchNorm1d(1)
server = FedAvgAggregator(layer, DictConfig({"client_weights_mode": "sample_size"}))
server.client_sample_size = {"small": 10, "large": 30}


def filled(value):
    return {
        name: torch.full_like(x, value) if x.dtype.is_floating_point else x.clone()
        for name, x in layer.state_dict().items()
    }


mean = server.aggregate({"small": filled(0.0), "large": filled(1.0)})
print({name: x.tolist() for name, x in mean.items()})
assert mean["weight"].item() == mean["bias"].item() == 0.75
assert mean["running_mean"].item() == mean["running_var"].item() == 0.5
PYTHON
