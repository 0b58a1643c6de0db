#!/bin/sh
# PyTorch: going through a DataLoader without shuffling changes the random numbers after it.
#
# Guess: a loader with shuffle=False uses no randomness.  Every iterator draws a base seed for workers
# that do not exist, so each evaluation moves the global generator.  Two runs with one seed that
# evaluate after every round and after every tenth train on other minibatches.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch.utils.data import DataLoader, TensorDataset

print("torch", torch.__version__)


def after(passes):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, shuffle=False)
    for _ in range(passes):
        list(loader)
    return torch.randperm(5).tolist()


orders = [after(passes) for passes in range(3)]
print("order of five examples after 0, 1, 2 evaluations:", orders)
assert orders[0] != orders[1] != orders[2]
own = DataLoader(TensorDataset(torch.arange(4)), generator=torch.Generator())
torch.manual_seed(0)
list(own)
assert torch.randperm(5).tolist() == orders[0]
print("a loader with its own generator leaves it alone")
PYTHON
