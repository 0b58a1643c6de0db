#!/bin/sh
# FedArtML: with more clients than labels, the last client gets the whole non-IID part.
#
# Guess: as the percentage of non-IID data grows, each of 20 clients gets more of its data from few labels, and
# sizes stay about equal.  The labels are dealt out in equal numbers, 10 // 20 = 0 for each client, and what
# remains goes to the last one: all ten.  With 80 % the last client has 81 % of the data with all labels in
# their global shares, and the other 19 share the rest by chance: a split by size, without skew of labels.
# With 15 clients and 20 labels the last one has the non-IID data of 6 labels and the others of one each.
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

# The package's interactive plots need these; they are not used here.
names = ("ipywidgets", "matplotlib", "matplotlib.pyplot", "matplotlib.ticker", "sklearn")
sys.modules.update({name: mock.MagicMock() for name in names})
from fedartml import SplitAsFederatedData

print("fedartml", importlib.metadata.version("fedartml"), "numpy", np.__version__)


def shares(labels, clients, percent):
    """Each client's share of the data, and the share of its most frequent label in its own data."""
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(labels), 2000 // labels)).tolist()
    split = SplitAsFederatedData(random_state=0)
    parts, _, _, _ = split.create_clients(
        image_list=[[float(label)] for label in order],
        label_list=order,
        num_clients=clients,
        method="percent_noniid",
        percent_noniid=percent,
    )
    counts = [
        np.bincount([label for _, label in part], minlength=labels)
        for part in parts["without_class_completion"].values()
    ]
    sizes = np.array([count.sum() for count in counts])
    assert sizes.sum() == 2000
    return sizes / 2000, counts


for percent in (0, 50, 80):
    found, counts = shares(10, 20, percent)
    top = counts[-1].max() / counts[-1].sum()
    print(f"10 labels, 20 clients, {percent} %: the last client has {found[-1]:.1%} of the data, the others at most {found[:-1].max():.1%};")
    print(f"    its most frequent label is {top:.1%} of its data; equal sizes would be 5.0%")
    if percent:
        assert found[-1] > percent / 100 and found[:-1].max() < 0.08
        assert top < 0.15
    else:
        assert found.max() < 0.08

found, _ = shares(20, 15, 100)
print("20 labels, 15 clients, 100 %: shares", *(f"{share:.0%}" for share in found))
assert np.allclose(found[:-1], 0.05) and abs(found[-1] - 0.3) < 1e-9
PYTHON
