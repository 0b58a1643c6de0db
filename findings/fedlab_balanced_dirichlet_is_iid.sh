#!/bin/sh
# FedLab: the balanced Dirichlet split gives every client the labels of the whole data set.
#
# Guess: with alpha 0.3 the most frequent of ten labels is a third or more of a client's examples, as in
# the split without balance.  Labels are drawn so, but they were put into random order before, and positions
# in that order are returned as positions in the data set.  Each client gets a random sample: its largest
# label has a share of 0.12, with alpha 0.3 as with 100.  Results for CIFAR-10 and CIFAR-100 with
# partition="dirichlet" and balance=True or False (log-normal sizes) are results for IID clients.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tqdm pandas
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedlab==1.3.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
import warnings
from unittest import mock

import numpy as np

warnings.simplefilter("ignore")
# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "PIL", "sklearn", "sklearn.datasets", "pynvml", "munch")})
from fedlab.utils.dataset.partition import CIFAR10Partitioner

print("fedlab", importlib.metadata.version("fedlab"))
labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))


def largest_shares(alpha, balance, clients=10):
    """Share of a client's most frequent label, in the middle over clients."""
    split = CIFAR10Partitioner(labels, clients, balance=balance, partition="dirichlet", dir_alpha=alpha,
                               unbalance_sgm=0.3, verbose=False, seed=1)
    counts = [np.bincount(labels[split[client]], minlength=10) for client in range(clients)]
    return float(np.median([count.max() / count.sum() for count in counts]))


found = {(alpha, balance): largest_shares(alpha, balance) for alpha in (0.3, 100.0) for balance in (None, True, False)}
for (alpha, balance), share in found.items():
    print(f"alpha {alpha}, balance={balance}: largest label of the middle client has the share {share:.3f}")
assert found[0.3, None] > 0.3
assert all(found[alpha, balance] < 0.16 for alpha in (0.3, 100.0) for balance in (True, False))
PYTHON
