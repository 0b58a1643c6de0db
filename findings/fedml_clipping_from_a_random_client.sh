#!/bin/sh
# FedML's centered clipping starts at the model of a client drawn by chance.
#
# Guess: differences to the last aggregate are clipped to length tau and their mean is added to it, so that with
# a small tau the model hardly moves in a round.  The centre is the model of a random client of the
# round: with ten clients at independent normal numbers and tau 0.1 the results of rounds have the
# deviation of one client, 1, where the mean of the ten has 0.32.
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
rule = CClipDefense(SimpleNamespace(tau=0.1, bucket_size=1))
results, means = [], []
for number in range(1000):
    values = np.random.default_rng(number).normal(size=10)
    uploads = [(100, {"w": torch.tensor([value])}) for value in values]
    differences = rule.defend_before_aggregation(uploads)
    mean = FedMLAggOperator.agg(SimpleNamespace(federated_optimizer="FedAvg"), differences)
    results.append(rule.defend_after_aggregation(mean)["w"].item())
    assert min(abs(values - results[-1])) <= 0.1 + 1e-6
    means.append(values.mean())
print(f"deviation over rounds: results {np.std(results):.3f}, means of the clients {np.std(means):.3f}")
assert 0.85 < np.std(results) < 1.1 and 0.28 < np.std(means) < 0.35
PYTHON
