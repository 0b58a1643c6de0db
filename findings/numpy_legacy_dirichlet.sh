#!/bin/sh
# NumPy's RandomState: Dirichlet shares for small alpha are NaN.
#
# Guess: as alpha falls, one class takes everything.  All gamma variates underflow to 0 together, and
# 0 / 0 is NaN: for 10 classes in 13 % of draws at alpha 0.0003 and in half of them at 0.0001.  The
# Generator draws by another rule and gives none.  Partitions of most simulators call the legacy one
# (np.random.dirichlet), so sweeps towards alpha 0 end in NaN shares, which casts to integers hide.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import warnings

import numpy as np

warnings.simplefilter("ignore", RuntimeWarning)  # the division 0 / 0
print("numpy", np.__version__)
for alpha, least, most in ((1e-2, 0, 0), (1e-3, 0.0001, 0.02), (3e-4, 0.08, 0.2), (1e-4, 0.4, 0.6)):
    legacy, new = (
        np.mean([np.isnan(make(s).dirichlet([alpha] * 10)).any() for s in range(300)])
        for make in (np.random.RandomState, np.random.default_rng)
    )
    print(f"alpha {alpha}: NaN in {legacy:.1%} of draws of RandomState, {new:.1%} of Generator")
    assert least <= legacy <= most
    assert new == 0
PYTHON
