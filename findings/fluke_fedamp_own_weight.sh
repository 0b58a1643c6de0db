#!/bin/sh
# fluke's FedAMP: with the default settings the weight of a client's own model can be -8.
#
# Guess: the model that a client gets is a mean of all models with weights from 0 to 1.  A neighbour at
# squared distance d has the weight alpha / sigma exp(-d / sigma), the client itself what is missing to 1.
# With the defaults, both 0.1, each near neighbour has a weight of nearly 1: of ten clients with models that are
# close together the own weight is -8, and the deviation of each client from the others' mean comes back with the
# opposite sign, multiplied by 8.  The paper asks for an alpha that keeps the own weight above 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 omegaconf==2.4.0 torchmetrics==1.9.0
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.machinery
import importlib.metadata
import sys
from types import SimpleNamespace
from unittest import mock

import torch

# Packages of the command line, the log and plots, which are not used here.
UNUSED = set("rich diskcache psutil typer matplotlib pandas sklearn seaborn cerberus".split())


class Unused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Unused())
from fluke.algorithms.fedamp import FedAMPServer

print("fluke-fl", importlib.metadata.version("fluke-fl"))


def model(value):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    return layer


def received(values, **settings):
    """What each client gets for its next visit."""
    clients = [SimpleNamespace(index=number, channel=None) for number in range(len(values))]
    server = FedAMPServer(model(0.0), None, clients, **settings)
    sent = {}
    server._channel = SimpleNamespace(send=lambda message, receiver: sent.__setitem__(receiver, message.payload))
    server.aggregate(clients, [model(value) for value in values])
    return [sent[number].weight.item() for number in range(len(values))]


for count in (2, 5, 10):
    values = [0.01] + [0.0] * (count - 1)
    first = received(values)[0]
    print(f"{count} clients, one at 0.01 and the others at 0: the one gets {first:.4f}, own weight {first / 0.01:.3f}")
    assert abs(first / 0.01 - (2 - count)) < 0.02
values = [0.01] + [0.0] * 9
small = received(values, alpha=0.01)[0]
print(f"10 clients, alpha a tenth: the one gets {small:.4f}, own weight {small / 0.01:.3f}")
assert abs(small / 0.01 - 0.1) < 0.02
PYTHON
