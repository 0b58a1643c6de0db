#!/bin/sh
# p2pfl's top-k compression: the largest values are sent, not those of the largest magnitude.
#
# Guess: the entries of the largest magnitude are kept, as in every paper on top-k, so that of normal
# weights half of those sent are negative and 10 % of the entries have 44 % of the squared length.
# Values are sorted with their sign: no negative entry of normal weights is sent, so their mean moves.
# Of a layer of -1, -0.9, ..., -0.1 the smallest number in magnitude is sent and the rest becomes 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==1.26.4
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --no-deps p2pfl==0.4.4
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import sys
from unittest import mock

import numpy as np

# Another compressor of the package needs these; they are not used here.
sys.modules.update({name: mock.MagicMock() for name in ("opendp", "opendp.prelude")})
from p2pfl.learning.compression.topk_strategy import TopKSparsification

print("p2pfl", importlib.metadata.version("p2pfl"), "numpy", np.__version__)


def received(layer, k):
    """The layer that arrives."""
    rule = TopKSparsification()
    return rule.reverse_strategy(*rule.apply_strategy([layer], k=k))[0]


def by_magnitude(layer, k):
    kept = np.argsort(-np.abs(layer))[: int(k * layer.size)]
    return np.where(np.isin(np.arange(layer.size), kept), layer, 0)


layer = np.random.default_rng(0).normal(size=10_000)
found = {}
for name, rule in (("p2pfl", received), ("by magnitude", by_magnitude)):
    sent = rule(layer, 0.1)
    negative = np.sum(sent < 0) / np.sum(sent != 0)
    length = np.sum(sent**2) / np.sum(layer**2)
    found[name] = np.sum(sent != 0), negative, length, sent.mean()
    print(f"{name}: {np.sum(sent != 0)} entries sent, {negative:.1%} of them negative,")
    print(f"    {length:.1%} of the squared length, mean {sent.mean():.3f} where the layer's is {layer.mean():.3f}")
assert found["p2pfl"][0] == found["by magnitude"][0] == 1000
assert found["p2pfl"][1] == 0 and abs(found["by magnitude"][1] - 0.5) < 0.05
assert found["p2pfl"][2] < 0.35 and found["by magnitude"][2] > 0.4
assert found["p2pfl"][3] > 0.15 and abs(found["by magnitude"][3]) < 0.02

falling = -np.arange(10, 0, -1) / 10
print("of", falling, "arrives", received(falling, 0.1), "and by magnitude", by_magnitude(falling, 0.1))
assert received(falling, 0.1).tolist() == [0.0] * 9 + [-0.1]
assert by_magnitude(falling, 0.1).tolist() == [-1.0] + [0.0] * 9
PYTHON
