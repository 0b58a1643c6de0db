#!/bin/sh
# FedML's three-sigma defence: the bound is half a deviation, and one layer alone is looked at.
#
# Guess: clients farther from the mean model than three deviations above the mean distance are left out, which
# is hardly ever an honest one.  The bound is the mean plus 0.5 deviations: with 20 honest clients six or seven
# are left out in every round.  Distances are those of the last but one entry of the model, the weights of the
# last layer: a client with 1000 in all entries of the first layer stays as often as the others.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedml==0.9.6
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.machinery
import importlib.metadata
import sys
from types import SimpleNamespace
from unittest import mock

import torch

# Packages of FedML's cloud client and data sets, which are imported at the start and not used here.
UNUSED = set(
    "GPUtil PIL boto3 botocore cachetools certifi chardet click dateutil dill docker dotenv fastapi h5py httpx multiprocess "
    "packaging paho pandas pkg_resources prettytable psutil pydantic redis requests scipy sqlalchemy torchvision tqdm "
    "wandb wget yaml".split()
)


class Unused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.append(Unused())
import numpy as np
from fedml.core.security.defense.three_sigma_defense import ThreeSigmaDefense

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)


def kept(rounds=200, clients=20):
    """Mean number of clients kept, and the share of rounds that keep a client with 1000 in its first layer."""
    numbers, attackers = [], []
    for seed in range(rounds):
        generator = torch.Generator().manual_seed(seed)
        uploads = []
        for client in range(clients):
            shapes = {"first.weight": 8, "first.bias": 4, "last.weight": 8, "last.bias": 2}
            model = {name: torch.randn(size, generator=generator) for name, size in shapes.items()}
            if client == 0:
                model["first.weight"] += 1000
            uploads.append((100 + client, model))
        with mock.patch("fedml.device.get_device"):
            rule = ThreeSigmaDefense(SimpleNamespace())
        sizes = [size for size, _ in rule.defend_before_aggregation(uploads)]
        numbers.append(len(sizes))
        attackers.append(100 in sizes)
    return float(np.mean(numbers)), float(np.mean(attackers))


number, attacker = kept()
print(f"clients of 20 that are kept: {number:.2f}; rounds in which the attacker on the first layer is kept: {attacker:.1%}")
assert 12 < number < 16 and abs(attacker - number / 20) < 0.12
PYTHON
