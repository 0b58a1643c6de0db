#!/bin/sh
# safetensors: load gives the tensors in an order that differs between processes.
#
# Guess: a dict comes back in the order in which it was saved, or in that of the file.  load, for bytes,
# gives the names in the order of a hash table with a random seed, so two processes that read the same
# bytes see different orders; load_file gives them sorted.  Clients and a server that exchange
# list(tensors.values()), or join them to one vector, mix up tensors of equal shapes, and the mean of
# models is wrong although every file is right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check safetensors==0.8.0 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from safetensors.numpy import load_file, save_file

print("safetensors", importlib.metadata.version("safetensors"))
names = [f"layer{number}.weight" for number in range(8)]
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "model.safetensors")
    save_file({name: np.zeros((2, 2), np.float32) for name in names}, file)
    program = (
        "import json, pathlib, sys; from safetensors.numpy import load; "
        "print(json.dumps(list(load(pathlib.Path(sys.argv[1]).read_bytes()))))"
    )
    orders = [
        json.loads(subprocess.check_output([sys.executable, "-c", program, file])) for _ in range(4)
    ]
    from_file = list(load_file(file))
for order in orders:
    print("load in another process:", [int(name[5]) for name in order])
print("load_file:", [int(name[5]) for name in from_file])
assert all(sorted(order) == names for order in orders)
assert len({tuple(order) for order in orders}) > 1  # four equal ones: 1 in 8!^3
assert from_file == names
PYTHON
