#!/bin/sh
# fluke's FedNova: where clients do different numbers of steps, the model itself is scaled.
#
# Guess: FedNova normalises the updates x - y_i.  The factors, which do not add up to 1, are applied to
# the models y_i: with 1 and 9 steps and equal shares they add up to 2.78, and a round in which no
# client moves multiplies every parameter by that.  With equal numbers of steps nothing is wrong; with
# unequal ones the model grows in every round.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from fluke.algorithms.fednova import FedNovaServer
from fluke.comm import Message

print("fluke-fl", importlib.metadata.version("fluke-fl"))


class Client:
    def __init__(self, index):
        self.index, self.n_examples = index, 10


def model(value):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    return layer


clients = [Client(0), Client(1)]


def models(steps, rounds):
    server = FedNovaServer(model(1.0), None, clients)
    values = [1.0]
    for _ in range(rounds):
        for client, number in zip(clients, steps):
            server.channel.send(Message(float(number), "local_a", client.index), "server")
        server.aggregate(clients, [model(values[-1]) for _ in clients])
        values.append(server.model.weight.item())
    return values


for steps in ((5, 5), (4, 6), (1, 9)):
    print("steps", steps, "models of three rounds without any update:", models(steps, 3))
assert models((5, 5), 3) == [1, 1, 1, 1]
assert abs(models((4, 6), 1)[1] - 25 / 24) < 1e-5
assert abs(models((1, 9), 1)[1] - 25 / 9) < 1e-5
assert models((1, 9), 3)[3] > 21
PYTHON
