#!/bin/sh
# Flower's private strategies: noise is made for equal weights, while the mean is weighted by examples.
#
# Guess: the wrapper for differential privacy sees to it that noise over sensitivity is the multiplier that
# was given.  Updates are clipped to C and get noise z C / n, but FedAvg inside weights them by numbers of
# examples that clients report: one with half of all examples moves the mean by up to C / 2, not C / n.
# With 100 clients and z = 1 its protection is that of a multiplier of 0.02.  It takes no extreme: with
# log-normal sizes (sigma 1.5) the largest of 100 clients has a seventh of what was asked for.
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
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

logging.disable(logging.CRITICAL)
print("flwr", importlib.metadata.version("flwr"))
entries, bound = 10_000, 1.0


class NoClients(SimpleClientManager):
    def sample(self, *rest, **named):
        return []


def mean(sizes, updates, multiplier):
    np.random.seed(0)
    rule = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), noise_multiplier=multiplier, clipping_norm=bound, num_sampled_clients=len(sizes)
    )
    rule.configure_fit(1, ndarrays_to_parameters([np.zeros(entries)]), NoClients())
    replies = [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([x]), int(size), {}))
        for size, x in zip(sizes, updates)
    ]
    parameters, _ = rule.aggregate_fit(1, replies, [])
    return parameters_to_ndarrays(parameters)[0]


def multiplier(sizes):
    """Deviation of the noise for z = 1 over the most that the client with most examples can change."""
    largest = int(np.argmax(sizes))
    updates = [np.full(entries, 5.0) for _ in sizes]
    others = [-x if i == largest else x for i, x in enumerate(updates)]
    moved = np.linalg.norm(mean(sizes, updates, 0.0) - mean(sizes, others, 0.0)) / 2
    noise = (mean(sizes, updates, 1.0) - mean(sizes, updates, 0.0)).std()
    return noise / moved


equal = np.full(100, 20)
half = np.array([20] * 99 + [20 * 99])
skewed = np.round(np.exp(np.random.default_rng(0).normal(4, 1.5, 100))).astype(int) + 1
found = {
    name: multiplier(sizes)
    for name, sizes in (("equal", equal), ("one has half", half), ("log-normal", skewed))
}
for name, value in found.items():
    print(f"sizes {name}: multiplier 1 asked for, {value:.4f} for the largest client")
assert abs(found["equal"] - 1) < 0.05
assert abs(found["one has half"] - 0.02) < 0.001
assert found["log-normal"] < 0.15
PYTHON
