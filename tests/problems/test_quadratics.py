"""Quadratics: their spectra and optima."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.problems.quadratics import Quadratics, quadratic_optimum, quadratics


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_seed(dtype):
    problem = quadratics(3, 2, 0, dtype=dtype)
    assert problem.A.dtype == problem.b.dtype == dtype
    np.testing.assert_array_equal(
        problem.b, quadratics(3, 2, np.random.default_rng(0), dtype=dtype).b
    )
    assert (problem.b != quadratics(3, 2, 1, dtype=dtype).b).any()


@given(
    num_clients=st.integers(1, 5),
    dim=st.integers(1, 6),
    mu=st.floats(0, 2),
    more=st.floats(0.01, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_quadratics_have_the_promised_spectrum(num_clients, dim, mu, more, seed):
    A, b = quadratics(num_clients, dim, seed, mu=mu, smoothness=mu + more, dtype=np.float64)
    assert A.shape == (num_clients, dim, dim)
    assert b.shape == (num_clients, dim)
    np.testing.assert_allclose(A, np.swapaxes(A, 1, 2), atol=1e-14)
    spectrum = np.linalg.eigvalsh(A)
    # float64 round-off of a d x d product and an eigenvalue solver, d <= 6, norms <= 5.
    np.testing.assert_allclose(spectrum[:, -1], mu + more, atol=1e-12)
    if dim > 1:
        np.testing.assert_allclose(spectrum[:, 0], mu, atol=1e-12)


def test_eigenvectors_are_haar():
    # Then the mean of A is (trace / d) I, here with mean eigenvalue 1/2; fixed eigenvectors would
    # leave 0 and 1 on the diagonal.
    A, _ = quadratics(4000, 3, seed=0, mu=0.0, smoothness=1.0, dtype=np.float64)
    error = 5 * A.std(axis=0) / np.sqrt(len(A))  # five standard errors
    assert (np.abs(A.mean(axis=0) - 0.5 * np.eye(3)) < error).all()


def test_the_gradient_is_zero_at_the_optimum():
    problem = quadratics(5, 3, seed=1, mu=0.2, dtype=np.float64)
    optimum = quadratic_optimum(problem)
    gradient = np.einsum("mij,mj->i", problem.A, optimum - problem.b)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)  # float64 round-off of a 3 x 3 system


def test_with_equal_hessians_the_optimum_is_the_mean_of_the_minimisers():
    problem = quadratics(5, 3, seed=1, same_hessian=True, dtype=np.float64)
    np.testing.assert_allclose(quadratic_optimum(problem), problem.b.mean(axis=0), atol=1e-12)


def test_singular_problems_get_a_minimiser():
    A = np.array([[[2.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    problem = Quadratics(A, np.array([[0.0, 7.0], [3.0, 7.0]]))
    np.testing.assert_allclose(quadratic_optimum(problem), [1.0, 0.0], atol=1e-14)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: quadratics(1, 0, 0), "dim is 0"),
        (lambda: quadratics(1, 2, 0, mu=2.0), "smoothness is 1.0; expected at least 2"),
    ],
)
def test_bad_arguments_of_quadratics(call, match):
    with pytest.raises(ValueError, match=match):
        call()
