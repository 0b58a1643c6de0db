#!/bin/sh
# FedML's coordinate-wise trimmed mean: it leaves out the largest and smallest clients, not values.
#
# Guess: of ten clients with beta = 0.2 the two largest and two smallest values of each coordinate are
# left out.  Whole clients are left out, by their number of examples; the models are never looked at.
# So the clients with the most and the fewest data are dropped in every round, all values of the others
# count, and the rest is a mean weighted by examples.  SLSGD uses the same function.
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
from fedml.core.security.defense.coordinate_wise_trimmed_mean_defense import CoordinateWiseTrimmedMeanDefense
from fedml.ml.aggregator.agg_operator import FedMLAggOperator

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)
sizes = [10, 20, 50, 60, 70, 80, 90, 100, 1000, 2000]
values = [0.0, 1.0, 10.0, 2.0, 3.0, 4.0, 20.0, 5.0, 6.0, 7.0]
uploads = [(size, {"w": torch.tensor([value])}) for size, value in zip(sizes, values)]
kept = CoordinateWiseTrimmedMeanDefense(SimpleNamespace(beta=0.2)).defend_before_aggregation(uploads)
print("sizes and values that are kept:", [(size, round(model["w"].item(), 2)) for size, model in kept])
assert [size for size, _ in kept] == sizes[2:-2]
options = SimpleNamespace(federated_optimizer="FedAvg")
result = FedMLAggOperator.agg(options, kept)["w"].item()
right = sum(sorted(values)[2:-2]) / 6
weighted = sum(size * value for size, value in zip(sizes[2:-2], values[2:-2])) / sum(sizes[2:-2])
print(f"trimmed mean by values {right:.3f}, FedML's trimmed mean {result:.3f}")
assert abs(result - weighted) < 1e-5 and right == 4.5 and result > 7.5
PYTHON
