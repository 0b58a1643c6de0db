#!/bin/sh
# FedML's SCAFFOLD: the server takes the change of the last client and drops all others.
#
# Guess: the model moves by the mean of the clients' changes, weighted by examples, and the control by
# their sum over the number of clients.  Both sums are computed and then replaced by the last client's
# values.  Of four clients that move by 1, 2, 3 and 100 the server moves by 100, not 26.5; with clients
# in another order it moves by another client's value.
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
from fedml.ml.aggregator.agg_operator import FedMLAggOperator

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)


def aggregated(moves):
    """Change of the model and of the control for clients with 10 examples each."""
    options = SimpleNamespace(federated_optimizer="SCAFFOLD", client_num_in_total=8)
    uploads = [(10, {"w": torch.tensor([move])}, {"w": torch.tensor([10 * move])}) for move in moves]
    model, control = FedMLAggOperator.agg(options, uploads)
    return model["w"].item(), control["w"].item()


moves = [1.0, 2.0, 3.0, 100.0]
print("right:", (sum(moves) / 4, 10 * sum(moves) / 8))
found = aggregated(moves), aggregated(moves[::-1])
print("found:", found[0], "and with the clients in reversed order:", found[1])
assert found == ((100.0, 125.0), (1.0, 1.25))
PYTHON
