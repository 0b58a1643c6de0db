#!/bin/sh
# declearn's gradient masked averaging: with threshold 0 it is not FedAvg, as its description says.
#
# Guess: a coordinate of the mean is multiplied by the agreement of the signs, |mean(sign)|, where
# this is below the threshold, and kept otherwise, so that threshold 0 is FedAvg.  The agreement is
# compared by > and not by >=, so that coordinates with as many clients for as against become 0.
# With random updates half of all coordinates are lost for 2 clients, 37 % for 4 and 25 % for 10,
# none for odd numbers: a sweep over cohorts shows a penalty of even ones.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    declearn==2.9.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from declearn.aggregator import AveragingAggregator, GradientMaskedAveraging
from declearn.model.sklearn import NumpyVector

print("declearn", importlib.metadata.version("declearn"))
COORDINATES = 20_000


def mean(rule, updates):
    shared = [rule.prepare_for_sharing(NumpyVector({"w": update}), 1) for update in updates]
    total = shared[0]
    for other in shared[1:]:
        total = total.aggregate(other)
    return rule.finalize_updates(total).coefs["w"]


lost = {}
for clients in (2, 3, 4, 5, 10):
    updates = np.random.default_rng(0).normal(size=(clients, COORDINATES))
    plain = mean(AveragingAggregator(), updates)
    masked = mean(GradientMaskedAveraging(threshold=0.0), updates)
    assert np.allclose(plain, updates.mean(axis=0))
    even = np.sign(updates).sum(axis=0) == 0
    assert (masked[even] == 0).all() and np.allclose(masked[~even], plain[~even])
    lost[clients] = np.mean(masked == 0)
    print(f"{clients} clients: {lost[clients]:.1%} of the coordinates are 0 with threshold 0")
assert lost[3] == lost[5] == 0
for clients, share in {2: 1 / 2, 4: 3 / 8, 10: 63 / 256}.items():
    assert abs(lost[clients] - share) < 0.02
PYTHON
