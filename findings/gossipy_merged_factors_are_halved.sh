#!/bin/sh
# gossipy's matrix factorisation: the merge of two equal models is half of it.
#
# Guess: factors of the items are averaged with the numbers of updates as weights, so equal models stay as they
# are.  The weighted sum is divided by twice the sum of the weights.  Each merge halves all factors and biases
# of the items: after ten merges without training they are a thousandth of what they were, and every rating is
# predicted as the bias of the user.  Training between merges has to double them each time.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 dill rich pandas pyparsing
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps gossipy-dfl==0.0.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import sys
from unittest import mock

# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "matplotlib", "matplotlib.pyplot")})
import numpy as np
from gossipy.model.handler import MFModelHandler

print("gossipy-dfl", importlib.metadata.version("gossipy-dfl"))
np.random.seed(0)
model = MFModelHandler(dim=2, n_items=3)
model.init()
ratios = []
_, (factors, biases) = model.model
for _ in range(10):
    model._merge(model.copy())
    _, (merged, merged_biases) = model.model
    ratios.append(float(np.mean(merged / factors)))
    assert np.allclose(merged_biases / biases, ratios[-1])
print("factors and biases after 1, 2, 3 and 10 merges of equal models, as part of those before:")
print(*(ratios[i] for i in (0, 1, 2, 9)))
assert ratios == [0.5 ** (i + 1) for i in range(10)]
PYTHON
