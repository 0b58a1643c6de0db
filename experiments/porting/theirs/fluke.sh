#!/bin/sh
# Column "theirs" of fluke in docs/coming_from/table.toml, by running it.
# Without its trackers and its data sets, which these parts do not use.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy rich diskcache omegaconf psutil typer torchmetrics matplotlib pandas scikit-learn seaborn cerberus
pip --no-deps fluke-fl==0.8.1
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import types

import torch
from compare import compare
from fluke.algorithms.fedavgm import FedAVGMServer
from fluke.algorithms.fednova import FedNovaServer
from fluke.algorithms.fedopt import FedOptServer
from fluke.algorithms.scaffold import SCAFFOLDServer
from fluke.comm import Message
from fluke.data import FastDataLoader
from fluke.server import Server


class Scalar(torch.nn.Module):
    def __init__(self, value=0.0):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([float(value)]))


def built(kind, examples, **settings):
    clients = [
        types.SimpleNamespace(index=i, n_examples=n, set_channel=lambda _: None)
        for i, n in enumerate(examples)
    ]
    return kind(Scalar(), None, clients, **settings), clients


def three_rounds(kind, **settings):
    server, clients = built(kind, [1], **settings)
    path = []
    for _ in range(3):
        server.aggregate(clients, [Scalar(server.model.x.item() + 1)])
        path.append(server.model.x.item())
    return path


def share(**settings):
    server, clients = built(Server, [10, 30], **settings)
    server.aggregate(clients, [Scalar(0), Scalar(1)])
    return server.model.x.item()


def control():
    server, clients = built(SCAFFOLDServer, [1] * 4)
    for client in clients[:2]:
        message = Message({"x": torch.ones(1)}, "control", client.index, inmemory=True)
        server.channel.send(message, "server")
    server.aggregate(clients[:2], [Scalar(), Scalar()])
    return server.control["x"].item()


def fednova(start):
    server, clients = built(FedNovaServer, [1, 1])
    server.model.x.data.fill_(start)
    for client, steps in zip(clients, (1.0, 3.0), strict=True):
        server.channel.send(Message(steps, "local_a", client.index, inmemory=True), "server")
    server.aggregate(clients, [Scalar(start + 1), Scalar(start + 3)])
    return server.model.x.item() - start


def cohort(fraction, clients):
    return len(built(Server, [1] * clients)[0].get_eligible_clients(fraction))


def fedopt(mode):
    return three_rounds(FedOptServer, mode=mode, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)


nine = FastDataLoader(torch.arange(9.0), torch.arange(9), num_labels=9, batch_size=4)
measured = {
    "adam": fedopt("adam"),
    "yogi": fedopt("yogi"),
    "adagrad": fedopt("adagrad"),
    "momentum": three_rounds(FedAVGMServer, momentum=0.9, lr=0.1),
    "batches": [len(x) for x, _ in nine],
    "cohort": [cohort(0.3, 9), cohort(0.29, 10), cohort(0.05, 10)],
    "weights": [share(), share(weighted=True)],
    "scaffold": control(),
    "fednova": [fednova(0.0), fednova(10.0)],
}
compare("fluke", "fluke-fl torch", measured)
PYTHON
