#!/bin/sh
# Column "theirs" of fedlab in docs/coming_from/table.toml, by running it.
# Its modules of data sets import torchvision, which these parts do not use: a stand-in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy pandas scikit-learn tqdm nvidia-ml-py pillow
pip --no-deps fedlab==1.3.0
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import sys
from unittest import mock

import numpy as np
import torch
from compare import compare

for name in ("", ".datasets", ".datasets.utils", ".models", ".transforms"):
    sys.modules["torchvision" + name] = mock.MagicMock()
for name in ("VisionDataset", "MNIST", "CIFAR10"):
    stand_in = type(name, (), {})
    setattr(sys.modules["torchvision"].datasets, name, stand_in)
    setattr(sys.modules["torchvision.datasets"], name, stand_in)
import fedlab.utils.dataset.functional as partition  # noqa: E402
from fedlab.contrib.algorithm.basic_server import AsyncServerHandler, SyncServerHandler  # noqa: E402
from fedlab.contrib.algorithm.fednova import FedNovaServerHandler  # noqa: E402
from fedlab.contrib.algorithm.scaffold import ScaffoldServerHandler  # noqa: E402
from fedlab.contrib.compressor.quantization import QSGDCompressor  # noqa: E402

LABELS = np.repeat(np.arange(10), 600)


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))


def one(value):
    return torch.tensor([float(value)])


def handler(kind, ratio, clients):
    result = kind(Scalar(), 1, ratio)
    result.num_clients = clients
    return result


def cohort(ratio, clients):
    return handler(SyncServerHandler, ratio, clients).num_clients_per_round


def share():
    server = handler(SyncServerHandler, 1.0, 2)
    server.global_update([[one(0), 10], [one(1), 30]])
    return server.model_parameters.item()


def control():
    server = handler(ScaffoldServerHandler, 0.5, 4)
    server.setup_optim(1.0)
    server.global_update([[one(0), one(1)], [one(0), one(1)]])
    return server.global_c.item()


def fednova(*option):
    server = handler(FedNovaServerHandler, 0.5, 4)
    server.setup_optim(*option)
    server.global_update([[one(1), one(1)], [one(3), one(3)]])
    return server.model_parameters.item()


def weight(age, strategy, **settings):
    server = AsyncServerHandler(Scalar(), 9)
    server.setup_optim(0.5, strategy, **settings)
    server.round = age
    return server.adapt_alpha(0).item()


def largest():
    ratios = []
    for seed in range(30):
        np.random.seed(seed)
        sizes = [len(v) for v in partition.hetero_dir_partition(LABELS, 10, 10, 0.1, 10).values()]
        ratios.append(max(sizes) / np.mean(sizes))
    return float(np.mean(ratios))


def shards():
    np.random.seed(0)
    clients = partition.shards_partition(LABELS, 10, 20).values()
    return [len(set(LABELS[rows.astype(int)])) for rows in clients]


def levels():
    codec, seen = QSGDCompressor(2), []
    for seed in range(200):
        torch.manual_seed(seed)
        seen.append(codec.decompress(codec.compress(torch.tensor([0.3, 0.4, -0.5]))).numpy())
    magnitudes = np.unique(np.abs(np.round(seen, 5)))
    return [float(magnitudes.max() / 0.5), float(np.diff(magnitudes).min() / 0.5)]


measured = {
    "cohort": [cohort(0.3, 9), cohort(0.29, 10), cohort(0.05, 10)],
    "weights": share(),
    "scaffold": control(),
    "fednova": [fednova(), fednova("uniform")],
    "polynomial": weight(3, "polynomial", a=0.5),
    "hinge": weight(6, "hinge", a=10, b=4),
    "dirichlet": largest(),
    "shards": shards(),
    "qsgd": levels(),
}
compare("fedlab", "fedlab torch", measured)
PYTHON
