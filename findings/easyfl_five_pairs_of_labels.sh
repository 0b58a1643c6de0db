#!/bin/sh
# EasyFL's split by classes: with two of ten labels per client there are five kinds of clients, for every seed.
#
# Guess: each client draws its labels, so that 100 clients with two of ten hold about all of the 45 pairs.  The
# client takes the labels that were used least so far, and of these those with the lowest numbers: clients 0,
# 5, 10, ... hold 0 and 1, clients 1, 6, 11, ... hold 2 and 3, and so on.  No client holds 1 and 2.  The
# clients form five clusters that share nothing, which suits clustered algorithms, and no seed changes it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 setuptools wheel
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps easyfl==0.1.2
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.machinery
import importlib.metadata
import sys
from collections import Counter
from unittest import mock

import numpy as np

# Packages of the network and of models, which are not used here.
UNUSED = set("torch torchvision omegaconf etcd3 google grpc kubernetes requests tqdm yaml PIL".split())


class Unused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return mock.MagicMock(__path__=[])

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Unused())
from easyfl.datasets.simulation import data_simulation

print("easyfl", importlib.metadata.version("easyfl"), "numpy", np.__version__)
labels = np.repeat(np.arange(10), 1000)


def pairs(seed):
    """The pairs of labels that 100 clients hold, in the order of the clients."""
    np.random.seed(seed)
    order = np.random.permutation(labels)
    names, data = data_simulation(np.zeros((len(order), 1)), order, 100, "class", class_per_client=2)
    return [tuple(sorted(set(data[name]["y"].tolist()))) for name in names]


def drawn(seed):
    generator = np.random.default_rng(seed)
    return [tuple(sorted(generator.choice(10, 2, replace=False).tolist())) for _ in range(100)]


for seed in range(3):
    found, expected = pairs(seed), drawn(seed)
    print(f"seed {seed}: {len(set(found))} pairs {dict(Counter(found))}; drawn at random {len(set(expected))} pairs")
    assert found == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)] * 20
    assert len(set(expected)) > 35
PYTHON
