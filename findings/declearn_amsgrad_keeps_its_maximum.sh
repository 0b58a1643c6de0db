#!/bin/sh
# declearn's AMSGrad: the reset at the start of a round leaves the maximum, which divides the steps.
#
# Guess: with round_reset a round starts as the first one did.  The moments and the count of steps
# become 0, but the reset sets v_max where the rule reads vmax, so that the largest second moment of
# all past rounds stays.  After a round with gradients of 1, steps of a round with gradients of
# 0.001 have length 0.001 and not 1.  With Adam the reset is complete.  A client's first minibatch,
# with the largest gradients, sets the rate of all its later rounds.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    declearn==2.9.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from declearn.model.sklearn import NumpyVector
from declearn.optimizer.modules import AdamModule

print("declearn", importlib.metadata.version("declearn"))


def step_after_a_round(largest, amsgrad, reset):
    """The first step for a gradient of 0.001 after a round of 10 gradients of one size."""
    rule = AdamModule(amsgrad=amsgrad, round_reset=reset)
    for _ in range(10):
        rule.run(NumpyVector({"w": np.array([largest])}))
    rule.on_round_start()
    return rule.run(NumpyVector({"w": np.array([1e-3])})).coefs["w"].item()


fresh = AdamModule(amsgrad=True).run(NumpyVector({"w": np.array([1e-3])})).coefs["w"].item()
print(f"gradient 0.001, first step of a new AMSGrad: {fresh:.4f}")
found = {}
for amsgrad in (False, True):
    for reset in (False, True):
        found[amsgrad, reset] = step_after_a_round(1.0, amsgrad, reset)
        name = "AMSGrad" if amsgrad else "Adam"
        print(f"{name} after a round of gradients of 1, {reset=}: {found[amsgrad, reset]:.4f}")
assert abs(fresh - 1) < 1e-3
assert abs(found[False, True] - 1) < 1e-3
assert abs(found[True, True]) < 2e-3
assert abs(step_after_a_round(1e-3, True, True) - 1) < 1e-3
PYTHON
