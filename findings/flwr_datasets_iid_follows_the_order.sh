#!/bin/sh
# flwr-datasets: IidPartitioner and DirichletPartitioner cut the data in its order; shuffle comes after.
#
# Guess: an IID partition is a random part of the data, and a Dirichlet split with a huge alpha is one, too.
# IidPartitioner cuts the rows into consecutive blocks, so that data sorted by label give every client
# one label.  DirichletPartitioner cuts the rows of each label into consecutive blocks and shuffles
# within a client: with alpha 10^6 and rows in the order of their writers each client has one or two of
# ten writers.  A data set loaded through FederatedDataset is shuffled before; one that is assigned to
# the partitioner is not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6
FLWR_TELEMETRY_ENABLED=0 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

print("flwr-datasets", importlib.metadata.version("flwr-datasets"), "datasets", importlib.metadata.version("datasets"))


def values(partitioner, columns, name):
    """The different values of a column that each client holds."""
    partitioner.dataset = Dataset.from_dict(columns)
    return [sorted(set(partitioner.load_partition(client)[name])) for client in range(10)]


iid = values(IidPartitioner(10), {"label": np.repeat(np.arange(10), 100)}, "label")
print("labels of the IID clients:", iid)
written = {"writer": np.repeat(np.arange(10), 100), "label": np.tile(np.arange(10), 100)}
dirichlet = values(DirichletPartitioner(10, "label", alpha=1e6, shuffle=True), written, "writer")
print("writers of the clients for alpha 10^6:", dirichlet)
assert iid == [[label] for label in range(10)]
assert all(len(writers) <= 3 for writers in dirichlet)
PYTHON
