#!/bin/sh
# fluke's balanced Dirichlet split: clients share examples and hold some twice, and others are unused.
#
# Guess: a partition.  With balanced=True clients are cut to equal sizes or filled up one after the other,
# and the filling is drawn from all examples that no earlier client has: also from those of the client
# itself and of later ones.  Examples that are cut off from a large client go to later ones only.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fluke-fl==0.8.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import warnings
from collections import Counter

import numpy as np
import torch
from fluke.data import DataSplitter

print("fluke-fl", importlib.metadata.version("fluke-fl"))
warnings.simplefilter("ignore")  # that clients lack some of the classes
labels = torch.arange(2000) % 10


def split(balanced):
    np.random.seed(0)
    clients, _ = DataSplitter.label_dirichlet_skew(
        torch.zeros(2000, 1), labels, None, None, 20, beta=0.3, min_ex_class=1, balanced=balanced
    )
    held = Counter(np.concatenate(clients).tolist())
    own = sum(len(c) - len(set(c.tolist())) for c in clients)
    several = sum(count > 1 for count in held.values())
    print(f"balanced={balanced}: sizes {sorted({len(c) for c in clients})[:3]} ...", end=" ")
    print(f"unused {2000 - len(held)}, in several places {several}, twice at one client {own}")
    return 2000 - len(held), several, own


assert split(False) == (0, 0, 0)
unused, several, own = split(True)
assert unused > 100
assert several > 100
assert own > 10
PYTHON
