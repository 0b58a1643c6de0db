#!/bin/sh
# FedLab's FedDyn: clients train by plain SGD whatever alpha is, and the server's model grows in every round.
#
# Guess: a client's loss has a penalty alpha / 2 |x - s|^2 and a linear term, and a server whose clients all
# return the model as it was sent keeps it.  Both terms are computed from parameters without a gradient, so
# the trained model is the same to the last bit for alpha 0.01 and 100, in later visits, too.  The server
# sums up the clients' models and subtracts its own once, not once per client: with ten clients that
# return a model as it was, its entries are 1.9 times as large after a round.
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
from fedlab.contrib.algorithm.feddyn import FedDynSerialClientTrainer, FedDynServerHandler

for name in UNUSED:
    del sys.modules[name]

print("fedlab", importlib.metadata.version("fedlab"))


class OneClient:
    def get_dataloader(self, client, batch_size):
        examples = torch.linspace(-1, 1, 40).reshape(10, 4)
        return DataLoader(TensorDataset(examples, torch.arange(10) % 3), batch_size)


def visits(alpha):
    """The client's model after each of two visits that start from different models."""
    torch.manual_seed(0)
    trainer = FedDynSerialClientTrainer(torch.nn.Linear(4, 3), num_clients=1)
    trainer.setup_dataset(OneClient())
    trainer.setup_optim(epochs=3, batch_size=5, lr=0.1, alpha=alpha)
    start, found = trainer.model_parameters, []
    for shift in (0.0, 0.5):
        trainer.local_process([start + shift], [0])
        found.append(trainer.uplink_package[0][0])
    return torch.stack(found), (found[0] - start).norm().item()


models = {alpha: visits(alpha) for alpha in (0.01, 100.0)}
for alpha, (_, moved) in models.items():
    print(f"alpha {alpha}: a client moves by {moved:.6f} in its first visit")
same = torch.equal(models[0.01][0], models[100.0][0])
print("models of two visits equal to the last bit:", same)
assert same and models[100.0][1] > 0.1

model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
server = FedDynServerHandler(model, 3, 1.0)
server.num_clients = 10
server.setup_optim(alpha=0.1)
entries = [server.model_parameters.item()]
for _ in range(3):
    sent = server.model_parameters
    for _ in range(10):
        server.load([sent])
    entries.append(server.model_parameters.item())
print("an entry of the server's model while clients return what they got:", entries)
assert abs(entries[1] - 1.9) < 1e-5 and entries[3] > 4
PYTHON
