"""The bound for clients who choose their uploads: one round by quadrature, all triangles, runs."""

import dataclasses

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf

from experiments.privacy.fixed_size_gap import Options, cells, epsilon, profile
from fedjax_sim.wrappers.privacy import fixed_size

LOSSES = np.linspace(-3.0, 3.0, 13)


def sides_of(points):
    u, x, other = points
    return tuple(float(np.linalg.norm(d)) for d in (x - u, other - u, x - other))


@pytest.mark.parametrize("seed", range(6))
def test_one_round_is_bounded(seed):
    """Quadrature in the plane; the step of 0.05 has an error below 1e-4 at the kinks."""
    random, q, z = np.random.default_rng(seed), 0.2, 1.0
    angles = random.uniform(0, 2 * np.pi, 3)
    points = np.stack([np.cos(angles), np.sin(angles)], 1) * random.uniform(0.5, 1, (3, 1))
    grid = np.arange(-7, 7, 0.05)
    y = np.stack(np.meshgrid(grid, grid), -1)
    u, x, other = (np.exp(-((y - m) ** 2).sum(-1) / 2) * 0.05**2 / (2 * np.pi) for m in points)
    p, r = (1 - q) * u + q * x, (1 - q) * u + q * other
    exact = [np.maximum(p - np.exp(e) * r, 0).sum() for e in LOSSES]
    assert (exact <= profile(LOSSES, q, sides_of(points), z) + 1e-4).all()


def test_the_bound_is_attained_by_extremes():
    """With u = x' and u = x, below 1 and above: the divergences of Poisson sampling."""
    bound = [profile(LOSSES, 0.2, sides, 1.0) for sides in ((2, 0, 2), (0, 2, 2), (2, 2, 2))]
    largest = fixed_size.profile(LOSSES, 0.2, 0.5)
    np.testing.assert_allclose(bound[2], largest, rtol=1e-12)
    above = LOSSES >= 0
    np.testing.assert_allclose(bound[0][above], largest[above], rtol=1e-12)
    np.testing.assert_allclose(bound[1][~above], largest[~above], rtol=1e-12)
    assert (bound[0][~above] < 0.98 * largest[~above] + 0.02).all()
    y = np.linspace(-12, 12, 200_001)
    p, r = (np.exp(-((y - m) ** 2) / 2) / np.sqrt(2 * np.pi) for m in (1.0, -1.0))
    exact = [np.trapezoid(np.maximum(0.8 * r + 0.2 * p - np.exp(e) * r, 0), y) for e in LOSSES]
    np.testing.assert_allclose(bound[0], exact, atol=1e-6)


@pytest.mark.parametrize("sides", [(2.0, 1.7, 1.1), (1.9, 1.5, 1.6), (2.0, 0.3, 2.0)])
def test_losses_are_not_below_the_bound(sides):
    losses = np.arange(-1200, 1201) * 0.02
    values = profile(losses, 0.1, sides, 1.0)
    values = np.minimum.accumulate(np.clip(values, 0, 1))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(0.02, -1200, 1200, values)
    for i in range(1000, 1800, 25):
        assert pmf.get_delta_for_epsilon(losses[i]) >= values[i] - 1e-12


def test_cells_cover_all_triples_of_a_ball():
    """Random points in balls of two and three dimensions, and on the circle."""
    corners = np.array(list(cells(10)))
    random = np.random.default_rng(0)
    for dimension in (1, 2, 3):
        for radius in (1.0, 0.7):
            points = random.normal(size=(500, 3, dimension))
            points *= radius / np.linalg.norm(points, axis=-1, keepdims=True)
            points *= random.choice([1.0, 0.9], (500, 3, 1))
            for triple in points:
                assert (corners >= np.array(sides_of(triple)) - 1e-12).all(1).any()


def test_a_run_is_between_its_extremes_and_the_accountant():
    options = Options(clients=100, cohort=20, rounds=5, noise=2.0, delta=1e-4, largest=20.0)
    extremes = [(2.0, 0.0, 2.0), (0.0, 2.0, 2.0)]
    same, both = epsilon(options, extremes[:1]), epsilon(options, extremes)
    every = [epsilon(options, [*extremes, *cells(m)]) for m in (4, 8, 16)]
    worst = epsilon(options, [(2.0, 2.0, 2.0)])
    assert same <= both <= every[2] <= every[1] <= every[0] <= worst
    assert every[2] < worst - options.interval
    pld = fixed_size.loss_distribution(0.2, 1.0, options.interval).self_compose(5)
    # Epsilon is rounded up to the grid of losses.
    assert worst - 1.1 * options.interval <= pld.get_epsilon_for_delta(1e-4) <= worst
    finer = dataclasses.replace(options, interval=0.01)
    assert epsilon(finer, extremes) <= both
