#!/bin/sh
# APPFL's FedBuff: a client that changed nothing takes back the work of others.
#
# Guess: the buffer holds updates, what a client's training added to the model that it had received, as
# in the paper.  It holds differences to the server's model at arrival: after another client has moved
# the model from 0 to 1, a slow client that received 0 and returns 0 contributes -1.  A buffer of two
# unchanged models of round 0 moves the model back by the rate, and with rate 1 to 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy omegaconf opacus==1.6.0 packaging
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps appfl==1.12.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import torch
from appfl.algorithm.aggregator import FedBuffAggregator
from omegaconf import DictConfig

print("appfl", importlib.metadata.version("appfl"), "torch", torch.__version__)


def models(rate):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    config = {"K": 2, "num_clients": 2, "alpha": rate, "staleness_fn": "constant"}
    config |= {"staleness_fn_kwargs": {}, "client_weights_mode": "equal"}
    server = FedBuffAggregator(model, DictConfig(config))
    path = []
    for client, value in (("a", 2.0), ("b", 0.0), ("c", 0.0), ("d", 0.0)):
        state = server.aggregate(client, {"weight": torch.full((1, 1), value)})
        path.append(state["weight"].item())
    return path


for rate in (1.0, 0.5):
    print(f"rate {rate}: model after updates of 2, 0, 0 and 0, all from model 0:", models(rate))
assert models(1.0) == [0, 1, 1, 0]
assert models(0.5) == [0, 0.5, 0.5, 0.25]
PYTHON
