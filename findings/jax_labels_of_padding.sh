#!/bin/sh
# JAX and optax: a label of -1 is the last class, the first one, or none, by the function that sees it.
#
# Guess: padded examples with label -1 raise an error, as in PyTorch, or are left out everywhere.  optax's
# cross-entropy with integer labels counts them as the last class and trains on them; with one-hot labels
# their loss is 0.  jnp.bincount counts them as class 0, x.at[labels].add as the last class, segment_sum
# not at all.  A label beyond the last class gives the loss NaN with a finite gradient that lowers every
# logit, so training goes on.  Clients are padded to equal sizes in every vmapped simulation.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check jax==0.10.2 jaxlib==0.10.2 optax==0.2.8
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import optax

print("jax", jax.__version__, "optax", optax.__version__)
logits = jnp.log(jnp.array([[0.1, 0.2, 0.3, 0.4]] * 3))
labels = jnp.array([1, -1, 4])
integer = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
one_hot = optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, 4))
slope = jax.grad(lambda z: optax.softmax_cross_entropy_with_integer_labels(z, labels).sum())(logits)
padding = jnp.array([-1, -1, -1])
counts = {
    "bincount": jnp.bincount(padding, length=4).tolist(),
    "at[].add": jnp.zeros(4, int).at[padding].add(1).tolist(),
    "segment_sum": jax.ops.segment_sum(jnp.ones(3, int), padding, 4).tolist(),
}
print("probabilities 0.1 to 0.4, labels", labels.tolist())
print("losses with integer labels:", integer.tolist(), "with one-hot labels:", one_hot.tolist())
print("gradients:", slope[1:].round(3).tolist())
print("three labels -1 counted by class:", counts)
assert jnp.allclose(integer[:2], -jnp.log(jnp.array([0.2, 0.4]))) and jnp.isnan(integer[2])
assert one_hot[1] == one_hot[2] == 0
assert jnp.allclose(slope[1], jnp.array([0.1, 0.2, 0.3, -0.6]), atol=1e-6)
assert jnp.allclose(slope[2], jnp.array([0.1, 0.2, 0.3, 0.4]), atol=1e-6)
assert counts == {"bincount": [3, 0, 0, 0], "at[].add": [0, 0, 0, 3], "segment_sum": [0, 0, 0, 0]}
PYTHON
