#!/bin/sh
# FedLab: running statistics of batch normalisation never leave the clients; the server evaluates with 0 and 1.
#
# Guess: the server's model is the mean of the clients' models and can be evaluated.  Only parameters
# are sent: the server keeps the initial means 0 and variances 1, and in the simulation of many
# clients a client starts with the statistics of the one before it.  A network that tells two classes
# apart with hardly an error in training puts all test examples into one class at the server.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tqdm
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedlab==1.3.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import warnings
from unittest import mock

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
# only parts that are not used here need these
UNUSED = ("torchvision", "PIL", "sklearn", "sklearn.datasets", "pynvml", "munch", "pandas")
sys.modules.update({name: mock.MagicMock() for name in UNUSED})
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.utils.functional import evaluate

for name in UNUSED:
    del sys.modules[name]

print("fedlab", importlib.metadata.version("fedlab"))
torch.manual_seed(0)


def data(examples=200):
    labels = torch.arange(examples) % 2
    return TensorDataset(50 + 5 * torch.randn(examples, 4) + 20 * labels[:, None], labels)


class Clients:
    parts = [data() for _ in range(5)]

    def get_dataloader(self, client, batch_size):
        return DataLoader(self.parts[client], batch_size)


network = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
server = SyncServerHandler(network, global_round=20, sample_ratio=1.0)
trainer = SGDSerialClientTrainer(network, num_clients=5)
trainer.setup_dataset(Clients())
trainer.setup_optim(epochs=1, batch_size=20, lr=0.1)
server.num_clients = 5
while not server.if_stop:
    trainer.local_process(server.downlink_package, server.sample_clients())
    for pack in trainer.uplink_package:
        server.load(pack)

test = DataLoader(data(), 200)
_, at_server = evaluate(server.model, torch.nn.CrossEntropyLoss(), test)
trainer.set_model(server.model_parameters)
_, with_statistics = evaluate(trainer.model, torch.nn.CrossEntropyLoss(), test)
normalisation = server.model[0]
print("server: running mean", normalisation.running_mean.tolist(), "variance", normalisation.running_var.tolist())
print("a client's running mean", trainer.model[0].running_mean.tolist())
print(f"accuracy of the server's model {at_server}, of its parameters with a client's statistics {with_statistics}")
assert normalisation.running_mean.eq(0).all() and normalisation.running_var.eq(1).all()
assert trainer.model[0].running_mean.gt(50).all()
assert at_server < 0.6 and with_statistics > 0.95
PYTHON
