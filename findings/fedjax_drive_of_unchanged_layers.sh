#!/bin/sh
# FedJAX's DRIVE: a layer that one client did not change is NaN for everybody.
#
# Guess: an update of 0 is sent as 0, and costs nothing.  The scale of the signs is |x|^2 / |x|_1 for each
# array, which is 0 / 0 for an array of zeros, and the mean over clients keeps the NaN.  A frozen layer, a bias
# whose gradient is 0, or one client without a step are enough.  TernGrad and uniform quantisation of the same
# library return numbers.
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
clients = [(f"{i}".encode(), {"frozen": jnp.ones(4), "trained": jnp.arange(4.0)}, 1.0) for i in range(9)]
clients.append((b"9", {"frozen": jnp.zeros(4), "trained": jnp.arange(4.0)}, 1.0))
key = jax.random.PRNGKey(0)
rules = {
    "DRIVE": compression.structured_drive_quantizer(key),
    "TernGrad": compression.terngrad_quantizer(key),
    "uniform": compression.uniform_stochastic_quantizer(4, key),
    "rotated uniform": compression.rotated_uniform_stochastic_quantizer(4, key),
}
found = {}
for name, rule in rules.items():
    mean, _ = rule.apply(clients, rule.init())
    found[name] = {layer: np.asarray(value) for layer, value in mean.items()}
    print(name, {layer: value.round(3).tolist() for layer, value in found[name].items()})
assert np.isnan(found["DRIVE"]["frozen"]).all() and np.isfinite(found["DRIVE"]["trained"]).all()
for name in ("TernGrad", "uniform", "rotated uniform"):
    assert np.isfinite(found[name]["frozen"]).all()
PYTHON
