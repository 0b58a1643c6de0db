#!/bin/sh
# Flower's adaptive clipping: the bound moves away from the quantile, to 0 or to infinity.
#
# Guess: the bound C goes to the quantile of the norms that is asked for: C exp(-0.2 (b - 0.5)), where b is
# the fraction of updates whose norm is at most C, as in the paper.  Here b is the fraction that was
# clipped, with the same sign, so a bound that is too small becomes smaller.  For updates of norms 0.5 to
# 1.5 and the recommended start 0.1 it is 0.00005 after 75 rounds and training stands still; a start at 2
# grows to 3,600, and the noise with it.  Both wrappers, for clipping by the server and by clients, have it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flwr==1.42.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import logging

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))
norms = np.linspace(0.5, 1.5, 20)


class NoClients(SimpleClientManager):
    def sample(self, *rest, **named):
        return []


def bounds(start, rounds):
    rule = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), noise_multiplier=0.0, num_sampled_clients=len(norms), initial_clipping_norm=start
    )
    found = [start]
    for number in range(rounds):
        rule.configure_fit(number, ndarrays_to_parameters([np.zeros(1)]), NoClients())
        replies = [
            (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.array([x])]), 10, {}))
            for x in norms
        ]
        parameters, _ = rule.aggregate_fit(number, replies, [])
        found.append(rule.clipping_norm)
    return found, parameters_to_ndarrays(parameters)[0].item()


def paper(start, rounds):
    bound = start
    for _ in range(rounds):
        bound *= np.exp(-0.2 * ((norms <= bound).mean() - 0.5))
    return bound


print("norms from 0.5 to 1.5, their median is", np.median(norms))
for start, limit in ((0.1, 1e-4), (2.0, 1e3)):
    found, step = bounds(start, 75)
    print(f"start {start}: bound after 1, 10 and 75 rounds {found[1]:.4f} {found[10]:.4f} {found[75]:.6g},")
    print(f"  step of the model in the last round {step:.6f}, bound by the rule of the paper {paper(start, 75):.4f}")
    assert found[75] < limit if start < 1 else found[75] > limit
    assert abs(paper(start, 75) - 1) < 0.1
PYTHON
