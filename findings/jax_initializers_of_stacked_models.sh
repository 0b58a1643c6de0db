#!/bin/sh
# JAX's initializers: a stack of the clients' models in one call starts with too small weights.
#
# Guess: lecun_normal()(key, (clients, inputs, outputs)) draws one layer for each client.  All axes
# but the last are inputs, as with a kernel of a convolution, so the standard deviation is too small
# by the square root of the number of clients, 10 with 100 of them, and after three such layers the
# outputs are a thousandth; orthogonal() makes one tall orthogonal matrix of all clients.
# batch_axis=0 is right for the scaled ones, orthogonal needs vmap over keys.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import numpy as np
from jax.nn import initializers

print("jax", jax.__version__)
clients, size = 100, 64
key = jax.random.key(0)


def vmapped(initializer):
    return jax.vmap(lambda key: initializer(key, (size, size)))(jax.random.split(key, clients))


for name, make in {
    "lecun_normal": initializers.lecun_normal,
    "he_uniform": initializers.he_uniform,
    "orthogonal": initializers.orthogonal,
}.items():
    stacked, right = make()(key, (clients, size, size)), vmapped(make())
    found = {"one call": float(stacked.std()), "vmap": float(right.std())}
    if name != "orthogonal":
        found["batch_axis=0"] = float(make(batch_axis=0)(key, (clients, size, size)).std())
        assert np.isclose(found["batch_axis=0"], found["vmap"], rtol=0.01)
    print(name, {kind: round(value, 4) for kind, value in found.items()})
    assert np.isclose(found["vmap"], 10 * found["one call"], rtol=0.01)

one, each = (np.asarray(layers[0].T @ layers[0]) for layers in (stacked, right))
print("first client's orthogonal layer, mean diagonal of W'W:", one.diagonal().mean(), each.diagonal().mean())
assert one.diagonal().mean() < 0.02
assert np.allclose(each, np.eye(size), atol=1e-4)
PYTHON
