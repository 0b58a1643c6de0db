#!/bin/sh
# Flower's Krum: distances of near models are lost to rounding.
#
# Guess: Krum chooses the model whose neighbours are nearest.  Squared distances are computed from
# norms and products of whole models in their dtype, |a|^2 + |b|^2 - 2 ab.  For float32 models of 10,000
# parameters of size 1 that differ by 1e-4 each, as after a local epoch at a small rate, all squared
# distances of 1e-4 round to multiples of 0.001 or become negative, and another model is chosen than
# with the same numbers in float64.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.multikrum import compute_distances, select_multikrum

print("flwr", importlib.metadata.version("flwr"))
rng = np.random.default_rng(0)
base = rng.normal(size=10_000)
spread = [1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 2e-5, 1e-4]
models = [(base + s * rng.normal(size=base.size)).astype(np.float32) for s in spread]
exact = ((np.stack(models).astype(float)[:, None] - np.stack(models).astype(float)) ** 2).sum(-1)
computed = compute_distances([ArrayRecord({"x": Array(model)}) for model in models])
print("exact", exact[0, 1:].round(6), "computed", computed[0, 1:].round(6))
assert np.abs(computed - exact).max() > exact.max()


def chosen(dtype):
    replies = [
        RecordDict(
            {"x": ArrayRecord({"x": Array(m.astype(dtype))}), "m": MetricRecord({"num-examples": 1})}
        )
        for m in models
    ]
    (selected,) = select_multikrum(replies, 1, 1)
    return next(i for i, reply in enumerate(replies) if reply is selected)


picks = {dtype.__name__: chosen(dtype) for dtype in (np.float32, np.float64)}
print("model 5 is the nearest to all; chosen:", picks)
assert picks["float64"] == 5 != picks["float32"]
PYTHON
