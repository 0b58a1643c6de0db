"""The function on which Nesterov's method is unstable: its bumps, growth, and the contrasts."""

import functools

import numpy as np
import pytest

from experiments.fedac.unstable_descent import (
    Bumps,
    accelerated_descent,
    construct,
    gradient,
    gradient_descent,
    predicted_separation,
    separation,
)

CASES = {25.0: (20, 1e-10), 100.0: (12, 1e-8), 1e4: (12, 1e-7)}


def _numpy_gradient(x, bumps):
    inside = np.clip(np.asarray(bumps.centres) + bumps.half_width - x, 0, 2 * bumps.half_width)
    return bumps.mu * x - (bumps.smoothness - bumps.mu) * inside.sum()


def _nesterov(x, bumps, num_steps):
    """Thesis, Algorithm 3, as printed."""
    l, mu = bumps.smoothness, bumps.mu
    root = np.sqrt(l / mu)
    main = aggregate = x
    middles, iterates = [], [(aggregate, main)]
    for _ in range(num_steps):
        middle = main / (root + 1) + root / (root + 1) * aggregate
        g = _numpy_gradient(middle, bumps)
        aggregate = middle - g / l
        main = (1 - 1 / root) * main + middle / root - g / np.sqrt(l * mu)
        middles.append(middle)
        iterates.append((aggregate, main))
    return np.array(middles), np.array(iterates).T


@pytest.mark.parametrize("condition", CASES)
def test_gradients_are_taken_at_the_centres(condition):
    """By the method as printed: every third middle point lies in its bump, the others in none.

    Rounding errors grow like the differences, up to 1e5 times: to a tenth of the half width.
    """
    bumps = construct(condition, *CASES[condition])
    middles, expected = _nesterov(1.0, bumps, 3 * len(bumps.centres))
    half = bumps.half_width
    np.testing.assert_allclose(middles[1::3], bumps.centres, rtol=0, atol=0.1 * half)
    others = np.delete(middles, np.s_[1::3])
    assert (np.abs(others[:, None] - bumps.centres) > half).all()
    assert (np.diff(middles) < 0).all()
    result = accelerated_descent(bumps, 1.0, 3 * len(bumps.centres))
    np.testing.assert_allclose(result, expected, rtol=0, atol=0.1 * half)


def test_gradient_has_curvature_mu_and_l():
    """By differences; float32 arguments suffice for bumps of width 0.2."""
    bumps = Bumps(np.array([0.5, 0.0], np.float32), 0.1, mu=0.04, smoothness=1.0)
    for x, curvature in ((0.8, 0.04), (0.5, 1.0), (0.25, 0.04), (0.0, 1.0), (-0.5, 0.04)):
        low, high = (gradient(np.float32(x + shift), bumps) for shift in (-0.05, 0.05))
        assert float(high - low) / 0.1 == pytest.approx(curvature, rel=1e-4)


@pytest.mark.parametrize("condition", CASES)
@pytest.mark.parametrize(("distance", "tolerance"), [(1e-13, 5e-3), (1e-12, 5e-4)])
def test_separation_grows_as_predicted(condition, distance, tolerance):
    """Exact but for rounding, 1e-16 of the starts' distance, some of it growing along: the
    deviations seen at 1e-13 are up to 0.3 %, and ten times less at 1e-12.
    """
    count, half = CASES[condition]
    result = separation(accelerated_descent, construct(condition, count, half), distance)
    k = np.arange(1, count + 1)
    aggregate, main = predicted_separation(condition, k)
    np.testing.assert_allclose(result.main[3::3], main, rtol=tolerance)
    np.testing.assert_allclose(result.aggregate[3::3], aggregate, rtol=tolerance)
    assert result.main[0] == result.aggregate[0] == 1


def test_predictions_are_those_of_the_theorem():
    for condition, expected in ((25.0, 4.821), (100.0, 507.5), (1e4, 1.4405e5)):
        count = CASES[condition][0]
        assert predicted_separation(condition, count)[1] == pytest.approx(expected, rel=2e-4)
        # The theorem's statement with its two lower bounds in the proof's order.
        aggregate, main = predicted_separation(condition, count)
        assert main >= 1.02**count
        assert aggregate >= 1.02**count / 2


@pytest.mark.parametrize("condition", CASES)
def test_gradient_descent_never_separates(condition):
    """A step of rate 1 / L does not expand; rounding at distance 1e-12."""
    result = separation(gradient_descent, construct(condition, *CASES[condition]), 1e-12)
    np.testing.assert_array_equal(result.main, result.aggregate)
    assert (np.diff(result.main) < 1e-3).all()
    assert result.main[-1] < 1


def test_fedac_separates_less_than_its_bound():
    """FedAc-I with K steps: at most (1 + 2 gamma^2 mu / eta) a step in a norm equivalent to that of
    the iterates; K = 1 is Nesterov's method, and many steps gradient descent's rate.
    """
    bumps = construct(100.0, 12, 1e-8)
    by_steps = {
        k: separation(functools.partial(accelerated_descent, local_steps=k), bumps, 1e-12).main
        for k in (1, 4, 100)
    }
    agd = separation(accelerated_descent, bumps, 1e-12).main
    np.testing.assert_allclose(by_steps[1], agd, rtol=1e-3)
    assert agd[-1] > 500
    assert max(by_steps[4].max(), by_steps[100].max()) < 1.01


def test_methods_on_a_quadratic():
    """No bumps: linear recursions, Nesterov's by NumPy; rounding only."""
    flat = Bumps(np.zeros(1), 0.0, mu=0.04, smoothness=1.0)
    _, expected = _nesterov(1.0, flat, 20)
    np.testing.assert_allclose(accelerated_descent(flat, 1.0, 20), expected, rtol=1e-11)
    np.testing.assert_allclose(gradient_descent(flat, 1.0, 20).main, 0.96 ** np.arange(21))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: construct(16.0, 3, 1e-8), "condition is 16.0; expected"),
        (lambda: construct(25.0, 0, 1e-8), "num_bumps is 0"),
        (lambda: construct(25.0, 3, 0.0), "half_width is 0.0; expected a positive"),
        (lambda: construct(25.0, 60, 1e-3), "half_width is 0.001; expected below"),
        (lambda: separation(gradient_descent, construct(25.0, 3, 1e-8), 1e-7), "distance is 1e-07"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
