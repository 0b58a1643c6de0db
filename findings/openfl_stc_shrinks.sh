#!/bin/sh
# OpenFL's sparse ternary compression: values are a tenth of the size that they should have.
#
# Guess: of an update with 10 % of its entries kept, each of these becomes plus or minus their mean
# magnitude, as in the paper.  The mean is taken over all entries, the 90 % of zeros included, so the
# update is multiplied by the fraction that is kept: with p = 0.1 by 0.1 and with p = 0.01 by 0.01.
# No residual is kept for the next round, so sparser uploads act as a smaller learning rate.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 dynaconf==3.3.5 tqdm pandas scikit-learn
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps openfl==1.9
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from openfl.pipelines.stc_pipeline import STCPipeline

print("openfl", importlib.metadata.version("openfl"), "numpy", np.__version__)
update = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
for p in (0.5, 0.1, 0.01):
    pipeline = STCPipeline(p_sparsity=p)
    received = pipeline.backward(*pipeline.forward(update))
    kept = received != 0
    mean = np.abs(update[kept]).mean()
    size = np.abs(received[kept]).mean()
    print(f"p {p}: kept {kept.mean():.2f}, mean of those {mean:.4f}, received {size:.4f}")
    assert abs(kept.mean() - p) < 1e-3
    assert np.isclose(size, p * mean, rtol=1e-3)
PYTHON
