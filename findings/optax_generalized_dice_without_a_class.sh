#!/bin/sh
# optax's generalized Dice loss: a minibatch that lacks a class has one loss for right and for wrong models.
#
# Guess: classes weigh as the inverse square of their frequency among those that occur, so that a client
# without some class trains on the others.  An absent class gets the weight 1e7, and all weights are divided
# by their sum: the others have a share of 1e-11.  With a third class that nobody has, a model that swaps
# the other two has the loss of one that is right, 0.0165, and from equal logits the gradients of these two
# are the same in every example: the client learns only to give the absent class less.  With the weight 0
# for absent classes the losses are 0.001 and 1.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax

print("optax", optax.__version__)
labels = np.arange(200).reshape(2, 100) % 4 // 3  # three quarters of class 0, one of class 1


def by_hand(logits, targets):
    """1 - 2 sum(w * overlap) / sum(w * sizes), where absent classes have no weight."""
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    frequency = targets.sum((0, 1))
    weight = np.where(frequency > 0, 1 / np.maximum(frequency, 1) ** 2, 0)
    overlap, sizes = (chances * targets).sum((0, 1)), (chances + targets).sum((0, 1))
    return 1 - 2 * (weight @ overlap) / (weight @ sizes)


loss = jax.jit(jax.value_and_grad(optax.losses.multiclass_generalized_dice_loss))
found = {}
for classes in (2, 3):
    targets = np.eye(classes)[labels]
    for name, guess, height in (("right", labels, 8.0), ("swapped", 1 - labels, 8.0), ("equal", labels, 0.0)):
        logits = height * np.eye(classes)[guess]
        value, gradient = loss(jnp.asarray(logits, jnp.float32), jnp.asarray(targets, jnp.float32))
        # What tells an example's class from the other one that occurs.
        true, other = (np.take_along_axis(np.asarray(gradient), x[..., None], -1) for x in (labels, 1 - labels))
        apart = float(np.abs(true - other).sum())
        found[classes, name] = float(value), apart
        print(f"{classes - 2} classes absent, {name}: loss {value:.6f}, by hand "
              f"{by_hand(logits, targets):.6f}, gradient that tells classes apart {apart:.1e}")
        assert (by_hand(logits, targets) > 0.9) == (name == "swapped")
assert found[2, "right"][0] < 0.01 and found[2, "swapped"][0] > 0.5
assert found[2, "equal"][1] > 0.1 and found[3, "equal"][1] < 1e-6
assert abs(found[3, "swapped"][0] / found[3, "right"][0] - 1) < 1e-3
PYTHON
