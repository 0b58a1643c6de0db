"""Lemmas on the clients' gradients and the mean model's steps: formulas, runs, conditions."""

import numpy as np
import pytest
from favano_runs import LAW, simulate
from symbols import FAVANO, by_symbols

from experiments.favano.lemmas import gradients, mean_steps
from fedjax_sim.theory.favano import rates
from fedjax_sim.theory.favano.progress import progress_constants

pytestmark = pytest.mark.usefixtures("x64")

squared_gradient_bound = by_symbols(gradients.squared_gradient_bound, FAVANO)
stochastic_bound = by_symbols(gradients.squared_stochastic_gradient_bound, FAVANO)
gradient_error_bound = by_symbols(gradients.gradient_error_bound, FAVANO)
descent_bound = by_symbols(gradients.descent_bound, FAVANO)
squared_progress_bound = by_symbols(gradients.squared_progress_bound, FAVANO)
mean_step_bound = by_symbols(mean_steps.mean_step_bound, FAVANO)
mean_step_bound_at_mean = by_symbols(mean_steps.mean_step_bound_at_mean, FAVANO)
largest_lr = by_symbols(rates.largest_lr, FAVANO)

KNOWN = {"L": 1.3, "sigma": 0.7, "K": 3, "lr": 0.02}
PROBLEM = KNOWN | {"G": 0.4, "B": 1.2, "n": 6}
ALL = PROBLEM | {"a": 0.8, "b": 1.7}
ONE = {"squared_distance": 0.3, "squared_gradient": 0.9}  # of a client
SUM = {"potential": 0.3, "squared_gradient": 0.9}  # of all


def test_formulas():
    """Equations 88, 100, 101, 116, 153, 178 and 183 in NumPy."""
    L, sigma, K, eta = 1.3, 0.7, 3, 0.02
    B_t = sigma**2 / K**2 + 16 * L**2 * 0.3 + 8 * 0.9
    C_t = 4 * L**2 * eta**2 * K**2 * sigma**2 + 20 * L**2 * 0.3
    C_t += 16 * L**2 * eta**2 * K**2 * 0.9
    n, G, B, a, b, s = 6, 0.4, 1.2, 0.8, 1.7, 2
    descent = 20 * L**2 * 0.3 + 4 * n * L**2 * eta**2 * K**2 * (sigma**2 + 4 * G**2)
    descent += n * (16 * L**2 * eta**2 * K**2 * B**2 - 3 / 4) * 0.9
    progress = sigma**2 * n * a + 16 * L**2 * 0.3 * b + 8 * n * b * (B**2 * 0.9 + G**2)
    step = s**2 * eta**2 * sigma**2 / (n * (n + 1) ** 2) * n * a
    step += 16 * L**2 * s**2 * eta**2 / (n * (n + 1) ** 2) * 0.3 * b
    step += 8 * s**2 * eta**2 / (n + 1) ** 2 * b * (B**2 * 0.9 + G**2)
    for value, expected in (
        (squared_gradient_bound(**KNOWN, **ONE), B_t),
        (stochastic_bound(**KNOWN, **ONE), sigma**2 + B_t),
        (gradient_error_bound(**KNOWN, **ONE), C_t),
        (descent_bound(**PROBLEM, **SUM), descent),
        (squared_progress_bound(**ALL, **SUM), progress),
        (mean_step_bound(n=n, s=s, lr=eta, squared_progress=progress), step),
        (mean_step_bound_at_mean(s=s, **ALL, **SUM), step),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_descent_is_the_sum_of_the_errors():
    """Equations 130 to 134: sum_i C_t^i with mean ||grad f_i||^2 = G^2 + B^2 g^2, less 3/4 g^2."""
    G, B, n, g = 0.4, 1.2, 6, 0.9
    errors = gradient_error_bound(
        **KNOWN, squared_distance=np.full(n, 0.3 / n), squared_gradient=G**2 + B**2 * g
    )
    expected = np.asarray(errors).sum() - 3 / 4 * n * g
    np.testing.assert_allclose(descent_bound(**PROBLEM, **SUM), expected, rtol=1e-12)


def test_printed_steps_have_two_units():
    """Equations 189 and 191 have G^2 twice in one addend.

    In units in which models are c times as long, gradients, sigma and G are c times as large, and
    a squared step c^2 times.
    """
    s, b, lr, n = 2, 1.7, 0.02, 6

    def printed(c):
        G = 0.4 * c
        return 8 * s**2 * G**2 * lr**2 / (n + 1) ** 2 * b * G**2

    def bound(c):
        known = ALL | {"sigma": 0.7 * c, "G": 0.4 * c}
        at = {"potential": 0.3 * c**2, "squared_gradient": 0.9 * c**2}
        return float(mean_step_bound_at_mean(s=s, **known, **at))

    np.testing.assert_allclose(bound(10.0), 100 * bound(1.0), rtol=1e-12)
    np.testing.assert_allclose(printed(10.0), 10_000 * printed(1.0), rtol=1e-12)


@pytest.mark.usefixtures("allow_nans")
@pytest.mark.parametrize(
    ("bound", "values", "wrong", "text"),
    [
        (squared_gradient_bound, KNOWN | ONE, {"lr": 0.0214}, "lr <= 1 / (4 L K^2)"),
        (stochastic_bound, KNOWN | ONE, {"K": 4}, "lr <= 1 / (4 L K^2)"),
        (gradient_error_bound, KNOWN | ONE, {"L": 1.4}, "lr <= 1 / (4 L K^2)"),
        (descent_bound, PROBLEM | SUM, {"B": 0.9}, "B >= 1"),
        (squared_progress_bound, ALL | SUM, {"lr": 0.0214}, "lr <= 1 / (4 L K^2)"),
        (mean_step_bound_at_mean, ALL | SUM | {"s": 2}, {"s": 7}, "s <= n"),
    ],
)
def test_conditions(bound, values, wrong, text):
    assert np.isfinite(bound(**values))
    with pytest.warns(UserWarning, match="does not hold") as caught:
        assert np.isnan(bound(**values | wrong))
    assert text in str(caught[-1].message)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["stochastic", "deterministic"])
