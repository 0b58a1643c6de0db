#!/bin/sh
# FedJAX's TernGrad: an array with equal entries is sent as 0, so a bias with one entry never trains.
#
# Guess: entries become -s, 0 or s by chance so that the mean is right, after the largest ones were clipped at
# 2.5 standard deviations.  The deviation is that of the entries from their mean, computed for each array: it
# is 0 for one entry and for equal ones, and then everything is clipped to 0.  Small arrays with a common
# part lose most of it: 10 entries of 1 with deviation 0.1 arrive as 0.25.  The bias of a network with one
# output, a temperature or a scale per layer keep their initial values for good.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check fedjax==0.0.17 jax==0.4.24 jaxlib==0.4.24 numpy==1.26.4 scipy==1.11.4 dm-haiku==0.0.11 optax==0.1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata

import jax
import jax.numpy as jnp
import numpy as np
from fedjax.aggregators import compression

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)
spread = np.random.default_rng(0).normal(size=10)
spread = 0.1 * (spread - spread.mean()) / spread.std()
update = {
    "bias of one output": jnp.array([3.0]),
    "equal entries": jnp.full(10, 3.0),
    "deviation 0.1 around 1": jnp.array(1 + spread, jnp.float32),
    "deviation 1 around 0": jnp.array(10 * spread, jnp.float32),
}
clients = [(f"{i}".encode(), update, 1.0) for i in range(2000)]
rule = compression.terngrad_quantizer(jax.random.PRNGKey(0))
mean, _ = rule.apply(clients, rule.init())
for name, value in update.items():
    ratio = float(jnp.vdot(mean[name], value) / jnp.vdot(value, value))
    print(f"{name}: mean over 2,000 clients is {ratio:.2f} times the update of each")
    update[name] = ratio
assert update["bias of one output"] == update["equal entries"] == 0
assert 0.2 < update["deviation 0.1 around 1"] < 0.3
assert update["deviation 1 around 0"] > 0.9
PYTHON
