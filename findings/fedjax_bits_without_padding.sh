#!/bin/sh
# FedJAX's rotated compression: bits are counted without the padding, which can be half of what is sent.
#
# Guess: num_bits says what clients send.  A rotation works on a power of two, so an array is filled up with
# zeros first, and all of the rotated entries have to be sent, since none of them is 0.  Counted are the
# entries of the array before: 65 entries are 128 rotated ones.  For a layer of 784 x 84 the count is half of
# what is sent, so a plain quantiser, which is counted rightly, sends less where the counts say the same.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check fedjax==0.0.17 jax==0.4.24 jaxlib==0.4.24 numpy==1.26.4 scipy==1.11.4 dm-haiku==0.0.11 optax==0.1.9
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import importlib.metadata
import math

import jax
import jax.numpy as jnp
from fedjax.aggregators import compression, walsh_hadamard

print("fedjax", importlib.metadata.version("fedjax"), "jax", jax.__version__)
key, LEVELS = jax.random.PRNGKey(0), 4
found = {}
for shape in ((64,), (65,), (784, 84)):
    update = {"layer": jax.random.normal(key, shape)}
    rotated, _ = walsh_hadamard.structured_rotation_pytree(update, key)
    sent = int(jnp.count_nonzero(rotated["layer"]))
    for name, bits, rule in (
        ("rotated", math.log2(LEVELS), compression.rotated_uniform_stochastic_quantizer(LEVELS, key)),
        ("DRIVE", 1, compression.structured_drive_quantizer(key)),
    ):
        _, state = rule.apply([(b"0", update, 1.0)], rule.init())
        counted = (float(state.num_bits) - 64) / bits  # without the two floats that go with an array
        found[name, shape] = sent / counted
        print(f"{name}, {shape}: {counted:.0f} entries counted, {sent} rotated ones differ from 0")
for name in ("rotated", "DRIVE"):
    assert found[name, (64,)] == 1
    assert found[name, (65,)] > 1.9 and found[name, (784, 84)] > 1.9
PYTHON
