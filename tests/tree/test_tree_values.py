"""Means, bits, draws and decompositions of trees, with values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.tree.means import all_reduced

SIGNS = fs.compression.scaled_sign()  # of 9 numbers: 9 signs and a scale of 32 bits
NINE = jnp.ones(9)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (lambda: tree.upload_bits(fs.fedavg(0.1))(NINE), 288),
        (lambda: tree.upload_bits(fs.ef14(fs.fedavg(0.1), SIGNS))(NINE), 41),
        (lambda: tree.message_bits(fs.ef21_p(fs.fedavg(0.1), SIGNS))(NINE), 41),
        (lambda: tree.upload_bits(tree.with_upload_bits(fs.fedavg(0.1), lambda x: 8))(NINE), 8),
        (lambda: tree.message_bits(tree.with_message_bits(fs.fedavg(0.1), lambda x: 8))(NINE), 8),
        (lambda: tree.bits_if_all_report(fs.fedavg(0.1)), None),
        (lambda: tree.bits_of_arrays({"w": jnp.ones(3), "step": jnp.array(1, jnp.int8)}), 104),
        (lambda: tree.plain_bits(jnp.ones(3, jnp.bfloat16)), 48),
        (lambda: tree.scalar_bits(jnp.ones(3, jnp.bfloat16)), 16),
    ],
)
def test_bits(bits, expected):
    assert bits() == expected


def test_means():
    values, weights = jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0])
    assert tree.weighted_mean(values, weights).item() == 2
    assert tree.weighted_sum(values, weights).item() == 8
    # A client without weight counts as zero, whatever it uploads.
    with jax.debug_nans(False):
        assert tree.weighted(jnp.array([1.0, jnp.inf]), jnp.array([3.0, 0.0])).tolist() == [3, 0]
    assert tree.mean_from_sum(jnp.array(6.0), jnp.array(4.0), jnp.zeros(2)).item() == 1.5
    assert tree.divide_or_keep(jnp.array(3.0), jnp.array(0.5)).item() == 6
    of_all = jax.vmap(lambda m, w: all_reduced(m, w, "clients"), axis_name="clients")
    assert of_all(values, weights).tolist() == [2, 2]


def test_keys():
    """The fast generator draws what the usual one draws."""
    key = jax.random.key(3)
    np.testing.assert_array_equal(jax.random.bits(tree.fast(key), (4,)), jax.random.bits(key, (4,)))
    folded = jax.random.fold_in(tree.fast(key), 1)
    assert bool(tree.usual(folded) == jax.random.fold_in(key, 1))


def test_noise():
    """The deviation of 10,000 draws has a standard error of 0.7 %; the tolerance is 3 %."""
    drawn = tree.normal(jax.random.key(0), 3.0, {"w": jnp.ones(10_000)})
    assert abs(drawn["w"].std() - 3) < 0.1


def test_repeated_values():
    assert tree.entries(tree.Repeated(7, 10**9), jnp.array([5, 3])).tolist() == [7, 7]
    assert tree.entries(np.array([4, 5, 6]), jnp.array([2, 0])).tolist() == [6, 4]


def test_singular_values():
    assert tree.singular_values(jnp.diag(jnp.array([1.0, 3.0]))).tolist() == [3, 1]
    assert np.isnan(tree.singular_values(jnp.diag(jnp.array([1.0, jnp.inf])))).all()
    u, s, w = tree.thin_svd(jnp.diag(jnp.array([2.0, 3.0])))
    assert s.tolist() == [3, 2]
    np.testing.assert_allclose((u * s) @ w, np.diag([2, 3]), atol=1e-4)  # a QR in float32
