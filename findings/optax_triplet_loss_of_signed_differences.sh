#!/bin/sh
# optax's triplet loss: with norm_degree 1 distances are sums of signed differences, with 3 they are NaN.
#
# Guess: norm_degree=1 is the distance of absolute differences, as p=1 in PyTorch.  Differences are raised
# to the power without their absolute values, so that positive and negative ones cancel: two embeddings
# (0, 0) and (3, -3) have the distance 0, and a negative example there pays the whole margin, while
# distances can be below 0.  With an odd degree above 1 the root of a negative sum is NaN, for the loss and
# for the gradient.  Degree 2, the default, is right, and so is every even one.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile --disable-pip-version-check \
    torch==2.13.0 jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

print("optax", optax.__version__, "torch", torch.__version__)


def losses(degree, triplets):
    """By optax, by PyTorch, and by the sum of powers of absolute differences."""
    anchor, positive, negative = triplets
    by_optax = optax.losses.triplet_margin_loss(*map(jnp.asarray, triplets), norm_degree=degree)
    rule = torch.nn.TripletMarginLoss(p=degree, reduction="none")
    by_torch = rule(*map(torch.tensor, triplets)).numpy()

    def distance(other):
        return (np.abs(anchor - other) ** degree).sum(-1) ** (1 / degree)

    by_hand = np.maximum(distance(positive) - distance(negative) + 1, 0)
    return np.asarray(by_optax), by_torch, by_hand


generator = np.random.default_rng(0)
random = [generator.normal(size=(200, 16)).astype(np.float32) for _ in range(3)]
far = [np.array([row], np.float32) for row in ([0, 0], [0, 0], [3, -3])]
for degree in (1, 2, 3, 4):
    by_optax, by_torch, by_hand = losses(degree, random)
    print(f"degree {degree}: mean loss of 200 triplets by optax {by_optax.mean():.3f}, by PyTorch "
          f"{by_torch.mean():.3f}, by hand {by_hand.mean():.3f}; NaN {np.isnan(by_optax).mean():.0%}")
    assert np.allclose(by_torch, by_hand, atol=1e-3)
    assert np.allclose(by_optax, by_hand, atol=1e-3) == (degree in (2, 4))
    assert np.isnan(by_optax).any() == (degree == 3)
for degree in (1, 2):
    by_optax, by_torch, _ = losses(degree, far)
    print(f"degree {degree}, negative at (3, -3): loss by optax {by_optax[0]:.3f}, PyTorch {by_torch[0]:.3f}")
    assert by_torch[0] == 0
    assert abs(by_optax[0] - (1 if degree == 1 else 0)) < 1e-3
gradient = jax.grad(lambda x: optax.losses.triplet_margin_loss(x, *random[1:], norm_degree=3).sum())
found = np.isnan(gradient(jnp.asarray(random[0]))).any(-1).mean()
print(f"degree 3: gradients with NaN {found:.0%}")
assert found > 0.5
PYTHON
