#!/bin/sh
# FedML's RFA: the geometric median of clients of equal size is the first client's model.
#
# Guess: one attacker among ten clients cannot move the geometric median far.  The weights are collected in a
# set, so that equal numbers of examples become one weight, and models are paired with weights up to
# the shorter list.  With ten clients of 100 examples only the first takes part: if it is the attacker,
# the result is the attack.  With k different sizes the first k clients take part, with the weights of others.
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
from fedml.core.security.defense.RFA_defense import RFADefense

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)


def median(sizes, models):
    with mock.patch("fedml.device.get_device"):
        rule = RFADefense(SimpleNamespace())
    return rule.defend_on_aggregation([(size, {"w": torch.tensor([w])}) for size, w in zip(sizes, models)])["w"].item()


models = [1000.0, *(1 + i / 10 for i in range(9))]  # the attacker and nine others
equal, last = median([100] * 10, models), median([100] * 10, models[::-1])
print("nine models from 1 to 1.8 and one at 1000")
print("ten clients of 100 examples, the attacker first:", equal, "and last:", last)
assert equal == 1000
assert abs(last - 1.8) < 1e-6
PYTHON
