"""Lanczos against dense eigenvalues of matrices whose spectrum is chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.diagnostics.lanczos import ritz

KEY = jax.random.key(0)


def symmetric(eigenvalues, seed=0):
    dim = len(eigenvalues)
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
    return (basis * np.asarray(eigenvalues, float)) @ basis.T


def on_tree(matrix):
    """The matrix as an operator on a pytree of two leaves."""
    matrix = jnp.asarray(matrix)

    def apply(v):
        flat = matrix @ jnp.concatenate([v["a"], v["b"].ravel()])
        return {"a": flat[:2], "b": flat[2:].reshape(v["b"].shape)}

    dim = len(matrix)
    like = {"a": jnp.zeros(2, matrix.dtype), "b": jnp.zeros((1, dim - 2), matrix.dtype)}
    return apply, like


@pytest.mark.slow
@pytest.mark.parametrize(
    "eigenvalues",
    [
        [-3.0, -1.0, 0.0, 0.5, 2.0, 7.0, 7.5],
        [2.0] * 6,  # invariant after one step
        [0.0] * 5,
        [5.0, 5.0, 5.0, 1.0, 1.0, -2.0],  # invariant after three
        np.geomspace(1e-6, 1e3, 12),
    ],
)
def test_as_many_iterations_as_dimensions_give_the_whole_spectrum(x64, eigenvalues):
    result = jax.jit(lambda matrix: ritz(*on_tree(matrix), KEY, iterations=50))(
        jnp.asarray(symmetric(eigenvalues))
    )
    # Backward stable: a few roundings of the norm.
    scale = np.abs(eigenvalues).max()
    expected = np.sort(eigenvalues)[::-1]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-13 * scale + 1e-300)


@functools.partial(jax.jit, static_argnames="iterations")
def of_matrix(matrix, key, iterations):
    return ritz(lambda v: matrix @ v, jnp.zeros(matrix.shape[0], matrix.dtype), key, iterations)


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [1, 5, 12])
@given(st.integers(0, 1000), st.sampled_from([0, 6]))
@settings(max_examples=50)
def test_residuals_bound_the_distance_to_an_eigenvalue(iterations, seed, decimals):
    """Eigenvalues rounded to integers are multiple."""
    eigenvalues = np.round(2 * np.random.default_rng(seed).normal(size=12), decimals)
    with jax.enable_x64(True):
        matrix = jnp.asarray(symmetric(eigenvalues, seed))
        result = jax.tree.map(np.asarray, of_matrix(matrix, jax.random.key(seed), iterations))
    distance = np.abs(result.values[:, None] - eigenvalues).min(axis=1)
    assert (distance <= result.residuals + 1e-12).all()  # rounding
    np.testing.assert_allclose(result.weights.sum(), 1, rtol=1e-12)
    assert result.values[0] <= eigenvalues.max() + 1e-12  # from below
    assert result.values.shape == (iterations,)


def test_weights_are_a_gauss_quadrature(x64):
    """k nodes integrate v' p(A) v exactly for polynomials p of degree 2 k - 1."""
    matrix = symmetric(np.linspace(-1, 2, 9))
    k = 4
    result = of_matrix(jnp.asarray(matrix), KEY, k)
    start = np.asarray(jax.random.normal(jax.random.fold_in(KEY, 0), (9,), jnp.float32), float)
    start /= np.linalg.norm(start)
    for degree in range(2 * k):
        exact = start @ np.linalg.matrix_power(matrix, degree) @ start
        quadrature = (result.weights * result.values**degree).sum()
        np.testing.assert_allclose(quadrature, exact, rtol=1e-10, atol=1e-12)  # cancellation


def test_batched_over_operators_and_keys(x64):
    matrices = jnp.asarray(np.stack([symmetric(np.linspace(0, i, 8), i) for i in (1, 2, 3)]))
    keys = jax.random.split(KEY, 3)

    def top(matrix, key):
        return ritz(lambda v: matrix @ v, jnp.zeros(8), key, 8).values[0]

    result = jax.jit(jax.vmap(top))(matrices, keys)
    np.testing.assert_allclose(result, [1, 2, 3], rtol=1e-12)


def test_single_precision_finds_the_top_of_a_clustered_spectrum():
    """Without reorthogonalisation, float32 Lanczos loses orthogonality and repeats the top."""
    eigenvalues = np.concatenate([np.linspace(0, 1, 60), [10.0, 11.0, 50.0]])
    result = jax.jit(lambda matrix: ritz(*on_tree(matrix), KEY, iterations=40))(
        jnp.asarray(symmetric(eigenvalues), jnp.float32)
    )
    np.testing.assert_allclose(result.values[:3], [50, 11, 10], rtol=1e-5)
    assert result.values[3] < 1 + 1e-4
    assert result.values.dtype == jnp.float32


def test_iterations_and_leaves_are_checked():
    for like in (jnp.zeros(4, jnp.int32), {"a": jnp.zeros(2), "b": jnp.zeros(2, bool)}):
        with pytest.raises(
            ValueError, match=r"like has leaves of dtypes \[.*\]; expected floating"
        ):
            ritz(lambda v: v, like, jax.random.key(0), 2)
    for like in ({}, jnp.zeros((0, 3))):
        with pytest.raises(ValueError, match="like has no entries; expected at least one"):
            ritz(lambda v: v, like, jax.random.key(0), 2)
    with pytest.raises(ValueError, match="iterations is 0; expected at least 1"):
        ritz(lambda v: v, jnp.zeros(2), KEY, 0)


def test_half_precision():
    scales = jnp.arange(1.0, 6.0, dtype=jnp.bfloat16)
    result = jax.jit(lambda: ritz(lambda v: scales * v, scales, KEY, 5))()
    assert result.values.dtype == jnp.float32
    np.testing.assert_allclose(result.values, [5, 4, 3, 2, 1], atol=0.05)
