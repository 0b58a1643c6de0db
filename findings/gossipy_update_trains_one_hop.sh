#!/bin/sh
# gossipy in mode UPDATE: a travelling model is trained on its first hop and never again.
#
# Guess: a model walks from node to node, and each node trains it on its own data before it passes it on.  A
# node that receives a model keeps a copy of it, and its optimiser goes on holding the parameters that the node
# had before.  What it sends is that pair, so the next node computes gradients for the model and steps on
# forgotten parameters.  The model is as it was after the first hop, while its number of updates grows with
# each hop.  Modes that merge write into the node's own parameters and train.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 dill rich pandas pyparsing
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps gossipy-dfl==0.0.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys
from unittest import mock

# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "matplotlib", "matplotlib.pyplot")})
import torch
from gossipy.core import CreateModelMode
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler

print("gossipy-dfl", importlib.metadata.version("gossipy-dfl"), "torch", torch.__version__)


class Scalar(TorchModel):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs):
        return self.x * inputs

    def init_weights(self):
        pass

    def get_size(self):
        return 1


def walk(mode):
    """Values of a model whose optimum is 1 on every node, and its number of updates."""
    nodes = [
        TorchModelHandler(
            Scalar(), torch.optim.SGD, {"lr": 0.1}, torch.nn.functional.mse_loss, create_model_mode=mode
        )
        for _ in range(5)
    ]
    data = torch.ones(4, 1), torch.ones(4, 1)
    nodes[0]._update(data)
    values = [nodes[0].model.x.item()]
    for sender, receiver in zip(nodes, nodes[1:], strict=False):
        receiver(sender.copy(), data)
        values.append(receiver.model.x.item())
    return [round(value, 3) for value in values], nodes[-1].n_updates


found = {mode: walk(mode) for mode in (CreateModelMode.UPDATE, CreateModelMode.MERGE_UPDATE)}
for mode, (values, updates) in found.items():
    print(f"{mode.name}: the model at five nodes in a row {values}, {updates} updates counted")
values, updates = found[CreateModelMode.UPDATE]
assert values == [0.2, 0.36, 0.36, 0.36, 0.36] and updates == 5
merged, _ = found[CreateModelMode.MERGE_UPDATE]
assert all(before < after for before, after in zip(merged, merged[1:], strict=False))
PYTHON
