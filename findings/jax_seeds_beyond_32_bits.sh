#!/bin/sh
# JAX's keys: seeds that agree in their low 32 bits give one stream.
#
# Guess: any two Python integers are different seeds, or a large one is refused.  Without 64-bit mode
# the seed is cut to 32 bits silently: key(1), key(2**32 + 1) and a time stamp in nanoseconds that
# agrees with them modulo 2**32 are the same; -1 is 2**32 - 1.  fold_in refuses such numbers.
# In 64-bit mode the two keys differ, so the numbers of a seed depend on the mode.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax

print("jax", jax.__version__)


def words(seed):
    return jax.random.key_data(jax.random.key(seed)).tolist()


for seed in (1, 2**32 + 1, 2**40 + 1, -1, 2**32 - 1):
    print(seed, words(seed))
assert words(1) == words(2**32 + 1) == words(2**40 + 1)
assert words(-1) == words(2**32 - 1)
with jax.enable_x64(True):
    print("64-bit mode:", words(2**32 + 1))
    assert words(2**32 + 1) != words(1)
PYTHON
