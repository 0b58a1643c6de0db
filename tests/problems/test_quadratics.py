"""Quadratics: their spectra, and closed forms against iteration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.problems.quadratics import (
    Quadratics,
    fedavg_fixed_point,
    quadratic_optimum,
    quadratics,
)


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


def fedavg(problem, lr, steps, weights, rounds):
    x = np.zeros(problem.b.shape[1])
    for _ in range(rounds):
        uploads = []
        for A, b, k in zip(problem.A, problem.b, steps, strict=True):
            y = x
            for _ in range(k):
                y = y - lr * A @ (y - b)
            uploads.append(y)
        x = np.average(uploads, axis=0, weights=weights)
    return x


@pytest.mark.parametrize("steps", [[1, 1, 1], [5, 5, 5], [1, 3, 8]])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_fixed_point_is_the_limit_of_fedavg(steps, weights):
    problem = quadratics(3, 4, seed=0, mu=0.3, dtype=np.float64)
    weights = None if weights is None else np.array(weights)
    # Each round contracts by at least 1 - 0.5 * 0.3: after 300 rounds 1e-21, below round-off.
    reached = fedavg(problem, 0.5, steps, weights, rounds=300)
    point = fedavg_fixed_point(problem, 0.5, np.array(steps), weights)
    np.testing.assert_allclose(point, reached, atol=1e-12)


def test_fixed_point_limits():
    problem = quadratics(5, 3, seed=1, mu=0.2, dtype=np.float64)
    optimum = quadratic_optimum(problem)
    gradient = np.einsum("mij,mj->i", problem.A, optimum - problem.b)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)
    one_step = fedavg_fixed_point(problem, 0.7, 1)
    np.testing.assert_allclose(one_step, optimum, atol=1e-12)
    # (1 - 0.5 * 0.2)^1000 < 1e-45: every client reaches its own minimiser.
    endless = fedavg_fixed_point(problem, 0.5, 1000)
    np.testing.assert_allclose(endless, problem.b.mean(axis=0), atol=1e-12)
    # The bias is O(lr): 1e-5 here, times the spread of the minimisers.
    slow = fedavg_fixed_point(problem, 1e-6, 10)
    np.testing.assert_allclose(slow, optimum, atol=1e-4)
    assert np.abs(endless - optimum).max() > 0.1  # the two limits differ


def test_equal_hessians_have_no_drift_bias():
    problem = quadratics(5, 3, seed=1, same_hessian=True, dtype=np.float64)
    mean = problem.b.mean(axis=0)
    np.testing.assert_allclose(quadratic_optimum(problem), mean, atol=1e-12)
    np.testing.assert_allclose(fedavg_fixed_point(problem, 0.5, 20), mean, atol=1e-12)


def test_singular_problems_get_a_minimiser():
    A = np.array([[[2.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    problem = Quadratics(A, np.array([[0.0, 7.0], [3.0, 7.0]]))
    np.testing.assert_allclose(quadratic_optimum(problem), [1.0, 0.0], atol=1e-14)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"lr": 0.0, "num_steps": 1}, "lr is 0.0"),
        ({"lr": 0.1, "num_steps": 0}, "num_steps is 0"),
        ({"lr": 0.1, "num_steps": 2.5}, "num_steps is 2.5; expected a positive integer"),
        ({"lr": 0.1, "num_steps": np.array([1, 2])}, r"num_steps is \[1 2\]"),
        ({"lr": 0.1, "num_steps": 1, "weights": np.ones(2)}, r"weights has shape \(2,\)"),
    ],
)
def test_bad_fixed_point_input_is_named(kwargs, match):
    with pytest.raises(ValueError, match=match):
        fedavg_fixed_point(quadratics(3, 2, seed=0), **kwargs)


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
