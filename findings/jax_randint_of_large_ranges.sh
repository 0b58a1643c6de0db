#!/bin/sh
# JAX's randint: of 10^9 numbers the low ones are drawn 25 % more often, of 3 x 10^9 twice as often.
#
# Guess: the bias is about 2^-32, as 64 random bits go into each number.  The high 32 bits are
# multiplied by 2^32 modulo the range, which is found as (2^16)^2 in 32 bits: 0 for every range
# above 2^16.  What is left is one 32-bit number modulo the range, of which the numbers below 2^32
# modulo the range have one chance more.  Ids or hashes drawn from a wide range collide more, and
# their mean is 0.476 of the range.  Ranges up to 2^16, powers of two and NumPy are even; for few
# million the bias is below 0.1 %.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__, "numpy", np.__version__)
draws = 1_000_000
for size, excess in ((50_000, 1.0), (2**30, 1.0), (10**9, 5 / 4), (3 * 10**9, 2.0)):
    # The numbers below this one have one chance more.
    bound = 2**32 % size or size // 2
    numbers = {
        "jax": jax.random.randint(jax.random.key(0), (draws,), 0, np.uint32(size), dtype=jnp.uint32),
        "numpy": np.random.default_rng(0).integers(0, size, draws),
    }
    for library, x in numbers.items():
        x = np.asarray(x, np.float64)
        low = (x < bound).mean() / bound
        high = (x >= bound).mean() / (size - bound)
        print(f"{size} numbers, {library}: low ones {low / high:.3f} times as often, mean / size {x.mean() / size:.3f}")
        assert abs(low / high - (excess if library == "jax" else 1)) < 0.03
PYTHON
