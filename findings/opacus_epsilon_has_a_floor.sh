#!/bin/sh
# Opacus: epsilon does not go to 0 as the noise grows.
#
# Guess: with a hundred times the noise epsilon is about a hundredth.  The RDP accountant's orders end
# at 63, and the conversion at the last order leaves 0.103 for delta 1e-5, whatever the noise; the
# default accountant (PRV) adds its permitted error and stays at 0.01.  Comparisons of mechanisms in
# the region of high privacy compare these floors, and a search for the noise of a smaller epsilon
# has no solution.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy scipy opt_einsum
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps opacus==1.6.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import warnings

import opacus
from opacus.accountants import PRVAccountant, RDPAccountant

warnings.simplefilter("ignore")  # that the largest order is the best one
print("opacus", opacus.__version__)


def epsilon(rule, noise):
    accountant = rule()
    accountant.history = [(noise, 0.01, 100)]
    return accountant.get_epsilon(1e-5)


for noise in (5.0, 50.0, 500.0):
    print(noise, {rule.__name__: epsilon(rule, noise) for rule in (RDPAccountant, PRVAccountant)})
assert abs(epsilon(RDPAccountant, 500.0) - 0.103) < 0.001
assert abs(epsilon(RDPAccountant, 50.0) / epsilon(RDPAccountant, 500.0) - 1) < 0.01
assert 0.009 < epsilon(PRVAccountant, 500.0) < 0.011
PYTHON
