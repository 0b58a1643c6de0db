#!/bin/sh
# fluke's FedNH: a round in which no sampled client holds some class makes the whole model NaN.
#
# Guess: a class without examples in a round keeps its prototype, as weights of a neuron without input do.
# The sum of the clients' prototypes, which is 0, is divided by the number of examples, which is 0.  The new
# prototype is a mean of this and of the old one, and the average never forgets a NaN.  Logits of that
# class are NaN from then on, and so is the loss of every client, also of those that hold the class.
# With ten labels, two per client and five random clients a round, the first round nearly always does it.
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
from copy import deepcopy
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
from fluke.algorithms.fednh import FedNHClient, FedNHServer
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader

print("fluke-fl", importlib.metadata.version("fluke-fl"))
LABELS = 3


def client(number, held):
    """A client with ten examples of each of the labels that it holds."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.tensor(held).repeat(10)
    inputs = torch.randn(len(labels), 4, generator=generator)
    inputs[torch.arange(len(labels)), labels] += 3
    data = FastDataLoader(inputs, labels, num_labels=LABELS, batch_size=10)
    rule = OptimizerConfigurator({"name": "SGD", "lr": 0.1})
    return FedNHClient(number, torch.nn.Linear(4, 8), data, None, rule, None, local_epochs=1, n_protos=LABELS)


def rounds(cohorts):
    """Prototypes with a NaN and the loss of the cohort's last client, after each round."""
    torch.manual_seed(0)
    clients = {number: client(number, held) for number, held in enumerate(([0, 1], [0, 1], [1, 2], [2, 0]))}
    server = FedNHServer(torch.nn.Linear(4, 8), None, list(clients.values()), n_protos=LABELS)
    found = []
    for cohort in cohorts:
        losses = []
        for number in cohort:
            clients[number].model = deepcopy(server.model)
            losses.append(clients[number].fit())
        models = [clients[number].model for number in cohort]
        server.aggregate([clients[number] for number in cohort], models)
        prototypes = server.model.prototypes.isnan().any(dim=1).nonzero().flatten().tolist()
        found.append((prototypes, losses[-1]))
    return found


for cohorts in ([(0, 2), (1, 3), (2, 3)], [(0, 1), (2, 3), (2, 3)]):
    found = rounds(cohorts)
    for cohort, (prototypes, loss) in zip(cohorts, found):
        print(f"cohort {cohort}: prototypes with NaN {prototypes}, loss of the last client {loss:.3f}")
    if cohorts[0] == (0, 2):
        assert all(prototypes == [] and loss == loss for prototypes, loss in found)
    else:
        assert [prototypes for prototypes, _ in found] == [[2], [0, 1, 2], [0, 1, 2]]
        assert found[0][1] == found[0][1] and found[1][1] != found[1][1]
    print()
PYTHON
