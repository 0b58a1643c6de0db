#!/bin/sh
# Column "theirs" of appfl in docs/coming_from/table.toml, by running it.
# Without its communicators, which these parts do not use.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy omegaconf opacus==1.6.0 packaging
pip --no-deps appfl==1.12.0
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import torch
from appfl.algorithm import aggregator as aggregators
from compare import compare
from omegaconf import DictConfig

RULE = {
    "server_learning_rate": 0.1,
    "server_momentum_param_1": 0.9,
    "server_momentum_param_2": 0.99,
    "server_adapt_param": 1e-3,
}
LATE = {"alpha": 0.5, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}, "K": 2}


class Scalar(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))


def model(value):
    return {"x": torch.tensor([float(value)])}


def three_rounds(kind):
    server, x, path = kind(Scalar(), DictConfig(RULE)), 0.0, []
    for _ in range(3):
        x = server.aggregate({"a": model(x + 1)})["x"].item()
        path.append(x)
    return path


def share(**settings):
    server = aggregators.FedAvgAggregator(Scalar(), DictConfig(settings))
    server.client_sample_size = {"a": 10, "b": 30}
    return server.aggregate({"a": model(0), "b": model(1)})["x"].item()


def late(kind, uploads, **settings):
    server = kind(Scalar(), DictConfig({**LATE, **settings}))
    server.global_step = 3
    for client in uploads:
        result = server.aggregate(client, model(1))
    return result["x"].item()


measured = {
    "adam": three_rounds(aggregators.FedAdamAggregator),
    "yogi": three_rounds(aggregators.FedYogiAggregator),
    "adagrad": three_rounds(aggregators.FedAdagradAggregator),
    "momentum": three_rounds(aggregators.FedAvgMAggregator),
    "weights": [share(), share(client_weights_mode="sample_size")],
    "fedasync": [
        late(aggregators.FedAsyncAggregator, "a"),
        late(aggregators.FedAsyncAggregator, "a", num_clients=4),
    ],
    "fedbuff": late(aggregators.FedBuffAggregator, "ab", num_clients=4),
}
compare("appfl", "appfl torch", measured)
PYTHON
