"""Norms, and trees without entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim import tree
from fedjax_sim.local import clip_by_global_norm
from fedjax_sim.types import Oracle


def test_a_number_over_a_norm():
    """12 / |(3, 4, 12)| = 12 / 13, with nothing added to the norm unless it is asked for."""
    x = {"w": jnp.array([3.0, 4.0]), "b": jnp.array(12.0)}
    np.testing.assert_allclose(tree.over_norm(12.0, x), 12 / 13, rtol=1e-6)  # float32
    np.testing.assert_allclose(tree.over_norm(12.0, x, 3.0), 12 / 16, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-22, 1e22, 1e37])
def test_norms_whose_squares_leave_the_range(size):
    """A gradient of 1e22 was clipped to 0."""
    x = {"w": size * jnp.array([3.0, 4.0]), "b": jnp.float32(0)}
    np.testing.assert_allclose(tree.safe_norm(x) / size, 5, rtol=1e-6)  # float32
    np.testing.assert_allclose(tree.clip_factor(size, x), 0.2, rtol=1e-6)
    assert tree.clip_factor(10 * size, x) == 1
    identity = Oracle(lambda x, k: x, lambda x, k: jnp.zeros(()), lambda x: x)
    clipped = clip_by_global_norm(identity, size / 10, eps=0.0).grad(x, 0)
    np.testing.assert_allclose(clipped["w"] / size, [0.06, 0.08], rtol=1e-6)


def test_a_norm_of_zero_counts_as_1e_12_and_has_the_derivative_zero():
    value, derivative = jax.value_and_grad(lambda x: tree.over_norm(1e-12, x))(jnp.zeros(3))
    assert value == 1
    assert not np.asarray(derivative).any()


def test_an_empty_tree_has_the_norm_zero():
    assert tree.safe_norm({}) == 0
    assert tree.clip_factor(2.0, {}) == 1


def test_nothing_is_not_finite_in_an_empty_tree():
    assert tree.all_finite({})
    assert tree.all_finite({"count": jnp.array(2)})
    assert not tree.all_finite({"count": jnp.array(2), "w": jnp.array([1.0, jnp.inf])})


def test_the_dtypes_of_another_tree():
    x = {"w": jnp.array([1.5, -2.0]), "count": jnp.array(3)}
    other = {"w": jnp.zeros(2, jnp.bfloat16), "count": jnp.array(0)}
    cast = tree.cast_like(x, other)
    assert (cast["w"].dtype, cast["w"].tolist()) == (jnp.bfloat16, [1.5, -2.0])
    assert cast["count"] is x["count"]


@pytest.mark.parametrize(
    "combine",
    [
        tree.add,
        tree.sub,
        lambda x, y: tree.add_scale(x, 2.0, y),
        lambda x, y: tree.where(True, x, y),
    ],
    ids=["add", "sub", "add_scale", "where"],
)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_leaves_of_other_shapes_are_not_broadcast(combine, shape):
    """A mean of one number moved every parameter by it."""
    x, y = {"w": jnp.zeros(3)}, {"w": jnp.ones(shape)}
    for one, other in ((x, y), (y, x)):
        with pytest.raises(ValueError, match=r"y\['w'\] has shape .*; expected .*, as x"):
            combine(one, other)


def test_trees_of_other_structures_are_named():
    with pytest.raises(
        ValueError, match=r"y has the structure \(\*\); expected \({'w': \*}\), as x"
    ):
        tree.sub({"w": jnp.zeros(3)}, 0.0)


def test_structures_are_shown_where_they_differ():
    """The first 80 characters of large trees are often equal."""
    x = {f"layer{i}": {"bias": jnp.zeros(1), "kernel": jnp.zeros(2)} for i in range(5)}
    y = x | {"layer3": {"kernel": jnp.zeros(2)}}
    with pytest.raises(
        ValueError, match=r"'layer3': {'kernel': \*}.*; expected .*'layer3': {'bias'"
    ):
        tree.add(x, y)
