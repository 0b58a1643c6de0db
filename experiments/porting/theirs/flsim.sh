#!/bin/sh
# Column "theirs" of flsim in docs/coming_from/table.toml, by running it.
# Python 3.11 refuses its settings as defaults of others unless they have hashes, so they get some.
# Its channels import torchvision, which these parts do not use: a stand-in.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }
pip torch==2.13.0 numpy scikit-learn pandas tqdm opacus==1.6.0 hydra-core==1.3.2 omegaconf==2.3.0
pip --no-deps flsim==0.1.0
PYTHONPATH="$here" "$folder/venv/bin/python" - <<'PYTHON'
import dataclasses
import sys
from unittest import mock

import torch
from compare import compare
from hydra.utils import instantiate

for name in ("", ".datasets", ".models", ".transforms"):
    sys.modules["torchvision" + name] = mock.MagicMock()
dataclass = dataclasses.dataclass


def with_hash(cls=None, **settings):
    if cls is None:
        return dataclass(**settings)
    return dataclass(cls, unsafe_hash=cls.__module__.startswith("flsim"), **settings)


with mock.patch.object(dataclasses, "dataclass", with_hash):
    from flsim.channels.message import Message
    from flsim.optimizers import async_aggregators as late
    from flsim.optimizers import server_optimizers as rules
    from flsim.servers.aggregator import AggregationType
    from flsim.servers.sync_servers import SyncServer
    from flsim.utils.async_trainer.async_staleness_weights import PolynomialStalenessWeight


class Scalar(torch.nn.Module):
    def __init__(self, value=0.0):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor([float(value)]))

    def fl_get_module(self):
        return self


def after_round(server, changes, weights):
    server.init_round()
    for change, weight in zip(changes, weights, strict=True):
        server.receive_update_from_client(Message(Scalar(-change), weight=weight))
    server.step()
    return server.global_model.x.item()


def path(rule):
    server = SyncServer(global_model=Scalar(), server_optimizer=rule)
    return [after_round(server, [1.0], [1.0]) for _ in range(3)]


def share(**settings):
    return after_round(SyncServer(global_model=Scalar(), **settings), [0.0, 1.0], [10, 30])


def moved(settings, uploads, average_age):
    server = instantiate(settings, global_model=Scalar())
    staleness = PolynomialStalenessWeight(exponent=0.5, avg_staleness=average_age)
    for _ in range(uploads):
        server.zero_grad()
        server.on_client_training_end(Scalar(-1.0), Scalar(1.0), staleness.weight(3))
    return server.global_model.x.item()


single = late.FedAvgWithLRAsyncAggregatorConfig(lr=0.5)
momentum = late.FedAvgWithLRWithMomentumAsyncAggregatorConfig(lr=0.5)
buffer = late.FedAvgWithLRFedBuffAggregatorConfig(lr=0.5, buffer_size=2)
measured = {
    "adam": path(rules.FedAdamOptimizerConfig(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3)),
    "momentum": path(rules.FedAvgWithLROptimizerConfig(lr=0.1, momentum=0.9)),
    "weights": [share(), share(aggregation_type=AggregationType.AVERAGE)],
    "fedasync": [moved(single, 1, average_age) for average_age in (1, 0)],
    "fedasync-momentum": moved(momentum, 1, 0),
    "fedbuff": [moved(buffer, 2, average_age) for average_age in (1, 0)],
}
compare("flsim", "flsim torch", measured)
PYTHON
