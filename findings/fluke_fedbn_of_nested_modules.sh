#!/bin/sh
# fluke's FedBN: layers of batch normalisation below the second level are shared.
#
# Guess: no parameter and no statistic of any batch normalisation is taken from the server.  The names
# of the layers keep only the last but one part of their path, so those of nested modules, as in every
# residual network (layer1.0.bn1), match nothing, and the client's layer is overwritten with the
# average.  A flat network is treated as in the paper; a residual one is FedAvg but for its first layer.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.fedbn import FedBNClient
from fluke.comm import Channel, Message
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from torch.nn import BatchNorm1d, Linear, Module, Sequential

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Block(Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn1 = Linear(2, 2), BatchNorm1d(2)


class Network(Module):
    def __init__(self, value):
        super().__init__()
        self.bn1 = BatchNorm1d(2)
        self.block = Block()
        self.layer1 = Sequential(Block())
        for tensor in self.state_dict().values():
            tensor.fill_(value)


data = FastDataLoader(torch.ones(4, 2), torch.ones(4, 1), num_labels=1, batch_size=2)
rule = OptimizerConfigurator({"name": "SGD", "lr": 0.1}, {"name": "StepLR", "step_size": 1})
client = FedBNClient(0, data, None, rule, torch.nn.MSELoss(), local_epochs=1)
client.set_channel(Channel())
for value in (1.0, 7.0):
    client.channel.send(Message(Network(value), "model", "server"), 0)
    client.receive_model()
found = {name: tensor.flatten()[0].item() for name, tensor in client.model.state_dict().items()}
print({name: x for name, x in found.items() if "weight" in name or "running_var" in name})
for path, local in {"bn1": True, "block.bn1": True, "layer1.0.bn1": False}.items():
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert found[f"{path}.{name}"] == (1.0 if local else 7.0)
assert found["block.fc1.weight"] == found["layer1.0.fc1.weight"] == 7.0
PYTHON
