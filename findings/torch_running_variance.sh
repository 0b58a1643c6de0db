#!/bin/sh
# PyTorch's batch normalisation records another variance than it uses; flax records the one it uses.
#
# Guess: the running variance is a mean of the variances by which minibatches were divided.  PyTorch
# divides by the variance of n numbers and records n / (n - 1) times it, twice as much for minibatches of
# two examples.  flax, like TensorFlow, records what it used.  For clients with a few examples a port
# evaluates another model: the same parameters and data give outputs that differ by a factor of 1.41.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check torch==2.13.0 numpy==2.4.6 flax==0.12.8 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import flax
import flax.linen as nn
import jax
import numpy as np
import torch

print("torch", torch.__version__, "flax", flax.__version__)


def variances(size):
    x = np.random.default_rng(0).normal(size=(1000, size, 1)).astype(np.float32)
    by_torch = torch.nn.BatchNorm1d(1, momentum=0.01)
    by_flax = nn.BatchNorm(use_running_average=False, momentum=0.99, use_fast_variance=False)
    variables = by_flax.init(jax.random.key(0), x[0])
    apply = jax.jit(lambda variables, batch: by_flax.apply(variables, batch, mutable=["batch_stats"]))
    largest = 0.0
    for batch in x:
        y, updated = apply(variables, batch)
        variables = {**variables, **updated}
        trained = by_torch(torch.tensor(batch)).detach().numpy()
        largest = max(largest, np.abs(trained - np.asarray(y)).max())
    return by_torch.running_var.item(), variables["batch_stats"]["var"].item(), largest


for size in (2, 4, 32):
    torch_var, flax_var, largest = variances(size)
    print(f"batches of {size}: torch {torch_var:.4f} flax {flax_var:.4f} ratio {torch_var / flax_var:.4f}")
    assert largest < 1e-3  # in training both normalise alike, to rounding
    assert abs(torch_var / flax_var - size / (size - 1)) < 1e-3
PYTHON
