#!/bin/sh
# FedML's three-sigma defence: the bound is half a deviation.
#
# Guess: clients farther from the mean model than three deviations above the mean distance are left out, which
# among 20 clients with normal models is hardly ever one.  The bound is the mean plus 0.5 deviations: six
# or seven of the 20 are left out in every round.
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


numbers = []
for seed in range(200):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"first.weight": 8, "first.bias": 4, "last.weight": 8, "last.bias": 2}
    uploads = [
        (100, {name: torch.randn(size, generator=generator) for name, size in shapes.items()}) for _ in range(20)
    ]
    with mock.patch("fedml.device.get_device"):
        rule = ThreeSigmaDefense(SimpleNamespace())
    numbers.append(len(rule.defend_before_aggregation(uploads)))
print(f"clients of 20 that are kept: {np.mean(numbers):.2f}, at most {max(numbers)}")
assert 12 < np.mean(numbers) < 16 and max(numbers) < 20
PYTHON
