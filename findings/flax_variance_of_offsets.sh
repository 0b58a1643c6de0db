#!/bin/sh
# flax's normalisation layers lose the variance of features with an offset; PyTorch's keep it.
#
# Guess: (x - mean) / deviation has deviation 1 for every feature that is not constant.  The layers compute
# the variance as mean(x^2) - mean(x)^2 in float32 by default, and take 0 where rounding makes it negative.
# Minibatches of a feature with mean 500 and deviation 0.1 come out with deviations from 0.3 to 34.
# Raw columns such as years, altitudes or temperatures in kelvin are of this kind; one client's statistics
# differ from the next one's by rounding alone.  use_fast_variance=False is right, as is PyTorch.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 flax==0.12.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import flax
import flax.linen as nn
import jax
import numpy as np

print("jax", jax.__version__, "flax", flax.__version__)


def deviations(offset, **options):
    """Smallest and largest deviation of a normalised feature in 20 minibatches of 64 examples."""
    generator, found = np.random.default_rng(0), []
    layer = nn.BatchNorm(use_running_average=False, **options)
    for _ in range(20):
        x = (offset + 0.1 * generator.normal(size=(64, 1))).astype(np.float32)
        y, _ = layer.apply(layer.init(jax.random.key(0), x), x, mutable=["batch_stats"])
        found.append(np.asarray(y, float).std().item())
    return min(found), max(found)


fast = {offset: deviations(offset) for offset in (0, 100, 500)}
slow = {offset: deviations(offset, use_fast_variance=False) for offset in fast}
for offset in fast:
    print(f"mean {offset}, deviation 0.1: after BatchNorm {fast[offset]}, exact variance {slow[offset]}")
assert all(0.99 < low < high < 1.01 for low, high in (fast[0], *slow.values()))
# the sums may be added in another order elsewhere, so the bounds are wide
assert fast[100][1] > 1.1
assert fast[500][0] < 0.7 and fast[500][1] > 3
PYTHON
