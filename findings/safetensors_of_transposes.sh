#!/bin/sh
# safetensors for NumPy: a transposed array is saved with its entries in another order.
#
# Guess: an array that is loaded equals the one that was saved.  The bytes are written as they lie in
# memory and the shape beside them, so an array in column order comes back with the right shape and
# dtype and with the entries shuffled; nothing warns.  Weights that are ported between conventions with
# x.T are such arrays.  A copy in row order (np.ascontiguousarray) is saved rightly.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata

import numpy as np
from safetensors import numpy as saved

print("safetensors", importlib.metadata.version("safetensors"), "numpy", np.__version__)
weight = np.arange(6.0, dtype=np.float32).reshape(2, 3)
for name, array in {
    "row order": weight,
    "x.T": weight.T,
    "copy of x.T": np.ascontiguousarray(weight.T),
    "column order": np.asfortranarray(weight),
}.items():
    loaded = saved.load(saved.save({"weight": array}))["weight"]
    print(f"{name}: saved {array.tolist()} loaded {loaded.tolist()}")
    assert loaded.shape == array.shape
    assert loaded.dtype == array.dtype
    assert np.array_equal(loaded, array) == (name in ("row order", "copy of x.T"))
PYTHON
