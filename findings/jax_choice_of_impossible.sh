#!/bin/sh
# JAX's random.choice without replacement gives entries of probability 0.
#
# Guess: an error, as in NumPy, if fewer entries than drawn have a positive probability.  JAX fills up
# with entries of probability 0, silently, under jit and without.  A cohort of four among clients of
# whom two are available then contains clients that are not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__, "numpy", np.__version__)
probability = jnp.array([0.5, 0.5, 0.0, 0.0, 0.0])
for seed in range(5):
    drawn = jax.random.choice(jax.random.key(seed), 5, (4,), replace=False, p=probability)
    print("seed", seed, "clients", drawn.tolist())
    assert set(drawn[:2].tolist()) == {0, 1}
    assert all(probability[i] == 0 for i in drawn[2:])
try:
    np.random.default_rng(0).choice(5, 4, replace=False, p=np.asarray(probability))
except ValueError as error:
    print("NumPy:", error)
else:
    raise AssertionError("NumPy draws, too")
PYTHON
