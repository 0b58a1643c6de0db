#!/bin/sh
# ByzFL's geometric median: three steps from the origin, so that it depends on where the origin is.
#
# Guess: vectors that are all moved by a common shift have their geometric median moved by it.  Iterations
# start from 0, three by default, and weigh vectors by the inverse of their distance.  For models, whose
# common part is large beside their differences, all distances to 0 are nearly equal, and three steps are
# not enough to leave the mean.  Of nine vectors and six 1000 away the result is 2.5 from the mean of the
# nine if they lie around the origin, 173 if all are moved by 1000 and 228 by 10000; the plain mean is
# 400 away.  With T=1000 it is 2.6 wherever the vectors are.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 scipy
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps byzfl==0.0.11
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
from unittest import mock

import numpy as np
import torch

# only parts that are not used here need these
sys.modules.update({name: mock.MagicMock() for name in ("torchvision", "seaborn", "matplotlib", "matplotlib.pyplot")})
import byzfl

print("byzfl", importlib.metadata.version("byzfl"), "torch", torch.__version__)


def error(shift, steps):
    """Distance of the median of nine honest vectors and six others to the mean of the nine."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(15, 10))
    honest = vectors[:9].mean(axis=0)
    vectors[9:, 0] += 1000
    vectors[:, 1] += shift
    honest[1] += shift
    return np.linalg.norm(byzfl.GeometricMedian(T=steps)(vectors) - honest).item()


found = {shift: (error(shift, 3), error(shift, 1000)) for shift in (0, 100, 1000, 10000)}
for shift, (default, many) in found.items():
    print(f"all vectors moved by {shift}: distance to the nine {default:.2f}, after 1000 steps {many:.2f}")
assert found[0][0] < 4 and found[1000][0] > 100 and found[10000][0] > 200
assert all(many < 4 for _, many in found.values())
PYTHON
