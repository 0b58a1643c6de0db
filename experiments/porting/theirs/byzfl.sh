#!/bin/sh
# Column "theirs" of byzfl in docs/coming_from/table.toml, by running it.
# Its models import torchvision, which these parts do not use: a stand-in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy scipy matplotlib seaborn
pip --no-deps byzfl==0.0.11
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import sys
from unittest import mock

import numpy as np
import torch
from compare import compare

for name in ("", ".datasets", ".models", ".transforms"):
    sys.modules["torchvision" + name] = mock.MagicMock()
import byzfl  # noqa: E402

SEVEN = np.array([12.0, 14.0, 20.0, 39.0, 45.0, 52.0, 59.0])[:, None]
NAN_OF_FIVE = np.array([1.0, 2.0, np.nan, 3.0, 4.0])[:, None]
DIGITS = torch.utils.data.TensorDataset(torch.arange(6000))
DIGITS.targets = torch.arange(10).repeat_interleave(600)


def largest():
    ratios = []
    for seed in range(30):
        np.random.seed(seed)
        settings = {
            "data_distribution_name": "dirichlet_niid",
            "distribution_parameter": 0.1,
            "nb_honest": 10,
            "data_loader": torch.utils.data.DataLoader(DIGITS),
            "batch_size": 1,
        }
        rule = byzfl.DataDistributor(settings)
        parts = rule.dirichlet_niid_idx(DIGITS.targets, list(range(6000)))
        ratios.append(max(map(len, parts)) / np.mean([len(part) for part in parts]))
    return float(np.mean(ratios))


honest = np.array([[1.0], [2.0], [4.0]])
median = byzfl.GeometricMedian()
measured = {
    "weights": float(byzfl.Average()(np.array([[0.0], [1.0]]))[0]),
    "dirichlet": largest(),
    "krum": float(byzfl.Krum(2)(SEVEN)[0]),
    "multikrum": float(byzfl.MultiKrum(2)(SEVEN)[0]),
    "trimmed": [float(rule(SEVEN)[0]) for rule in (byzfl.TrMean(2), byzfl.Median())],
    "geometric": [float(median(SEVEN)[0]), float(median(SEVEN + 1000)[0] - 1000)],
    "alie": float(byzfl.ALittleIsEnough(1.5)(honest)[0]),
    "nan": [
        float(rule(NAN_OF_FIVE)[0]) for rule in (byzfl.Median(), byzfl.TrMean(1), byzfl.Krum(1))
    ],
}
compare("byzfl", "byzfl", measured)
PYTHON
