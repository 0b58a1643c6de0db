#!/bin/sh
# Column "theirs" of pfllib in docs/coming_from/table.toml, by running it; an argument is a clone of it.
# It imports torchvision, which these parts do not use: a stand-in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet --no-checkout "${1:-https://github.com/TsingZ0/PFLlib}" "$folder/PFLlib"
git -C "$folder/PFLlib" checkout --quiet d832e76f6a23b833038949ec1e4fdefe63a4d350 -- system dataset/utils/dataset_utils.py
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy==2.4.6 scikit-learn ujson h5py pillow matplotlib
export PYTHONPATH="$here:$folder/PFLlib/system" PFLLIB="$folder/PFLlib"
"$folder/venv/bin/python" - <<'PYTHON'
import contextlib
import io
import os
import pathlib
import sys
import types
from unittest import mock

import numpy as np
import torch
from compare import compare

for name in ("", ".datasets", ".models", ".transforms"):
    sys.modules["torchvision" + name] = mock.MagicMock()
from flcore.clients.clientbase import Client  # noqa: E402
from flcore.servers import serverscaffold  # noqa: E402
from flcore.servers.serverbase import Server  # noqa: E402

LABELS = np.repeat(np.arange(10), 600)


class Scalar(torch.nn.Module):
    def __init__(self, value=0.0):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([float(value)]))


def built(kind, clients, ratio=1.0):
    server = object.__new__(kind)
    chosen = int(clients * ratio)
    server.__dict__.update(
        global_model=Scalar(), num_clients=clients, num_join_clients=chosen, random_join_ratio=False,
        client_drop_rate=0.0, time_threthold=10000, clients=list(range(clients)),
    )  # fmt: skip
    return server


def cohort(ratio, clients):
    # Server.__init__ has the count; everything else of it needs files.
    settings = mock.MagicMock(num_clients=clients, join_ratio=ratio, model=Scalar())
    return Server(settings, 0).num_join_clients


def share():
    server = built(Server, 2)
    cost = {"total_cost": 0.0, "num_rounds": 1}
    server.selected_clients = [
        types.SimpleNamespace(
            id=i, train_samples=n, model=Scalar(i), train_time_cost=cost, send_time_cost=cost
        )
        for i, n in enumerate((10, 30))
    ]
    server.current_num_join_clients = 2
    server.receive_models()
    server.aggregate_parameters()
    return server.global_model.x.item()


def batches(examples):
    client = object.__new__(Client)
    client.__dict__.update(dataset="", id=0, few_shot=0, batch_size=4)
    with mock.patch("flcore.clients.clientbase.read_client_data", return_value=range(examples)):
        return [len(x) for x in client.load_train_data()]


def control():
    server = built(serverscaffold.SCAFFOLD, 4, 0.5)
    server.global_c, server.server_learning_rate, server.uploaded_ids = [torch.zeros(1)], 1.0, [0, 1]
    one = types.SimpleNamespace(delta_yc=lambda: ([torch.zeros(1)], [torch.ones(1)]))
    server.clients = [one] * 4
    server.aggregate_parameters()
    return server.global_c[0].item()


def sizes(seed):
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        x, _, _ = tools["separate_data"](
            (np.arange(len(LABELS)), LABELS), 10, 10, True, False, "dir"
        )
    return [len(rows) for rows in x]


# It has two packages `utils`; the data set's is loaded by its file.
tools = {}
path = pathlib.Path(os.environ["PFLLIB"], "dataset", "utils", "dataset_utils.py")
exec(compile(path.read_text(), path.name, "exec"), tools)
measured = {
    "cohort": [cohort(0.3, 9), cohort(0.29, 10), cohort(0.05, 10)],
    "weights": share(),
    "batches": [*batches(10), sum(batches(3))],
    "scaffold": control(),
    "dirichlet": sizes(0),
}
print("PFLlib d832e76f6a23")
compare("pfllib", "torch numpy", measured)
PYTHON
