#!/bin/sh
# Opacus: for some numbers of minibatches an epoch has one step less.
#
# Guess: a loader of n minibatches becomes one of n minibatches drawn by Poisson sampling.  The rate is
# 1 / n and the number of steps int(1 / rate), which rounding makes n - 1 for 70 of the n below 1,000,
# 93, 99 and 105 first, and for none of 50, 100, 200 or 500.  With n = 93 an epoch visits 1 % fewer
# examples than it should, and runs over the same number of epochs have different numbers of steps.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy scipy opt_einsum
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps opacus==1.6.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import opacus
import torch
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, TensorDataset

print("opacus", opacus.__version__, "torch", torch.__version__)


def steps(minibatches):
    loader = DataLoader(TensorDataset(torch.zeros(10 * minibatches, 1)), batch_size=10)
    assert len(loader) == minibatches
    private = DPDataLoader.from_data_loader(loader)
    return sum(1 for _ in private)


for minibatches in (50, 93, 99, 100, 105):
    print(minibatches, "minibatches:", steps(minibatches), "steps")
fewer = [n for n in range(1, 1000) if int(1 / (1 / n)) != n]
print(len(fewer), "numbers below 1,000, first", fewer[:5])
assert [steps(n) - n for n in (50, 93, 99, 100, 105)] == [0, -1, -1, 0, -1]
assert all(steps(n) == n - 1 for n in fewer[:5])
PYTHON
