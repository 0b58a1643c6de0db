#!/bin/sh
# JAX's truncated normal numbers: between 6 and 7 there is one, 7.
#
# Guess: most numbers between 6 and 7 are near 6, and their mean is 6.16.  The bounds go through erf in
# float32, which is 1 for both, and the result is put on the upper bound; between -7 and -6 all are at
# the lower one.  From 5 to 6 there are ten values, with the mean 5.21 for 5.18.  In 64-bit mode 6 to 7
# is right and 9 to 10 is always 10.  SciPy is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 scipy==1.17.1
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
import scipy
from scipy.stats import truncnorm

print("jax", jax.__version__, "scipy", scipy.__version__)


def drawn(low, high):
    x = np.asarray(jax.random.truncated_normal(jax.random.key(0), low, high, (100_000,)))
    mean = truncnorm.mean(low, high)
    print(f"{x.dtype} {low} to {high}: mean {x.mean():.4f}, right {mean:.4f}, values {len(set(x.tolist()))}")
    return x.mean() - mean, len(set(x.tolist()))


single = {low: drawn(low, low + 1) for low in (2.0, 5.0, 6.0, -7.0)}
jax.config.update("jax_enable_x64", True)
double = {low: drawn(low, low + 1) for low in (6.0, 9.0)}
assert abs(single[2.0][0]) < 0.01
assert single[5.0][1] < 20
assert single[5.0][0] > 0.02
assert single[6.0][1] == single[-7.0][1] == 1
assert single[6.0][0] > 0.84
assert single[-7.0][0] < -0.84
assert abs(double[6.0][0]) < 0.01
assert double[9.0][0] > 0.88
PYTHON
