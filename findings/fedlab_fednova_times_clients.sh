#!/bin/sh
# FedLab's FedNova: with a sample of the clients each step is too long by the factor all / sampled clients.
#
# Guess: clients that all do the same number of steps give FedAvg: ten clients that all moved by -1 move the
# model by -1.  The weights of the sampled clients sum up to 1 already, and the default option multiplies
# by clients / sampled clients once more.  With ten of 100 clients the model moves by -10.  On clients that
# all reach one optimum, the distance to it grows by the factor 9 in every round.  Options "uniform"
# and "weighted_com" are right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tqdm
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedlab==1.3.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import warnings
from unittest import mock

import torch

warnings.simplefilter("ignore")
# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "PIL", "sklearn", "sklearn.datasets", "pynvml", "munch", "pandas")})
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler

print("fedlab", importlib.metadata.version("fedlab"))


def distances(option, rounds=3, clients=100, share=0.1, optimum=1.0):
    """Distance of the model to the optimum of all clients, each of which reaches it in five steps."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    server = FedNovaServerHandler(model, rounds, share)
    server.num_clients = clients
    server.setup_optim(**option)
    found = [abs(server.model_parameters.item() - optimum)]
    for _ in range(rounds):
        for _ in range(server.num_clients_per_round):
            server.load([torch.tensor([optimum]), torch.tensor([5.0])])
        found.append(abs(server.model_parameters.item() - optimum))
    return found


default = distances({})
print("distances to the optimum, default option:", default)
others = {name: distances({"option": name}) for name in ("uniform", "weighted_com")}
print("other options:", others)
print("default option, all clients in every round:", distances({}, share=1.0))
assert all(abs(after / before - 9) < 1e-3 for before, after in zip(default, default[1:]))
assert all(row[1] < 1e-5 for row in (*others.values(), distances({}, share=1.0)))
PYTHON
