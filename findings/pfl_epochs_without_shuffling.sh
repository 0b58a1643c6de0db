#!/bin/sh
# pfl-research: local epochs go through a client's examples in the order in which they are stored.
#
# Guess: FedAvg's local SGD draws a new order of minibatches in every epoch, as its algorithm says.
# Dataset cuts the stored arrays into consecutive batches once, and every epoch, round and seed takes
# them in that order; nothing shuffles.  Its split into training and validation examples takes the
# first and the last ones, so of examples that are stored by label whole labels go to validation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pfl==0.6.0 torch==2.13.0 'numpy<2.5'
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
import torch
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

print("pfl", importlib.metadata.version("pfl"), "torch", torch.__version__)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def loss(self, x):
        self.seen.append(x.tolist())
        return (x * self.weight).sum()

    def metrics(self, x):
        return {}


def batches(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)
    network = Network()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
    epochs = NNTrainHyperParams(
        local_num_epochs=3, local_learning_rate=0.1, local_batch_size=2
    )
    step = lambda torch_model, optimizer, data, *rest: torch_model.loss(*data)
    model.do_multiple_epochs_of(Dataset(raw_data=[torch.arange(6.0)]), epochs, step)
    return network.seen


expected = [[0, 1], [2, 3], [4, 5]] * 3
for seed in range(2):
    print("seed", seed, "batches of three epochs:", batches(seed))
    assert batches(seed) == expected

labels = np.repeat([0, 1, 2, 3, 4], 4)
train, validation = Dataset(raw_data=[labels]).split()
print("labels of the split:", set(train.raw_data[0].tolist()), set(validation.raw_data[0].tolist()))
assert set(train.raw_data[0].tolist()) == {0, 1, 2, 3}
assert set(validation.raw_data[0].tolist()) == {4}
PYTHON
