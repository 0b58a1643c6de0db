"""Figures: what the artists show equals what was given; everything renders without warnings."""

import numpy as np
import pandas as pd
import pytest
from figures import band_of, render

from fedjax_sim import plotting

VALUES = {  # algorithm -> [seeds, rounds]
    "scaffold": np.array([[3.0, 2.0, 1.5], [5.0, 2.0, 0.5], [4.0, 5.0, 1.0]]),
    "fedavg": np.array([[1.0, 0.5, 0.2], [3.0, 0.5, 0.4], [2.0, 2.0, 0.6]]),
}


def tidy(values, metric="loss", rounds=(0, 10, 20), column="algorithm"):
    rows = [
        (name, seed, rounds[t], metric, value)
        for name, table in values.items()
        for seed, line in enumerate(table)
        for t, value in enumerate(line)
    ]
    return pd.DataFrame(rows, columns=[column, "seed", "round", "metric", "value"])


def test_curves_show_the_means_in_the_frames_order():
    frame = tidy(VALUES).sample(frac=1, random_state=0)  # rows in any order
    figure = plotting.curves(frame.sort_values("algorithm", ascending=False), "loss")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["SCAFFOLD", "FedAvg"]
    for line, table in zip(axes.lines, VALUES.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [0, 10, 20])
        np.testing.assert_allclose(line.get_ydata(), table.mean(axis=0), rtol=1e-15)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SCAFFOLD", "FedAvg"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "loss")
    render(figure)


# Student's 97.5 % quantile with two degrees of freedom, from a printed table: 4.303.
@pytest.mark.parametrize(
    ("band", "edges"),
    [
        ("std", lambda v: (v.mean(0) - v.std(0, ddof=1), v.mean(0) + v.std(0, ddof=1))),
        ("minmax", lambda v: (v.min(0), v.max(0))),
        (
            "ci",
            lambda v: (
                v.mean(0) - 4.303 * v.std(0, ddof=1) / np.sqrt(3),
                v.mean(0) + 4.303 * v.std(0, ddof=1) / np.sqrt(3),
            ),
        ),
    ],
)
def test_bands(band, edges):
    (axes,) = plotting.curves(tidy(VALUES), "loss", band=band).axes
    for i, table in enumerate(VALUES.values()):
        xs, shown = band_of(axes, i)
        np.testing.assert_array_equal(xs, [0, 10, 20])
        np.testing.assert_allclose(shown, edges(table), rtol=1e-3)  # the table has four digits


def test_no_band_when_asked_or_with_one_seed():
    one_seed = {name: table[:1] for name, table in VALUES.items()}
    assert not plotting.curves(tidy(VALUES), "loss", band=None).axes[0].collections
    assert not plotting.curves(tidy(one_seed), "loss").axes[0].collections


def test_panels_share_colours_even_where_an_algorithm_is_missing():
    frame = pd.concat(
        [tidy(VALUES), tidy({"fedavg": VALUES["fedavg"] / 10}, metric="test_accuracy")]
    )
    figure = plotting.curves(frame, ["loss", "test_accuracy"], yscale="log")
    left, right = figure.axes
    assert right.get_ylabel() == "test accuracy"
    assert [line.get_label() for line in right.lines] == ["FedAvg"]
    assert left.lines[1].get_color() == right.lines[0].get_color()
    assert left.get_yscale() == right.get_yscale() == "log"
    assert len(figure.legends[0].get_texts()) == 2
    render(figure)


def test_spare_panels_are_removed():
    frame = pd.concat([tidy(VALUES, metric=name) for name in "abcd"])
    figure = plotting.curves(frame, list("dabc"), max_columns=3)
    assert [axes.get_ylabel() for axes in figure.axes] == list("dabc")


def test_many_lines_stay_distinct():
    values = {i * 0.1: np.ones((1, 3)) * i for i in range(12)}
    figure = plotting.curves(tidy(values, column="client_lr"), "loss", by="client_lr")
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    assert len(set(looks)) == 12
    assert len({style for _, style in looks[:4]}) == 4  # also in grey
    assert figure.legends[0].get_title().get_text() == "client learning rate"
    render(figure)


