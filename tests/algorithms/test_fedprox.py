"""FedProx: derivation, coincidences, and its proximal problem."""

import derivations
import numpy as np
import pytest
from catalogue import model
from derivations import flat, gradient, start, visits
from quadratics import CENTRES, DIM, HESSIANS, NUM_CLIENTS, START, final, same_clients
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_fedprox():
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, mu=0.4)
    assert_close(flat(model("fedprox", mu=0.4)), expected, TOLERANCE)


def test_without_proximal_term_it_is_fedavg():
    assert_close(model("fedprox", mu=0.0), model("fedavg"), TOLERANCE)


@pytest.mark.slow
def test_proximal_term_matters_from_the_second_step():
    """The proximal gradient is 0 at the start of the visit."""
    fedprox, fedavg = fs.fedprox(0.2, mu=0.5), fs.fedavg(0.2)
    assert_close(final(fedprox, num_steps=1), final(fedavg, num_steps=1), TOLERANCE)
    assert np.abs(final(fedprox, num_steps=2) - final(fedavg, num_steps=2)).max() > 1e-3


@pytest.mark.slow
def test_identical_clients_act_as_one():
    algorithm = fs.fedprox(0.2, mu=0.5)
    expected = final(algorithm, clients=same_clients(1))
    assert_close(final(algorithm, clients=same_clients(NUM_CLIENTS)), expected, TOLERANCE)


def test_scaled_objective_with_scaled_rate():
    """F -> 3 F with lr -> lr / 3 leaves the trajectory if mu scales with F."""
    scaled = final(fs.fedprox(0.1 / 3, mu=1.8), clients=(3 * HESSIANS, CENTRES))
    assert_close(scaled, final(fs.fedprox(0.1, mu=0.6)), TOLERANCE)


def test_proximal_visits_solve_the_proximal_problem():
    """Many steps: x <- mean_i (A_i + mu I)^-1 (A_i b_i + mu x)."""
    mu = 0.8
    proximal = np.linalg.inv(HESSIANS + mu * np.eye(DIM))
    x = START
    for _ in range(3):
        linear = np.einsum("mij,mj->mi", HESSIANS, CENTRES) + mu * x
        x = np.einsum("mij,mj->mi", proximal, linear).mean(0)
    # The local error shrinks by 1 - 0.4 (0.5 + 0.8) or better a step: below 1e-60 after 200.
    actual = final(fs.fedprox(0.4, mu), 3, NUM_CLIENTS, 200)
    assert_close(actual, x, TOLERANCE)
