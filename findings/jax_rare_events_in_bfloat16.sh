#!/bin/sh
# JAX's bernoulli with a probability in bfloat16: rare events are eight times as frequent.
#
# Guess: a probability of 0.001 in bfloat16 is 0.001 to two or three digits, so events have that rate.
# Uniform numbers of bfloat16 are multiples of 1/128, and 0 is below every positive probability: the
# rate is 1/128, and everything up to there has it.  Dropout, client dropout and random masks in a
# model of half precision are affected; the mean of uniform numbers is 0.496.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

print("jax", jax.__version__)
key = jax.random.key(0)
for probability in (0.0001, 0.001, 0.005):
    rates = {
        dtype.__name__: float(jax.random.bernoulli(key, dtype(probability), (10**6,)).mean())
        for dtype in (jnp.float32, jnp.bfloat16)
    }
    print(probability, rates)
    assert abs(rates["bfloat16"] - 1 / 128) < 5e-4
    assert abs(rates["float32"] - probability) < 5e-4
uniform = jax.random.uniform(key, (10**6,), jnp.bfloat16).astype(jnp.float32)
print("values", len(set(uniform.tolist())), "mean", float(uniform.mean()))
assert len(set(uniform.tolist())) == 128
assert abs(float(uniform.mean()) - (0.5 - 1 / 256)) < 0.002
PYTHON
