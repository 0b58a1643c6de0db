#!/bin/sh
# ByzFL's SMEA: in high dimensions the choice of the clients is chance, and a far outlier often stays.
#
# Guess: of all subsets of n - f vectors the one whose covariance has the smallest largest eigenvalue is
# averaged, so that nine vectors of norm 32 and one of norm 100 in 1000 dimensions give the mean of
# the nine.  The eigenvalue is the length after one step of the power method from a random vector, a new one
# for each subset, so that a direction is seen by chance.  The outlier is in the mean in half of the
# calls, the vectors being the same in each; with a norm of 300, ten times the others', still in one of 17.
# CAF replaces its largest eigenvalue in the same way.
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


def kept(norm, calls=200, dimension=1000):
    """Share of the calls whose mean contains the outlier, and whether the right subset contains it."""
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(10, dimension))
    vectors[-1] *= norm / np.linalg.norm(vectors[-1])
    honest = vectors[:-1].mean(axis=0)
    largest = []
    for left_out in range(10):
        rest = np.delete(vectors, left_out, axis=0)
        largest.append(np.linalg.norm(rest - rest.mean(axis=0), 2))
    rule = byzfl.SMEA(f=1)
    np.random.seed(1)
    count = sum(not np.allclose(rule(vectors), honest) for _ in range(calls))
    return count / calls, int(np.argmin(largest)) != 9


shares = {norm: kept(norm) for norm in (100, 300, 1000)}
for norm, (share, exact) in shares.items():
    print(f"outlier of norm {norm}: in the mean in {share:.1%} of the calls, by exact eigenvalues {exact}")
assert not any(exact for _, exact in shares.values())
assert shares[100][0] > 0.25 and shares[300][0] > 0.02
PYTHON
