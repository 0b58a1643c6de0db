#!/bin/sh
# gossipy's k-means: matching="hungarian" averages centroids by their numbers, as "naive" does.
#
# Guess: centroids of two nodes are paired so that the sum of distances is least, and a model and the same one
# in another order give that model.  The assignment has two arrays, rows and columns; the rows are taken, which
# are 0, 1, 2, ... in that order.  Centroids 0 and 10 merged with 10 and 0 are 5 and 5 in both modes, so
# clusters collapse, and a comparison of the two modes compares one with itself.
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
import torch
from gossipy.model.handler import KMeansHandler

print("gossipy-dfl", importlib.metadata.version("gossipy-dfl"), "torch", torch.__version__)


def merged(matching, first, second):
    nodes = []
    for centroids in (first, second):
        node = KMeansHandler(k=len(centroids), dim=1, matching=matching)
        node.model = torch.tensor(centroids).reshape(-1, 1)
        nodes.append(node)
    nodes[0]._merge(nodes[1])
    return nodes[0].model.flatten().tolist()


for matching in ("naive", "hungarian"):
    print(matching, "0, 10 with 10, 0:", merged(matching, [0.0, 10.0], [10.0, 0.0]))
    assert merged(matching, [0.0, 10.0], [10.0, 0.0]) == [5, 5]
generator = torch.Generator().manual_seed(0)
for _ in range(100):
    first, second = torch.rand(2, 8, generator=generator).tolist()
    assert merged("naive", first, second) == merged("hungarian", first, second)
print("equal for 100 random pairs of models with eight centroids")
PYTHON
