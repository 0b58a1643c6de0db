#!/bin/sh
# flax's EarlyStopping: if the first metric is NaN, training stops however well it goes.
#
# Guess: NaN is no best metric, so the first number replaces it.  The first metric is always taken,
# and no number is smaller than NaN.  The first metric is NaN where the validation set of a round is
# empty, as the mean over no examples is.  A NaN in a later round counts as one round without
# progress.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check flax==0.12.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import math

import flax
from flax.training.early_stopping import EarlyStopping

print("flax", flax.__version__)


def rounds(losses):
    """Number of rounds until training stops (None if it does not) and the best loss."""
    stopping = EarlyStopping(min_delta=1e-3, patience=3)
    for number, loss in enumerate(losses, 1):
        stopping = stopping.update(loss)
        if stopping.should_stop:
            return number, stopping.best_metric
    return None, stopping.best_metric


falling = [2.0 * 0.9**k for k in range(50)]
first, second, none = (
    rounds([math.nan, *falling]),
    rounds([falling[0], math.nan, *falling[1:]]),
    rounds(falling),
)
print("NaN in round 1: stops after", first)
print("NaN in round 2: stops after", second)
print("no NaN: stops after", none)
assert first[0] == 5 and math.isnan(first[1])
assert second == none == (None, second[1]) and second[1] < 0.02
PYTHON
