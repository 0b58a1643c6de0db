#!/bin/sh
# dp-accounting: RDP of 10 or 19 of 20 records sampled without replacement exceeds that of all 20.
#
# Leaving records out at random is expected to cost at most as much as always using all of them.
# The accountant's bound is made for small samples: over 100 rounds with noise 10, half of the
# records cost more than all of them, and 19 of 20 more than twice as much.  The mechanism without
# sampling has a valid bound itself, so the smaller of the two numbers holds.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dp-accounting==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import dp_accounting as dp
from dp_accounting import rdp

print("dp-accounting", importlib.metadata.version("dp-accounting"))


def epsilon(size, rounds):
    event = dp.SampledWithoutReplacementDpEvent(20, size, dp.GaussianDpEvent(10.0))
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(1e-3))


values = {size: round(epsilon(size, 100), 2) for size in (1, 5, 10, 19, 20)}
print("epsilon of 100 rounds by the size of the sample of 20:", values)
assert values[1] < values[5] < values[20]
assert values[10] > values[20]
assert values[19] > 2 * values[20]
PYTHON
