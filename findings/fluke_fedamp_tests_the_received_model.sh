#!/bin/sh
# fluke's FedAMP: the model that is tested is the one that was received, and in round 1 an untrained one.
#
# Guess: a client's personal model is its trained one, which stays near the mix that the server sends, and this
# is what is tested after a visit.  Clients train and send `model` and test `personalized_model`, which
# holds the mix.  Nothing has been sent before the first visit: the initial model is tested.  On data
# that two steps fit perfectly, the trained model is right for all examples, and the reported accuracy is
# that of the start, here 0.  Accuracies of later rounds are those of other clients' models mixed in.
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
from fluke.algorithms.fedamp import FedAMPClient
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval

print("fluke-fl", importlib.metadata.version("fluke-fl"))
inputs = torch.tensor([[1.0], [-1.0]]).repeat(8, 1)
labels = (inputs[:, 0] > 0).long()
data = FastDataLoader(inputs, labels, num_labels=2, batch_size=16)
start = torch.nn.Linear(1, 2, bias=False)
with torch.no_grad():
    start.weight.copy_(torch.tensor([[0.1], [-0.1]]))  # wrong for every example

rule = OptimizerConfigurator({"name": "SGD", "lr": 1.0})
client = FedAMPClient(0, start, data, data, rule, torch.nn.CrossEntropyLoss(), local_epochs=5)
client.model = torch.nn.Linear(1, 2, bias=False)
client.model.load_state_dict(start.state_dict())
client.fit()


def accuracy(model):
    return (model(inputs).argmax(dim=1) == labels).float().mean().item()


reported = client.evaluate(ClassificationEval(1, 2), data)["accuracy"]
trained, initial = accuracy(client.model), accuracy(start)
print(f"accuracy reported by the client {reported}, of the model it trained {trained}, of the initial model {initial}")
assert reported == initial == 0 and trained == 1
PYTHON
