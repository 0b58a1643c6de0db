#!/bin/sh
# prv_accountant: for composed mechanisms of pure privacy its upper bound of epsilon is below epsilon.
#
# Guess: of the three numbers for epsilon the last one is never too small.  The range of privacy losses that is
# kept is taken from Renyi divergences, and that of a mechanism with epsilon e is given as e (a - 1) / a at
# order a, a half of e at order 2, where randomised response has nearly e.  Losses beyond the range come
# back at its other end.  Ten rounds of randomised response with e = 5 cost 50, and the bound is 40; a hundred
# with e = 1 cost 80, and it is 70.  With eps_max = 200 the bounds hold.  As long as many small losses
# make a moderate epsilon, nothing is wrong.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 prv_accountant==0.2.0
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import numpy as np
import scipy
from prv_accountant import PRVAccountant, PureDPMechanism
from scipy.optimize import brentq
from scipy.stats import binom

print("prv_accountant", importlib.metadata.version("prv_accountant"), "scipy", scipy.__version__)
DELTA = 1e-5


def exact(epsilon, rounds):
    """Epsilon of rounds of randomised response: the losses of all outcomes are enumerated."""
    right = np.arange(rounds + 1)
    probability = binom.pmf(right, rounds, 1 / (1 + np.exp(-epsilon)))
    loss = (2 * right - rounds) * epsilon
    return brentq(
        lambda e: np.sum(probability * np.maximum(0, -np.expm1(np.minimum(0, e - loss)))) - DELTA,
        0,
        rounds * epsilon + 1,
    )


def bounds(epsilon, rounds, largest):
    accountant = PRVAccountant(
        prvs=[PureDPMechanism(epsilon)],
        max_self_compositions=[rounds],
        eps_error=0.05,
        delta_error=1e-8,
        eps_max=largest,
    )
    lower, _, upper = accountant.compute_epsilon(DELTA, [rounds])
    return lower, upper


share = 1 / (1 + np.exp(-5.0))
divergence = np.log(share**2 / (1 - share) + (1 - share) ** 2 / share)
print(f"Renyi divergence of order 2 for epsilon 5: {PureDPMechanism(5.0).rdp(2)}, enumerated {divergence:.2f}")
found = {}
for epsilon, rounds in ((0.1, 100), (1.0, 10), (1.0, 100), (2.0, 50), (5.0, 10)):
    true, default = exact(epsilon, rounds), bounds(epsilon, rounds, None)
    wide = bounds(epsilon, rounds, 200)
    found[epsilon, rounds] = true, default, wide
    print(
        f"{rounds} rounds with {epsilon}: epsilon {true:.2f}, bounds {default[0]:.2f} and {default[1]:.2f},"
        f" with eps_max=200 {wide[0]:.2f} and {wide[1]:.2f}"
    )
for case, (true, default, wide) in found.items():
    assert wide[0] < true < wide[1]
    assert (default[1] < true - 5) == (case in ((1.0, 100), (2.0, 50), (5.0, 10)))
PYTHON
