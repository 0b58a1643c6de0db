#!/bin/sh
# fluke's FedAvgM: the first round changes nothing.
#
# Guess: the momentum is 0 before the first round, so that the first round is one of FedAvg, v_1 being
# the mean update.  The first call creates v = 0 and subtracts it; the updates of that round are lost.
# The model that is evaluated after round 1 is the initial one, with momentum 0 as with 0.9, and
# where few clients take part in a round, the first cohort's work never counts.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.fedavgm import FedAVGMServer
from fluke.server import Server

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Client:
    def __init__(self, index):
        self.index, self.n_examples = index, 10


def model(value):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    return layer


clients = [Client(0), Client(1)]


def models(server):
    values = [server.model.weight.item()]
    for _ in range(3):
        server.aggregate(clients, [model(values[-1] + update) for update in (1.0, 3.0)])
        values.append(server.model.weight.item())
    return values


average = models(Server(model(0.0), None, clients))
momentum = {m: models(FedAVGMServer(model(0.0), None, clients, momentum=m)) for m in (0.0, 0.5)}
print("mean update 2 in every round.  FedAvg:", average, "FedAvgM by momentum:", momentum)
assert average == [0, 2, 4, 6]
assert momentum[0.0] == [0, 0, 2, 4]
assert momentum[0.5] == [0, 0, 2, 5]
PYTHON
