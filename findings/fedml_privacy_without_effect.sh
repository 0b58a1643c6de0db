#!/bin/sh
# FedML: two solutions for differential privacy and two defences can be chosen and do nothing.
#
# Guess: dp_solution_type nbafl and dp_clip clip and add noise, and the defences weak_dp and
# robust_learning_rate change the aggregate, as an unknown name is an error.  The hooks of clients and server
# ask for ldp and cdp alone, and for a list of defences in which these two are missing.  What a client
# sends and what a server computes is, to the last bit, what they are without privacy or defence, while
# the log says that both are on.
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
from fedml.core.alg_frame.client_trainer import ClientTrainer
from fedml.core.dp.fedml_differential_privacy import FedMLDifferentialPrivacy
from fedml.core.security.fedml_defender import FedMLDefender
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator

print("fedml", importlib.metadata.version("fedml"), "torch", torch.__version__)


class Client(ClientTrainer):
    def get_model_params(self):
        return self.model.state_dict()

    def set_model_params(self, parameters):
        self.model.load_state_dict(parameters)

    def train(self, data, device, options):
        pass


def changes(**choice):
    """Largest change of a client's entries before it sends them, and of the server's mean of two models."""
    common = dict(federated_optimizer="FedAvg", comm_round=100, client_num_per_round=2, client_num_in_total=2,
                  epsilon=0.5, delta=1e-5, sensitivity=1.0, mechanism_type="gaussian", C=0.1, max_grad_norm=None,
                  clipping_norm=0.1, noise_multiplier=1.0, train_data_num_in_total=20, stddev=1.0, robust_threshold=2)
    options = SimpleNamespace(**common, **choice)
    model = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    client, server = Client(model, options), DefaultServerAggregator(torch.nn.Linear(4, 1), options)
    client.on_after_local_training([], torch.device("cpu"), options)
    sent = max((value - 1).abs().max().item() for value in client.get_model_params().values())
    uploads = [(10, {"w": torch.ones(4)}), (10, {"w": -torch.ones(4)})]
    uploads, _ = server.on_before_aggregation(uploads)
    mean = server.on_after_aggregation(server.aggregate(uploads))
    enabled = FedMLDifferentialPrivacy.get_instance().is_dp_enabled(), FedMLDefender.get_instance().is_defense_enabled()
    return enabled, sent, mean["w"].abs().max().item()


torch.manual_seed(0)
found = {name: changes(enable_dp=True, dp_solution_type=name) for name in ("ldp", "cdp", "nbafl", "dp_clip")}
FedMLDifferentialPrivacy._dp_instance = None
found.update({name: changes(enable_defense=True, defense_type=name) for name in ("weak_dp", "robust_learning_rate")})
for name, row in found.items():
    print(f"{name}: privacy and defence enabled {row[0]}, change by the client {row[1]:.3f}, by the server {row[2]:.3f}")
assert all(any(row[0]) for row in found.values())
assert found["ldp"][1] > 1 and found["cdp"][2] > 1
assert all(found[name][1:] == (0, 0) for name in ("nbafl", "dp_clip", "weak_dp", "robust_learning_rate"))
PYTHON
