"""Loss along segments between models against NumPy and a double well."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from fedjax_sim.diagnostics.connectivity import random_pairs, segments, to_mean


def well(scale, params):
    """Two wells at w = -1 and w = 1 with b above them: scale (w^2 - 1)^2 + b."""
    value = scale * (params["w"] ** 2 - 1) ** 2 + params["b"]
    return {"loss": value, "distance": jnp.abs(params["w"])}


W, B = np.array([-1.0, 1.0, 0.5, 2.0]), np.array([0.0, 3.0, 1.0, 0.0])
MODELS = {"w": jnp.asarray(W), "b": jnp.asarray(B)}


def test_barriers_of_a_double_well():
    pairs = [(0, 1), (2, 3), (3, 0), (1, -1)]
    result = segments(Partial(well, 2.0), MODELS, pairs, points=9, chunk=3)
    w, b = np.append(W, W.mean()), np.append(B, B.mean())
    t = np.linspace(0, 1, 9)
    for row, (i, j) in enumerate(pairs):
        x, y = (1 - t) * w[i] + t * w[j], (1 - t) * b[i] + t * b[j]
        values = 2 * (x**2 - 1) ** 2 + y
        np.testing.assert_allclose(result.values["loss"][row], values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result.values["distance"][row], np.abs(x), atol=1e-6)
        above = (values - (1 - t) * values[0] - t * values[-1]).max()
        np.testing.assert_allclose(result.barriers["loss"][row], above, rtol=1e-5, atol=1e-6)
        height = values.max() - (values[0] + values[-1]) / 2
        np.testing.assert_allclose(result.heights["loss"][row], height, rtol=1e-5, atol=1e-6)
    # Between the wells the quartic rises by 2, in the middle; b is linear and adds no barrier.
    assert result.barriers["loss"][0] == 2


def test_pairs_are_different_and_uniform():
    drawn = np.concatenate([random_pairs(6, 4, seed) for seed in range(600)])
    assert (drawn[:, 0] < drawn[:, 1]).all()
    assert len(np.unique(random_pairs(50, 900, 1), axis=0)) == 900
    counts = np.bincount(6 * drawn[:, 0] + drawn[:, 1], minlength=36)
    # Each of the 15 pairs has 160 +- 11.
    assert (counts > 0).sum() == 15
    assert abs(counts[counts > 0] - 160).max() < 45
    assert to_mean(3).tolist() == [[0, -1], [1, -1], [2, -1]]


def test_contradictions_are_refused():
    with pytest.raises(ValueError, match="points is 2; expected at least 3"):
        segments(Partial(well, 1.0), MODELS, points=2)
    for pairs in ([(0, 4)], [], [(0, -2)], [0, 1], [(0.0, 1.5)]):
        with pytest.raises(ValueError, match="expected pairs of numbers from -1 to 3"):
            segments(Partial(well, 1.0), MODELS, pairs)


def test_losses_that_are_no_scalars_are_refused():
    with pytest.raises(ValueError, match=r"loss has shape \(2,\); expected a scalar"):
        segments(lambda x: well(1.0, x)["loss"] * jnp.ones(2), MODELS, points=3)


def test_models_of_different_numbers_are_refused():
    """Reading beyond the end of a leaf would repeat its last entry."""
    for models in ({"a": jnp.ones((3, 2)), "b": jnp.ones((2, 2))}, {}, jnp.array(1.0)):
        with pytest.raises(ValueError, match=r"^models has leaves of shapes .* with one n"):
            segments(Partial(well, 1.0), models, points=3)
