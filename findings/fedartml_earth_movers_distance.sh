#!/bin/sh
# FedArtML: the earth mover's distance of clients that share no label is 0.
#
# Guess: clients with one label each are as far apart as can be, as by the other two measures, which are 1.
# The shares of the labels are handed to SciPy as values of a variable, not as weights of labels, so
# only the sorted shares are compared.  Clients that hold one label each, whatever it is, have distance 0,
# and a client with all labels and nine with one label differ.  The heterogeneity that is reported for
# a split falls to 0 as the split becomes extreme.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 pandas==3.1.1
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps fedartml==0.1.34
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
from unittest import mock

import numpy as np
import scipy

# The package's interactive plots need these; they are not used here.
names = ("ipywidgets", "matplotlib", "matplotlib.pyplot", "matplotlib.ticker", "sklearn")
sys.modules.update({name: mock.MagicMock() for name in names})
from fedartml import SplitAsFederatedData

print("fedartml", importlib.metadata.version("fedartml"), "scipy", scipy.__version__)
LABELS = np.arange(10)


def earth_movers(first, second):
    """The distance of two distributions of labels, the labels being points on a line."""
    return scipy.stats.wasserstein_distance(LABELS, LABELS, first, second)


def distances(percent):
    labels = np.repeat(LABELS, 100).tolist()
    split = SplitAsFederatedData(random_state=0)
    clients, _, _, found = split.create_clients(
        image_list=[[float(label)] for label in labels],
        label_list=labels,
        num_clients=10,
        method="percent_noniid",
        percent_noniid=percent,
    )
    held = [[label for _, label in client] for client in clients["without_class_completion"].values()]
    shares = [np.bincount(client, minlength=10) / len(client) for client in held]
    pairs = [earth_movers(shares[i], shares[j]) for i in range(10) for j in range(i)]
    return held, found["without_class_completion"], np.mean(pairs)


held, found, wanted = distances(100)
print("labels of the ten clients:", [sorted(set(client)) for client in held])
print({name: round(float(value), 4) for name, value in found.items()})
print(f"mean earth mover's distance of two clients, over labels: {wanted:.3f}")
assert [set(client) for client in held] == [{label} for label in range(10)]
assert found["earth-movers"] == 0
assert abs(found["jensen-shannon"] - 1) < 1e-6 and abs(found["hellinger"] - 1) < 1e-6
assert wanted > 3
PYTHON
