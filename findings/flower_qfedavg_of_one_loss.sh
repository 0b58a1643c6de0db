#!/bin/sh
# Flower's q-FedAvg: all clients have the same loss, so that q does not favour the worst.
#
# Guess: each client's update is weighed by its own loss to the power q, so that a large q trains
# for the clients with the largest losses.  flwr.server.strategy.QFedAvg takes the loss that the
# server's evaluate_fn gives for the global model, one number for all clients.  Of updates 1 and -1,
# from clients with losses 4 and 0.04, the result is 0 for every q; the rule moves 0.16 to the first
# with q = 1.  A sweep over q is a sweep over rates of the server.  The class of this name in
# flwr.serverapp takes each client's loss.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr==1.42.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import logging
import types

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import QFedAvg

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))
RATE = 0.1
LOSSES, UPDATES = (4.0, 0.04), (1.0, -1.0)


def flower(q):
    """The model after one round from 0."""
    mean = sum(LOSSES) / len(LOSSES)
    strategy = QFedAvg(
        q_param=q, qffl_learning_rate=RATE, evaluate_fn=lambda number, model, config: (mean, {})
    )
    manager = SimpleClientManager()
    manager.register(types.SimpleNamespace(cid="0"))
    strategy.configure_fit(1, ndarrays_to_parameters([np.zeros(1)]), manager)
    sent = []
    for update, loss in zip(UPDATES, LOSSES, strict=True):
        parameters = ndarrays_to_parameters([np.array([update])])
        sent.append(FitRes(Status(Code.OK, ""), parameters, 10, {"loss": loss}))
    parameters, _ = strategy.aggregate_fit(1, [(None, result) for result in sent], [])
    return parameters_to_ndarrays(parameters)[0].item()


def paper(q):
    steps = [-update / RATE for update in UPDATES]
    total = sum(loss**q * step for loss, step in zip(LOSSES, steps, strict=True))
    scale = sum(
        q * loss ** (q - 1) * step**2 + loss**q / RATE
        for loss, step in zip(LOSSES, steps, strict=True)
    )
    return -total / scale


for q in (0.0, 0.2, 1.0, 5.0):
    print(f"q = {q}: Flower {flower(q):.4f}, paper {paper(q):.4f}")
    assert abs(flower(q)) < 1e-12
    assert paper(q) > 0.02 or q == 0
PYTHON
