#!/bin/sh
# JAX's binomial numbers: above 10^7 trials their variance grows, by 39 % at 10^9.
#
# Guess: a count of float32 is right to seven digits.  The test that accepts a draw multiplies logarithms
# of ratios near 1, which float32 has to 6e-8, by the number of trials.  The variance is right at 10^6
# trials, 5 % too large at 10^8 and 39 % at 10^9, where the mean is off by a twentieth of a deviation.
# In 64-bit mode all are right.  Counts of this size are drawn as noise by binomial mechanisms for
# private sums, and where examples are divided by shares.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np

print("jax", jax.__version__)


def ratio(trials):
    drawn = np.asarray(jax.random.binomial(jax.random.key(1), trials, 0.5, (200_000,)))
    deviation = np.sqrt(trials / 4)
    z = (drawn.astype(np.float64) - trials / 2) / deviation
    print(f"{trials:.0e} trials, {drawn.dtype}: mean {z.mean():.4f} variance {z.var():.4f} (0 and 1)")
    return z.var()


single = {trials: ratio(trials) for trials in (1e6, 1e8, 1e9)}
jax.config.update("jax_enable_x64", True)
double = {trials: ratio(trials) for trials in (1e6, 1e8, 1e9)}
# A variance of 200,000 numbers has a deviation of 0.0032.
assert abs(single[1e6] - 1) < 0.015
assert single[1e8] > 1.03
assert single[1e9] > 1.3
assert all(abs(value - 1) < 0.015 for value in double.values())
PYTHON