def test_seeds_on_different_grids_are_interpolated_over_the_common_range():
    rows = [("a", 0, 0.0, "loss", 0.0), ("a", 0, 4.0, "loss", 4.0)]
    rows += [("a", 1, 1.0, "loss", 3.0), ("a", 1, 2.0, "loss", 5.0), ("a", 1, 6.0, "loss", 9.0)]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "time", "metric", "value"])
    (line,) = plotting.curves(frame, "loss", x="time").axes[0].lines
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 4])
    # Seed 0 is y = x; seed 1 is 3, 5, 7 there: means 2, 3.5, 5.5.
    np.testing.assert_allclose(line.get_ydata(), [2.0, 3.5, 5.5], rtol=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("band", ["std", "minmax", "ci"])
def test_a_diverged_seed_is_not_hidden(bad, band):
    table = VALUES["fedavg"].copy()
    table[1, 2] = bad
    figure = plotting.curves(tidy({"fedavg": table}), "loss", band=band)
    shown = figure.axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(shown[:2], table[:, :2].mean(axis=0), rtol=1e-15)
    assert not np.isfinite(shown[2])
    render(figure)


def test_a_diverged_run_ends_at_its_last_finite_point_and_is_marked():
    """The second seed's state is not finite from round 15 on; its accuracy there is no result."""
    table = np.array([[0.1, 0.5, 0.9], [0.3, 0.7, 0.1]])
    frame = tidy({"fedavg": table, "mine": table}, metric="test/accuracy")
    failed = (frame["seed"] == 1) & (frame["algorithm"] == "fedavg")
    frame["diverged_at"] = np.where(failed, 15, 0)
    figure = plotting.curves(frame, "test/accuracy", band="seeds", caption="digits.")
    (axes,) = figure.axes
    mean, cross, *_ = axes.lines
    np.testing.assert_allclose(mean.get_ydata(), [0.2, 0.6, np.nan])
    assert (cross.get_marker(), cross.get_xdata(), cross.get_ydata()) == ("x", [10], [0.6])
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["FedAvg: diverged in round 15 (1 of 2 seeds)", "mine"]
    singles = [line.get_ydata().tolist() for line in axes.lines if line.get_label() == "_seed"]
    assert singles[0] == [0.1, 0.5, 0.9]
    assert singles[1][:2] == [0.3, 0.7]
    assert np.isnan(singles[1][2])
    lines = figure.get_supxlabel().split("\n")
    assert lines == ["digits.", "Lines: mean of 2 seeds; thin lines: single seeds."]
    render(figure)


def test_bands_of_accuracies_stay_in_their_range():
    table = np.array([[0.9, 0.2], [1.0, 0.0], [1.0, 0.0]])
    (axes,) = plotting.curves(
        tidy({"fedavg": table}, "test/accuracy", rounds=(1, 2)), "test/accuracy", band="ci"
    ).axes
    _, (low, high) = band_of(axes, 0)
    assert (low.min(), high.max()) == (0, 1)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: plotting.curves(f, "accuracy"), r"metric is \['accuracy'\].*\['loss'\]"),
        (lambda f: plotting.curves(f, []), r"metric is \[\]"),
        (lambda f: plotting.curves(f, "loss", x="time"), r"lacks the columns \['time'\]"),
        (lambda f: plotting.curves(f, "loss", band="sem"), "band is 'sem'"),
        (
            lambda f: plotting.curves(f, "loss", max_columns=0),
            "max_columns is 0; expected at least 1",
        ),
        (lambda f: plotting.dashboard(f, max_columns=0), "max_columns is 0; expected at least 1"),
        (lambda f: plotting.curves(pd.concat([f, f]), "loss"), "two rows for.*'scaffold'"),
        (
            lambda f: plotting.curves(f.assign(round=f["round"] + 100 * f["seed"]), "loss"),
            "seeds have no common range",
        ),
    ],
)
def test_bad_history_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(tidy(VALUES))


def test_one_evaluated_round_has_no_fractions_of_rounds_on_its_axis():
    rows = [("fedavg", 0, 7, "loss", 1.0)]
    columns = ["algorithm", "seed", "round", "metric", "value"]
    figure = plotting.curves(pd.DataFrame(rows, columns=columns), "loss")
    assert set(figure.axes[0].get_xticks() % 1) == {0}