@pytest.mark.parametrize("s", [1, 3, 5])
def test_simulated_runs_stay_below(version, s):
    """300 repetitions: relative standard errors of some percent, the bounds' slack is a factor."""
    a, b, _ = progress_constants(LAW, local_steps=4, version=version)
    lr = float(largest_lr(L=1.0, B=1.0, b=b, n=5, s=s, K=4))
    run, problem, _ = simulate(np.random.default_rng(s), lr, s, 60, 300, version)
    known = {name: problem[name] for name in ("L", "sigma", "K")} | {"lr": lr}
    at = {"squared_distance": run.distance, "squared_gradient": run.client_gradient}
    B_t = np.asarray(squared_gradient_bound(**known, **at))[..., None]
    assert np.all(run.used <= B_t / 2)  # half of it, as the proof gives
    assert np.all(run.stochastic <= np.asarray(stochastic_bound(**known, **at))[..., None])
    error = np.asarray(gradient_error_bound(**known, **at))[..., None]
    assert np.all(run.error <= error)
    # Where all models agree, the drift alone is a fortieth of its bound.
    assert np.all(run.error[0, :, -1] > 0.01 * error[0, :, 0])

    everyone = {name: value for name, value in problem.items() if name != "s"} | {"lr": lr}
    sums = {"potential": run.potential[:-1], "squared_gradient": run.gradient}
    descent = np.asarray(descent_bound(**everyone, **sums))
    everyone |= {"a": a, "b": b}
    noise = 4 * (run.gradient * run.progress / 300) ** 0.5  # standard errors of the inner product
    assert np.all(run.descent <= descent + noise)
    assert np.all(run.descent[:5] < 0)
    limit = np.asarray(squared_progress_bound(**everyone, **sums))
    assert np.all(run.progress <= limit)
    step = np.asarray(mean_step_bound(n=5, s=s, lr=lr, squared_progress=run.progress))
    assert np.all(run.mean_step <= 1.2 * step)  # s = 1: equality up to the draws
    if s == 1:
        np.testing.assert_allclose(run.mean_step.sum(), step.sum(), rtol=0.05)
    at_mean = np.asarray(mean_step_bound_at_mean(s=s, **everyone, **sums))
    assert np.all(run.mean_step <= at_mean)
