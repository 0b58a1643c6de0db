"""FedProx with exact visits on quadratics, whose proximal problems have closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import CENTRES, DIM, HESSIANS, NUM_CLIENTS, START, final
from small_problems import assert_close

import fedjax_sim as fs
from experiments.heterogeneity.variants import exact_fedprox, minimiser

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-10  # of the gradient; the Hessians' eigenvalues are at least 0.5


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_visits_minimise_the_proximal_objective(mu):
    """x <- mean_i (A_i + mu I)^-1 (A_i b_i + mu x); errors of 2 TOLERANCE per round add up."""
    proximal = np.linalg.inv(HESSIANS + mu * np.eye(DIM))
    x = START
    for _ in range(3):
        linear = np.einsum("mij,mj->mi", HESSIANS, CENTRES) + mu * x
        x = np.einsum("mij,mj->mi", proximal, linear).mean(0)
    assert_close(final(exact_fedprox(mu, TOLERANCE), 3, NUM_CLIENTS, 1), x, 10 * TOLERANCE)


@pytest.mark.slow
def test_a_large_weight_keeps_clients_at_the_server():
    moved = final(exact_fedprox(1e6, TOLERANCE), 1, NUM_CLIENTS, 1) - START
    gradient = np.einsum("mij,mj->mi", HESSIANS, START - CENTRES).mean(0)
    np.testing.assert_allclose(moved, -gradient / 1e6, rtol=1e-4)


def test_empty_visits_send_nothing():
    algorithm = exact_fedprox(0.1, TOLERANCE)
    oracle = fs.Oracle(lambda x, k: x - 3, lambda x, k: jnp.sum((x - 3) ** 2) / 2, lambda x: x - 3)
    for steps, expected in ((0, 0.0), (1, -3 / 1.1)):
        work = fs.Work(0, 0, jnp.array(steps), 1, 0, None, max_steps=1)
        upload, _ = algorithm.local(jnp.zeros(2), (), oracle, work)
        np.testing.assert_allclose(upload, expected, atol=1e-9)


def test_minimiser_of_a_function_that_is_not_quadratic():
    """log cosh has a curvature of 0.001 at the start; its minimum is at 1 and -2."""
    centre = jnp.array([1.0, -2.0])
    x = minimiser(lambda x: jnp.sum(jnp.log(jnp.cosh(x - centre))), centre + 4, 1e-9)
    np.testing.assert_allclose(x, centre, atol=2e-9)
