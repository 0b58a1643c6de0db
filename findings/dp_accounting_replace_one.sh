#!/bin/sh
# dp-accounting: under REPLACE_ONE its two accountants give one Gaussian event different meanings.
#
# Loss distributions are exact for the Gaussian mechanism and Renyi divergences bound it from above,
# so one expects the PLD accountant's epsilon to be the smaller one, as under add-or-remove-one.
# Under REPLACE_ONE it is twice as large: the PLD accountant doubles the sensitivity of the event
# itself, while the RDP accountant takes the noise multiplier per unit of the sensitivity to a
# replacement.  A noise multiplier that was calibrated with one must not be reported with the other.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dp-accounting==0.6.0
"$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import dp_accounting as dp
from dp_accounting import pld, rdp

print("dp-accounting", importlib.metadata.version("dp-accounting"))
event, relations, delta = dp.GaussianDpEvent(2.0), dp.NeighboringRelation, 1e-5


def both(relation, event):
    accountants = pld.PLDAccountant(relation), rdp.RdpAccountant(neighboring_relation=relation)
    return [float(accountant.compose(event).get_epsilon(delta)) for accountant in accountants]


absent = both(relations.ADD_OR_REMOVE_ONE, event)
replaced = both(relations.REPLACE_ONE, event)
halved = both(relations.REPLACE_ONE, dp.GaussianDpEvent(1.0))
print("PLD and RDP of noise 2 under add-or-remove-one:", absent)
print("PLD and RDP of noise 2 under replace-one:", replaced)
print("RDP of noise 1 under replace-one:", halved[1])
assert absent[0] < absent[1] < 1.15 * absent[0]
assert replaced[0] > 2 * replaced[1]
assert replaced[1] == absent[1]
assert replaced[0] < halved[1] < 1.15 * replaced[0]
PYTHON
