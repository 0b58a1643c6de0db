#!/bin/sh
# flwr-datasets' InnerDirichletPartitioner: labels that do not begin at 0 lose their last ones.
#
# Guess: labels are the values of the column, as in the other partitioners.  They are taken to be 0, 1, ... up
# to their number.  With labels 1 to 26, as in EMNIST's letters, no client gets a Z; with labels
# 5 to 14 no client gets 10 to 14, half of the classes, and the others are drawn twice as often.  There is no
# message.  Clients that together hold less than the whole data, as here, do not show it by their sizes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr-datasets==0.6.1 datasets==4.8.5 numpy==2.4.6
FLWR_TELEMETRY_ENABLED=0 HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, InnerDirichletPartitioner

print("flwr-datasets", importlib.metadata.version("flwr-datasets"), "datasets", importlib.metadata.version("datasets"))


def held(partitioner, labels):
    """Labels that any of five clients holds."""
    partitioner.dataset = Dataset.from_dict({"label": labels})
    return sorted(set(np.concatenate([partitioner.load_partition(client)["label"] for client in range(5)]).tolist()))


def both(first, count):
    labels = np.tile(np.arange(first, first + count), 100)
    inner = InnerDirichletPartitioner([50 * count // 5] * 5, "label", alpha=1.0)
    return held(inner, labels), held(DirichletPartitioner(5, "label", alpha=1.0), labels)


for first, count in ((0, 10), (1, 26), (5, 10)):
    inner, outer = both(first, count)
    missing = sorted(set(outer) - set(inner))
    print(f"labels {first} to {first + count - 1}: no client of the inner split holds {missing}")
    assert outer == list(range(first, first + count))
    assert missing == list(range(max(first, count), first + count))
PYTHON
