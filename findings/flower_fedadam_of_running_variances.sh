#!/bin/sh
# Flower's FedAdam takes steps with running variances, too, and they become negative.
#
# Guess: the server's optimizer moves weights, and running statistics are averaged.  All arrays of the
# state get Adam's step, whose length does not depend on the size of the update: a running variance of
# 0.05 for which every client reports 0.02 becomes -0.024, and the evaluated model gives NaN.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr==1.42.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import logging

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAdam

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))


def state(mean, variance):
    return ndarrays_to_parameters([np.array([x], np.float32) for x in (1.0, 0.0, mean, variance)])


strategy = FedAdam(initial_parameters=state(0.3, 0.05))
reply = FitRes(Status(Code.OK, ""), state(0.3, 0.02), 10, {})
parameters, _ = strategy.aggregate_fit(1, [(None, reply), (None, reply)], [])
weight, bias, mean, variance = parameters_to_ndarrays(parameters)
print("running variance 0.05, of all clients 0.02, after FedAdam:", variance)
with np.errstate(invalid="ignore"):
    output = weight * (1.0 - mean) / np.sqrt(variance + 1e-5) + bias
print("normalised in evaluation:", output)
assert -0.03 < variance.item() < -0.02
assert np.isnan(output).all()
PYTHON
