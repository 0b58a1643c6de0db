#!/bin/sh
# PyTorch's topk: of equal numbers it keeps others than JAX, and others in a short vector than in a long.
#
# Guess: of entries with equal magnitudes the first k are kept, as JAX documents.  Of ten equal numbers
# PyTorch on a CPU keeps three from the end, of a thousand the first three.  Top-k sparsification of
# signs or of quantised values is full of ties, so a port keeps other coordinates from the first round
# on; and coordinates that one rule never keeps are left to error feedback.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import torch

print("torch", torch.__version__, "jax", jax.__version__)
kept = {
    n: (
        sorted(torch.topk(torch.ones(n), 3).indices.tolist()),
        jax.lax.top_k(jnp.ones(n), 3)[1].tolist(),
    )
    for n in (10, 1000)
}
for n, (by_torch, by_jax) in kept.items():
    print(n, "equal numbers: PyTorch keeps", by_torch, "and JAX", by_jax)
assert all(by_jax == [0, 1, 2] for _, by_jax in kept.values())
assert kept[10][0] != [0, 1, 2]
assert kept[1000][0] == [0, 1, 2]
PYTHON
