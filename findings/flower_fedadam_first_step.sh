#!/bin/sh
# Flower's FedAdam: the first step is 0.74 of the rate, and neither Adam's nor the paper's.
#
# Guess: Adam's steps for equal updates have the length of the rate from the first round on, and those of
# the FedOpt paper, without bias correction, begin at 0.1 / sqrt(0.01) = 1 times it and grow.  The bias
# is corrected as if one more round had been done, since rounds count from 1 and 1 is added: steps of
# 0.74, 0.86 and 0.91 of the rate.  Other frameworks with the same parameters differ in every round.
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
b1, b2 = 0.9, 0.99
x = np.zeros(1)
strategy = FedAdam(
    initial_parameters=ndarrays_to_parameters([x]), eta=1.0, beta_1=b1, beta_2=b2, tau=1e-9
)
steps = []
for number in range(1, 6):
    reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([x + 1.0]), 10, {})
    parameters, _ = strategy.aggregate_fit(number, [(None, reply), (None, reply)], [])
    (new,) = parameters_to_ndarrays(parameters)
    steps.append((new - x).item())
    x = new
rounds = np.arange(1, 6)
paper = (1 - b1**rounds) / np.sqrt(1 - b2**rounds)
late = paper * np.sqrt(1 - b2 ** (rounds + 1)) / (1 - b1 ** (rounds + 1))
print("updates of 1.  Flower:", np.round(steps, 4), "paper:", paper.round(4), "Adam: 1 in each round")
assert np.allclose(steps, late, atol=1e-6)
assert abs(steps[0] - 0.7425) < 1e-4
assert abs(paper[0] - 1) < 1e-6
PYTHON
