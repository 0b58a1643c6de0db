#!/bin/sh
# JAX's gradient of |x| at 0 is 1, so an L1 penalty moves weights that are 0, all in one direction.
#
# Guess: the gradient is 0 there, as the sign is.  JAX takes the side of the positive numbers, for
# -0 too, in jnp.abs, the 1-norm and what is made of them.  A sparse model that starts at 0 gets a
# negative weight for each feature that a client's examples lack, and after an odd number of steps
# keeps it; a proximal term |x - server|_1 pushes every parameter down in the first local step; an
# absolute error of 0 has a gradient.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np

print("jax", jax.__version__)
at = [0.0, -0.0, 1.0, -1.0]
found = {
    "jnp.abs": jax.grad(lambda x: jnp.abs(x).sum())(jnp.array(at)).tolist(),
    "1-norm": jax.grad(lambda x: jnp.linalg.norm(x, 1))(jnp.array(at)).tolist(),
    "jnp.sign": jnp.sign(jnp.array(at)).tolist(),
}
print("gradients at", at, found)
assert found["jnp.abs"] == found["1-norm"] == [1, 1, 1, -1]
assert found["jnp.sign"] == [0, 0, 1, -1]

features = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
features[:, 3:] = 0
targets = features.sum(axis=1)


def error(w):
    return ((features @ w - targets) ** 2).mean()


def lasso(gradient, steps=5):
    w = jnp.zeros(6)
    for _ in range(steps):
        w = w - 0.1 * gradient(w)
    return np.asarray(w)


found = lasso(jax.grad(lambda w: error(w) + 0.1 * jnp.abs(w).sum()))
by_sign = lasso(lambda w: jax.grad(error)(w) + 0.1 * jnp.sign(w))
print("lasso after 5 steps, features 4 to 6 are 0:", found.round(3), "by the sign", by_sign.round(3))
assert np.allclose(found[:3], by_sign[:3], atol=0.01)
assert np.allclose(found[3:], -0.01)
assert (by_sign[3:] == 0).all()
PYTHON
