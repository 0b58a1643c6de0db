"""Arrays that every reader computes again, against the same arrays stored."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_params import draws, random_params
from small_problems import compiled

from fedjax_sim import models
from fedjax_sim.models.layers import normalise_groups, normalise_groups_later
from fedjax_sim.models.recomputed import Recomputed, later, read


def chain(normalise):
    """Two sums, of which the second contains the first, and three readers of each."""

    def loss(x, scale, bias, first, second):
        u = later(jnp.tanh, normalise(x, scale, bias, 3, 1e-3))
        v = later(lambda x, u: jnp.sin(x + u), normalise(2 * x, scale, bias, 3, 1e-3), u)
        readers = [read(jnp.matmul, z, kernel) for z in (u, v) for kernel in (first, second)]
        readers += [read(jnp.cos, z) for z in (u, v)]
        return sum(jnp.sum(jnp.cos(i + y) * y) for i, y in enumerate(readers))

    return loss


ARRAYS = (2, 5, 4, 6), (6,), (6,), (6, 3), (6, 3)


def test_derivatives_of_all_orders(x64):
    """In double precision: some hundred roundings of 1e-16, so 1e-13 of the largest entry."""
    arguments = draws(*ARRAYS)
    directions = [jnp.sin(x) for x in arguments]

    def derivatives(normalise):
        gradient = jax.value_and_grad(chain(normalise), tuple(range(5)))

        def hessian_product(*args):
            return jax.jvp(gradient, args, tuple(directions))

        def total(*args):
            return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(hessian_product(*args)))

        return compiled(lambda *args: (hessian_product(*args), jax.grad(total)(*args)))(*arguments)

    def close(actual, expected):
        atol = 1e-13 * np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)

    jax.tree.map(close, derivatives(normalise_groups_later), derivatives(normalise_groups))


def distinct(text, operation):
    """Operations of a kind in a program after equal ones are merged, as XLA does."""
    names, merged = {}, {}
    for result, body in re.findall(r"^ *(%\w+)(?::\d+)? = (.*)$", text, re.MULTILINE):
        body = re.sub(r"%\w+", lambda name: names.get(name[0], name[0]), body)
        names[result] = merged.setdefault(body, f"%merged{len(merged)}")
    return sum(f"stablehlo.{operation} " in body for body in merged)


def test_readers_share_no_computation(x64):
    """XLA would store what they share.

    ``u`` has three readers, and ``v``, which contains it, as many; each reads it forward and for
    its gradient.  Both sums themselves, whose values are dead, are two more.
    """
    loss = jax.grad(chain(normalise_groups_later), tuple(range(5)))
    text = jax.jit(loss).lower(*draws(*ARRAYS)).as_text()
    assert distinct(text, "tanh") == 2 * (3 + 3 + 2)
    text = jax.jit(jax.grad(chain(normalise_groups), (0, 1))).lower(*draws(*ARRAYS)).as_text()
    assert distinct(text, "tanh") == 1


def test_no_sum_is_stored_for_the_gradient(x64):
    arguments = draws(*ARRAYS)
    u = jnp.tanh(normalise_groups(*arguments[:3], 3, 1e-3))
    v = jnp.sin(normalise_groups(2 * arguments[0], *arguments[1:3], 3, 1e-3) + u)

    def stored(normalise, z):
        leaves = jax.tree.leaves(jax.vjp(chain(normalise), *arguments)[1])
        return any(y.shape == z.shape and np.allclose(y, z) for y in leaves)

    assert [stored(normalise_groups, z) for z in (u, v)] == [True, True]
    assert [stored(normalise_groups_later, z) for z in (u, v)] == [False, False]


def test_recomputed_normalisation_without_the_pixels_outside(x64):
    """Shifted pairs of pixels; equal operations on equal numbers, so 1e-14 are some roundings."""
    x, scale, bias = draws((2, 5, 3, 12), (6,), (6,))
    expected = normalise_groups(x, scale, bias, 3, 1e-3, 1)
    actual = normalise_groups_later(x, scale, bias, 3, 1e-3, 1)
    assert isinstance(actual, Recomputed)
    assert actual.shape == x.shape
    np.testing.assert_allclose(read(lambda x: x, actual), expected, rtol=0, atol=1e-14)
    assert not np.any(expected[:, :, 0, :6])


def test_arrays_stay_arrays():
    x = jnp.ones(3)
    np.testing.assert_array_equal(later(jnp.add, x, 2 * x), 3 * x)
    program = jax.jit(lambda x: read(jnp.add, x, later(jnp.sin, x))).lower(x).as_text()
    assert "barrier" not in program


@pytest.mark.parametrize("options", [{}, {"large_stem": True}, {"pairs": True}])
def test_residual_network_in_single_precision(options):
    """Equal operations on equal numbers, but sums in another order.

    Sums have up to 3 x 8 x 8 x 8 terms of which each adds a rounding of 6e-8, and errors of random
    sign grow with the root of the number, 40, through five layers: 1e-5 of the largest entry.
    """
    shape, sizes = (3, 8, 8, 3), {"channels": (4, 8), "blocks": (2, 1)}
    stored, recomputed = (
        models.resnet(5, **sizes, **options, remat=remat) for remat in (False, True)
    )
    params = random_params(stored)
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)

    def results(model):
        def loss(params, x):
            outputs = model.apply(params, x)
            return jnp.sum(jnp.sin(outputs)), outputs

        return compiled(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x)

    def close(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())

    jax.tree.map(close, results(recomputed), results(stored))
