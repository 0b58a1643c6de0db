#!/bin/sh
# FedML's centered clipping starts at a client drawn by chance, who may be the attacker.
#
# Guess: differences to the last aggregate are clipped to length tau, so that one attacker in ten moves the
# model by tau / 10 at most.  The centre is the model of a random client of the round.  In one round
# in ten it is the attacker's, and the result is at most tau away from the attack: with nine clients near 0
# and one at 1000, tau 10, the model is at 991 after 10 % of the rounds.  The share of such rounds is the
# share of attackers, so nearly no training is without one.
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
from fedml.core.security.defense.cclip_defense import CClipDefense
from fedml.ml.aggregator.agg_operator import FedMLAggOperator

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)
np.random.seed(0)
rule = CClipDefense(SimpleNamespace(tau=10.0, bucket_size=1))
results = []
for _ in range(1000):
    honest = np.random.default_rng(len(results)).normal(size=9)
    uploads = [(100, {"w": torch.tensor([value])}) for value in (*honest, 1000.0)]
    differences = rule.defend_before_aggregation(uploads)
    mean = FedMLAggOperator.agg(SimpleNamespace(federated_optimizer="FedAvg"), differences)
    results.append(rule.defend_after_aggregation(mean)["w"].item())
results = np.array(results)
share = np.mean(results > 900)
print(f"share of the rounds that end near the attacker: {share:.3f}, at {results[results > 900].mean():.2f}")
print(f"the other rounds: from {results[results < 900].min():.2f} to {results[results < 900].max():.2f}")
assert 0.05 < share < 0.15
assert abs(results[results > 900] - 991).max() < 0.1
assert abs(results[results < 900]).max() < 5
PYTHON
