#!/bin/sh
# dp-accounting: at a small delta the PLD accountant's epsilon is above RDP's, then infinite.
#
# Guess: privacy loss distributions are tighter than Renyi's at every delta.  Their tails are cut at a
# mass of about 1e-15 per convolution, which counts as an infinite loss: at delta 1e-14 the default PLD
# accountant's epsilon is 8.6 where RDP proves 5.0, and at 1e-16 it is infinite.  Populations so large
# that delta is 1e-14 are rare, composed or split deltas are not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dp-accounting==0.6.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import math

from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

print("dp-accounting", importlib.metadata.version("dp-accounting"))
sampled = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
event = dp_event.SelfComposedDpEvent(sampled, 1000)
found = {}
for delta in (1e-5, 1e-12, 1e-14, 1e-16):
    found[delta] = [rule().compose(event).get_epsilon(delta) for rule in (PLDAccountant, RdpAccountant)]
    print(f"delta {delta}: PLD {found[delta][0]:.3f}, RDP {found[delta][1]:.3f}")
assert found[1e-5][0] < found[1e-5][1]
assert found[1e-12][0] < found[1e-12][1]
assert found[1e-14][0] > 1.5 * found[1e-14][1]
assert math.isinf(found[1e-16][0]) and found[1e-16][1] < 6
PYTHON
