"""Curves of the alternatives after a fork."""

import numpy as np
import pandas as pd
import pytest

from fedjax_sim import plotting

COLUMNS = ["alternative", "seed", "round", "metric", "value"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 5.0])
def test_a_diverged_seed_is_not_hidden(bad):
    """Seed 1 of "b" fails in round 6: both lines of "b" end in round 5, with a cross."""
    rows = [
        (name, seed, t, "loss", bad if (name, seed) == ("b", 1) and t > 5 else 1.0 + 99 * seed)
        for name in "ab"
        for seed in (0, 1)
        for t in (5, 6, 7)
    ]
    history = pd.DataFrame(rows, columns=COLUMNS)
    if np.isfinite(bad):  # the value of a model that is not finite
        failed = (history["alternative"] == "b") & (history["seed"] == 1)
        history["diverged_at"] = np.where(failed, 6, 0)
    differences = pd.DataFrame(
        {"alternative": "b", "round": [5, 6, 7], "mean": [0.0, 0.0, 0.0], "low": -1.0, "high": 1.0}
    )
    left, right = plotting.fork_curves(history, differences, "loss", 5, "a").axes
    lines = {line.get_label(): line for line in left.lines}
    np.testing.assert_array_equal(lines["a"].get_ydata(), [50.5, 50.5, 50.5])
    np.testing.assert_array_equal(lines["b"].get_ydata(), [50.5, np.nan, np.nan])
    cross = lines["_diverged"]
    assert (cross.get_marker(), cross.get_xdata(), cross.get_ydata()) == ("x", [5], [50.5])
    difference, cross = right.lines[-2:]
    np.testing.assert_array_equal(difference.get_ydata(), [0, np.nan, np.nan])
    assert (cross.get_marker(), cross.get_xdata(), cross.get_ydata()) == ("x", [5], [0])


def test_the_legend_is_above_the_panels_and_lines_differ_without_colours():
    names = ["base", "twice the learning rate from here", "half"]
    rows = [(name, 0, t, "loss", float(t)) for name in names for t in (5, 6)]
    pairs = pd.DataFrame(
        {"alternative": "half", "round": [5, 6], "mean": 0.0, "low": -1.0, "high": 1.0}
    )
    history = pd.DataFrame(rows, columns=COLUMNS)
    figure = plotting.fork_curves(history, pairs, "loss", 5, "base")
    assert all(axes.get_legend() is None for axes in figure.axes)  # it would hide lines
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert legend.get_title().get_text() == "What if, from round 5"
    assert len({line.get_linestyle() for line in figure.axes[0].lines}) == len(names)


@pytest.mark.parametrize(("num_seeds", "bands"), [(2, 0), (3, 1)])
def test_the_text_names_the_interval_of_the_differences(num_seeds, bands):
    rows = [(x, s, t, "loss", float(t)) for x in "ab" for s in range(num_seeds) for t in (5, 6)]
    pairs = pd.DataFrame(
        {"alternative": "b", "round": [5, 6], "mean": 0.0, "low": -1.0, "high": 1.0}
    )
    figure = plotting.fork_curves(pd.DataFrame(rows, columns=COLUMNS), pairs, "loss", 5, "a")
    drawn = [path for band in figure.axes[1].collections for path in band.get_paths()]
    assert len([path for path in drawn if len(path.vertices)]) == bands
    interval = "and its 95 % interval (Student's t)." if bands else "without an interval"
    assert f"Mean over {num_seeds} seeds" in figure.get_supxlabel().replace("\n", " ")
    assert interval in figure.get_supxlabel().replace("\n", " ")
