"""Fitted exponents of FedAvg's value on the lower-bound instance."""

import itertools

import numpy as np
import pandas as pd
import pytest

from experiments.local_methods import exponents
from experiments.local_methods.exponents import fitted, in_regime
from experiments.local_methods.instance_runs import Case


def grid(noise):
    rng = np.random.default_rng(0)
    rows = [
        {"local_steps": steps, "rounds": rounds,
         "E F": 5 * steps**-0.25 * rounds**-0.75 * np.exp(noise * rng.normal())}
        for steps, rounds in itertools.product((4, 16, 64), (8, 32, 128))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_exponents_are_the_planted_ones():
    fit = fitted(grid(0.0))
    np.testing.assert_allclose(fit["exponent"], [-0.25, -0.75], atol=1e-10)
    assert (fit["+-"] < 1e-8).all()


def test_interval_is_that_of_orthogonal_factors():
    """On a full grid log K and log R are orthogonal; t(0.975, 6) = 2.447 for nine cells."""
    cells = grid(0.1)
    y = np.log(cells["E F"].to_numpy())
    factors = [np.log(cells[name].to_numpy()) for name in ("local_steps", "rounds")]
    factors = [x - x.mean() for x in factors]
    slopes = [x @ y / (x @ x) for x in factors]
    residuals = y - y.mean() - sum(b * x for b, x in zip(slopes, factors, strict=True))
    widths = [2.447 * np.sqrt(residuals @ residuals / 6 / (x @ x)) for x in factors]
    fit = fitted(cells)
    np.testing.assert_allclose(fit["exponent"], slopes, rtol=1e-9)
    np.testing.assert_allclose(fit["+-"], widths, rtol=1e-3)


@pytest.mark.parametrize("rounds", [8, 16, 256])
@pytest.mark.parametrize("steps", [4, 64, 256])
def test_regime_is_where_the_bias_term_is_less(steps, rounds):
    """Exponents of the two terms of Theorem 2.8 with L = B = 1 and sigma = 4; equal at K = 16 R."""
    bias = 4 ** (2 / 3) / (steps ** (1 / 3) * rounds ** (2 / 3))
    other = 4 / (steps * rounds) ** 0.5
    assert in_regime(Case(16, steps, rounds, 4.0, 0.0)) == (bias <= other * (1 + 1e-12))


@pytest.mark.slow
def test_files(tmp_path):
    options = exponents.Options(
        repetitions=2, rates=3, local_steps=(2, 4), rounds=(2, 4), output=tmp_path
    )
    exponents.main(options)
    table = pd.read_csv(tmp_path / "exponents" / "exponents.csv")
    assert len(table) == 8
    text = (tmp_path / "exponents" / "exponents.md").read_text()
    assert "## Theorem 2.10: sigma 0.1, zeta 1; 4 cells" in text
    assert (tmp_path / "exponents" / "exponents.png").exists()
