#!/bin/sh
# flax's batch normalisation with a mask: a minibatch of padding makes the running statistics NaN for good.
#
# Guess: masked examples count for nothing, so that a minibatch without others leaves the statistics as they
# are.  Its mean is 0 / 0, and the running mean never forgets a NaN: parameters stay finite, and the model
# that is evaluated gives NaN.  Clients of unequal sizes are padded to equal numbers of steps in every vmapped
# simulation.  With axis_name the means of the devices are averaged without their numbers of examples: four
# ones on one device and a single 5 on another have the mean 1.8, and 3 is recorded.  The layers of
# linen and nnx agree.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

print("flax", flax.__version__, "jax", jax.__version__)
START = {"mean": jnp.zeros(1), "var": jnp.ones(1)}
PARAMS = {"scale": jnp.ones(1), "bias": jnp.zeros(1)}


def by_linen(statistics, x, mask, momentum, axis_name=None):
    layer = nn.BatchNorm(use_running_average=False, momentum=momentum, axis_name=axis_name)
    variables = {"params": PARAMS, "batch_stats": statistics}
    return layer.apply(variables, x, mask=mask, mutable=["batch_stats"])[1]["batch_stats"]


def by_nnx(statistics, x, mask, momentum, axis_name=None):
    layer = nnx.BatchNorm(1, momentum=momentum, axis_name=axis_name, rngs=nnx.Rngs(0))
    layer.mean[...], layer.var[...] = statistics["mean"], statistics["var"]
    layer(x, use_running_average=False, mask=mask)
    return {"mean": layer.mean[...], "var": layer.var[...]}


x = jnp.array([[1.0], [2.0], [4.0], [9.0]])
minibatches = {"no padding": [1, 1, 1, 1], "half padding": [1, 1, 0, 0], "padding": [0, 0, 0, 0],
               "no padding again": [1, 1, 1, 1]}
for name, update in {"linen": by_linen, "nnx": by_nnx}.items():
    statistics, expected = START, 0.0
    for kind, mask in minibatches.items():
        statistics = update(statistics, x, jnp.array(mask, bool)[:, None], 0.9)
        if any(mask):
            expected = 0.9 * expected + 0.1 * np.average(x[:, 0], weights=mask)
        mean, variance = (float(statistics[key][0]) for key in ("mean", "var"))
        print(f"{name}, {kind}: running mean {mean:.3f} (expected {expected:.3f}), variance {variance:.3f}")
        assert np.isnan([mean, variance]).all() == (kind in ("padding", "no padding again"))
        assert np.isnan(mean) or abs(mean - expected) < 1e-4

devices = jnp.array([[1.0, 1, 1, 1], [5, 0, 0, 0]])[..., None]
masks = jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool)[..., None]
for name, update in {"linen": by_linen, "nnx": by_nnx}.items():
    recorded = jax.vmap(lambda x, mask: update(START, x, mask, 0.0, "devices"), axis_name="devices")(
        devices, masks)
    mean, variance = (float(recorded[key][0, 0]) for key in ("mean", "var"))
    values = np.asarray(devices)[np.asarray(masks)]
    print(f"{name}, two devices: mean {mean:.2f}, of all examples {values.mean():.2f}; variance "
          f"{variance:.2f}, of all examples {values.var():.2f}")
    assert abs(mean - 3) < 1e-4 and abs(values.mean() - 1.8) < 1e-6
    assert abs(variance - 4) < 1e-4 and abs(values.var() - 2.56) < 1e-6
PYTHON
