#!/bin/sh
# JAX's generators rbg and unsafe_rbg: vmapped draws are not the draws of the single keys.
#
# vmap is expected to change speed only.  With these generators the whole batch is drawn from its
# first key, so only the first row is what its key gives alone, and equal keys give different rows.
# Splitting and folding in under vmap is exact for rbg, so the keys themselves look right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp

print("jax", jax.__version__)
for generator, exact in (("threefry2x32", True), ("rbg", False), ("unsafe_rbg", False)):
    keys = jax.random.split(jax.random.key(0, impl=generator), 3)
    together = jax.vmap(jax.random.normal)(keys)
    single = jnp.stack([jax.random.normal(key) for key in keys])
    same = together == single
    print(f"{generator}: vmapped {together.round(4).tolist()}, single {single.round(4).tolist()}")
    assert same.tolist() == ([True] * 3 if exact else [True, False, False]), generator

    equal = jnp.stack([keys[0], keys[0]])
    rows = jax.vmap(jax.random.normal)(equal)
    print(f"{generator}: one key twice {rows.round(4).tolist()}")
    assert bool(rows[0] == rows[1]) == exact, generator

key = jax.random.key(0, impl="rbg")
folded = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(jnp.arange(3))
alone = jnp.stack([jax.random.key_data(jax.random.fold_in(key, i)) for i in range(3)])
assert (folded == alone).all()
print("rbg: fold_in under vmap gives the keys of single calls")
PYTHON
