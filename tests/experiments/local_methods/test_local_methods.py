"""The experiments on iterate bias and on the instance of the lower bound."""

import dataclasses
import functools
import json

import numpy as np
import pandas as pd
import pytest

from experiments.local_methods import (
    bias_growth,
    figure_2_1,
    instance_runs,
    iterate_bias,
    lower_bound,
)
from experiments.local_methods.redraw import redraw

TINY = iterate_bias.Options(repetitions=512, diffusion_paths=16, lrs=(1e-4, 1e-3), steps=32)
growth = functools.cache(bias_growth.growth)


@pytest.mark.slow
def test_growth_has_the_slopes_of_the_laws():
    """Slopes are below the limit's by the order of lr k, and of 1 / k from sums of few terms."""
    table = bias_growth.slopes(growth(TINY.lrs, TINY.steps))
    np.testing.assert_allclose(table["slope in k"], table["expected in k"], atol=0.08)
    np.testing.assert_allclose(table["slope in lr"], table["expected in lr"], atol=0.02)


@pytest.mark.slow
def test_continuous_view_tells_the_constants_apart():
    """At rate 1e-3 and 16 steps the leading terms hold to about 1.5 %."""
    table = bias_growth.continuous(1e-3, 16)
    for name in ("recursion / (1/4 k (k - 1))", "equation / (1/4 k^2)"):
        np.testing.assert_allclose(table[name], 1, atol=0.02)
    np.testing.assert_allclose(table["1/2 k^2 (printed)"], 2 * table["1/4 k^2"])


@pytest.mark.slow
def test_lower_bound_sweep_agrees_with_closed_forms():
    """float32 over 512 steps; E F is the sum of its parts and has the reference's size."""
    case = lower_bound.CASES[1]
    table = instance_runs.sweep(case, rates=3, repetitions=8, seed=0)
    for name in ("F2", "F3", "F4"):
        np.testing.assert_allclose(table[name], table[f"{name} closed"], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(
        table["E F"], table[list(instance_runs.PARTS)].sum(axis=1), rtol=1e-6
    )
    assert (table["E F / (2 mu B^2)"] > 0.01).all()


@pytest.mark.slow
def test_files(tmp_path, monkeypatch):
    """Every experiment writes its table, its text, how it was made and its figure."""
    monkeypatch.setattr(figure_2_1, "RECORDED", (16, 32))
    monkeypatch.setattr(iterate_bias, "growth", growth)
    iterate_bias.main(dataclasses.replace(TINY, output=tmp_path))
    monkeypatch.setattr(lower_bound, "CASES", lower_bound.CASES[:1])
    lower_bound.main(lower_bound.Options(repetitions=2, rates=2, output=tmp_path))
    for name in ("iterate_bias", "lower_bound"):
        folder = tmp_path / name
        assert len(pd.read_csv(folder / f"{name}.csv")) >= 2
        assert json.loads((folder / f"{name}.json").read_text())["command"]
        assert (folder / f"{name}.png").stat().st_size > 2_000
    texts = {path: path.read_text() for path in tmp_path.rglob("*.md")}
    for path, text in texts.items():
        assert text.startswith("# ")
        path.unlink()
        path.with_suffix(".png").unlink()
    redraw(tmp_path)
    assert {path: path.read_text() for path in tmp_path.rglob("*.md")} == texts
    assert len(list(tmp_path.rglob("*.png"))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: iterate_bias.Options(repetitions=1), "repetitions is 1; expected"),
        (lambda: iterate_bias.Options(lrs=(0.1,)), "lrs is"),
        (lambda: lower_bound.Options(rates=1), "rates is 1; expected"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        options()
