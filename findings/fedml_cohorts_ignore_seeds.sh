#!/bin/sh
# FedML's simulator: the sampled clients are the same for every random seed, and NumPy begins anew in each round.
#
# Guess: runs with other seeds sample other clients, so that a spread over seeds contains that of sampling.
# The simulator sets NumPy's global seed to the number of the round before it draws.  All runs of all seeds
# see one sequence of cohorts; of 100 clients, ten in each of 20 rounds, the same six are never asked.
# Whatever else draws from NumPy repeats, too: round 3 has the same numbers in each run, whatever was drawn
# before.
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
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI

print("fedml", importlib.metadata.version("fedml"), "numpy", np.__version__)


def run(seed, rounds=20):
    """Cohorts of a run, and what NumPy's generator gives after each draw."""
    np.random.seed(seed)
    cohorts, noise = [], []
    for number in range(rounds):
        cohorts.append(FedAvgAPI._client_sampling(mock.Mock(), number, 100, 10).tolist())
        noise.append(np.random.normal())
        np.random.normal(size=seed)
    return cohorts, noise


first, second = run(1), run(2)
asked = {client for cohort in first[0] for client in cohort}
print("cohorts of rounds 0 and 1 with seed 1:", first[0][:2])
print("equal in all rounds with seed 2:", first[0] == second[0], "- and the numbers after them:", first[1] == second[1])
print(f"clients asked in 20 rounds, by every seed: {len(asked)}")
assert first == second and len(asked) == 94
PYTHON
