"""FedExP against NumPy, its step for orthogonal displacements, and where it does not converge."""

import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import LR, assert_printed, models
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


@pytest.mark.parametrize("name", ["fedexp", pytest.param("fedexp_average", marks=pytest.mark.slow)])
def test_fedexp(name):
    values = ALGORITHMS[name][1]
    x, steps = start(), []
    for cohort in visits():
        deltas = []
        for _, batches in cohort:
            y = x
            for weights in batches:
                y = y - values["lr"] * gradient()(y, weights)
            deltas.append(x - y)
        mean = np.mean(deltas, axis=0)
        ratio = np.mean([d @ d for d in deltas]) / (2 * (mean @ mean + values["eps"]))
        steps.append(max(1.0, ratio))
        last, x = x, x - steps[-1] * mean
    assert max(steps) > 1
    expected = (last + x) / 2 if name == "fedexp_average" else x
    assert_close(flat(trained(name).server.params), expected, TOLERANCE)


def test_orthogonal_equal_displacements():
    """The paper's claim: the step is M / 2, and interpolating problems are solved faster."""
    unit = {"clients": (np.eye(4), np.zeros((4, 4))), "num_steps": 2, "start": 1.0}
    exact = (1 - 2 * 0.75 / 4) ** 10
    path = models(fs.fedexp(0.5, eps=0.0), 10, **unit)
    assert_printed(path[-1], *["0.0090949470"] * 4)
    np.testing.assert_allclose(path[-1], exact, rtol=1e-12)
    assert_printed(models(fs.fedavg(0.5), 10, **unit)[-1], *["0.1253815679"] * 4)


def test_instance_q_does_not_converge():
    """The mean displacement vanishes at FedAvg's limit, the single ones do not."""
    path = models(fs.fedexp(LR), 200)
    assert_printed(path[:3], "0.415965", "0.819809", "0.493823")
    assert np.abs(np.diff(path[-50:])).max() > 0.1


def test_equal_displacements_are_fedavg():
    same = {"clients": ([2.0, 2.0], [1.0, 1.0])}
    assert_close(models(fs.fedexp(LR), **same), models(fs.fedavg(LR), **same), TOLERANCE)


@pytest.mark.slow
def test_eps_may_be_a_schedule():
    decaying = fs.local.exponential_decay(1e-3, 0.5)
    path = models(fs.fedexp(LR, eps=decaying))
    assert_close(path[0], models(fs.fedexp(LR, eps=1e-3))[0], TOLERANCE)
    assert abs(path[2] - models(fs.fedexp(LR, eps=1e-3))[2]) > 1e-6
