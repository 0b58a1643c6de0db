"""FedLin against NumPy, its limit with unequal steps, and where it is Mime."""

import numpy as np
import pytest
from catalogue import ALGORITHMS, paired_timeline, trained
from derivations import flat, gradient, start, visits, whole_data_weights
from instance_q import LR, OPTIMUM, A, assert_printed, models
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


def test_fedlin():
    lr = ALGORITHMS["fedlin"][1]["lr"]
    x = start()
    for cohort in visits(paired_timeline())[1::2]:
        g = np.mean([gradient()(x, whole_data_weights()[i]) for i, _ in cohort], axis=0)
        ends = []
        for _, batches in cohort:
            y = x
            for weights in batches:
                change = gradient()(y, weights) - gradient()(x, weights)
                y = y - lr / len(batches) * (change + g)
            ends.append(y)
        x = np.mean(ends, axis=0)
    assert_close(flat(trained("fedlin").server.params), x, TOLERANCE)


def pairs(rounds, num_steps):
    return fs.timelines.repeat_rounds(fs.timelines.full(rounds, 2, np.array(num_steps)), 2)


@pytest.mark.slow
def test_unequal_steps_do_not_bias_the_limit():
    """The paper's claim: linear convergence to the optimum."""
    path = models(fs.fedlin(0.3), timeline=pairs(60, (1, 9)), num_steps=(1, 9))[1::2]
    assert_printed(path[:3], "0.3781448777", "0.5656316907", "0.6585889331")
    steps = np.array([1, 9])
    factor = 1 - A.mean() * np.mean((1 - (1 - 0.3 * A / steps) ** steps) / A)
    assert_printed(factor, "0.4958068297")
    errors = np.abs(path[:10] - OPTIMUM)
    np.testing.assert_allclose(errors[1:] / errors[:-1], factor, rtol=1e-9)
    np.testing.assert_allclose(path[-1], OPTIMUM, atol=1e-12)


@pytest.mark.slow
def test_equal_steps_are_mime_with_sgd():
    timeline = pairs(3, (5, 5))
    expected = models(fs.mime(LR, momentum=0.0), timeline=timeline)
    assert_close(models(fs.fedlin(5 * LR), timeline=timeline), expected, TOLERANCE)
