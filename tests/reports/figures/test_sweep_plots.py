"""Figures of sweeps: what the artists show equals means, intervals and failures by hand."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from figures import band_of, render
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, to_hex, to_rgba
from matplotlib.patches import Rectangle
from scipy import stats

from fedjax_sim.reports import statistics
from fedjax_sim.reports.figures import COLORS, heat_map, sensitivity, speed_up_figure

NAN = math.nan
LRS, STEPS = (0.01, 0.1, 1.0), (1, 4, 16, 64)
MODES = {"min": np.min, "max": np.max}


def table(seed=0):
    """Scores [lr, local_steps, momentum, seed], positive."""
    return np.random.default_rng(seed).uniform(0.1, 2.0, size=(3, 4, 2, 5))


def as_scores(values):
    rows = [
        (lr, steps, momentum, seed, values[i, j, k, seed])
        for i, lr in enumerate(LRS)
        for j, steps in enumerate(STEPS)
        for k, momentum in enumerate((0.0, 0.9))
        for seed in range(5)
    ]
    frame = pd.DataFrame(rows, columns=["lr", "local_steps", "momentum", "seed", "score"])
    return frame.sample(frac=1, random_state=0)


def cells_of(axes):
    (mesh,) = (c for c in axes.collections if isinstance(c, QuadMesh))
    values = mesh.get_array()
    return mesh, np.where(np.ma.getmaskarray(values), NAN, np.ma.getdata(values))


def boxes(axes, hatched):
    """Centres (column, row) of the hatched rectangles, or of the outlined ones."""
    return [
        (patch.get_x() + 0.5, patch.get_y() + 0.5)
        for patch in axes.patches
        if isinstance(patch, Rectangle)
        and (patch.get_hatch() is not None if hatched else patch.get_facecolor()[3] == 0)
    ]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_heat_map_shows_the_best_means(mode):
    values = table()
    figure = heat_map(as_scores(values), "lr", "local_steps", mode=mode, label="loss")
    axes, bar = figure.axes
    means = MODES[mode](values.mean(axis=3), axis=2).T  # [steps, lr], best over momentum
    _, shown = cells_of(axes)
    np.testing.assert_allclose(shown, means, rtol=1e-12)  # rounding of sums of five
    row, column = np.unravel_index(means.argmin() if mode == "min" else means.argmax(), means.shape)
    assert boxes(axes, hatched=False) == [(column, row)]
    assert boxes(axes, hatched=True) == []
    texts = {text.get_position(): float(text.get_text()) for text in axes.texts}
    for i, j in itertools.product(range(4), range(3)):
        assert abs(texts[j, i] - means[i, j]) <= 0.005  # three digits of numbers below 2
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.01", "0.1", "1"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["1", "4", "16", "64"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "local steps")
    assert axes.get_title() == "mean of 5 seeds, best over momentum"
    assert bar.get_ylabel() == "loss"
    render(figure)


def test_heat_map_marks_failures_and_leaves_out_what_was_not_run():
    values = table()
    values[2, 3] = NAN  # all seeds, both momenta
    values[1, 0, :, 2] = NAN  # one seed each
    values[0, 0, 0, 0] = NAN  # the other momentum is healthy
    frame = as_scores(values)
    frame = frame.loc[~((frame["lr"] == 0.01) & (frame["local_steps"] == 64))]
    figure = heat_map(frame, "lr", "local_steps", log=True)
    axes = figure.axes[0]
    mesh, shown = cells_of(axes)
    assert isinstance(mesh.norm, LogNorm)
    np.testing.assert_array_equal(np.argwhere(np.isnan(shown)), [[0, 1], [3, 0], [3, 2]])
    np.testing.assert_allclose(shown[0, 0], values[0, 0, 1].mean(), rtol=1e-12)
    assert sorted(boxes(axes, hatched=True)) == [(1, 0), (2, 3)]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert (texts[1, 0], texts[2, 3]) == ("✗ 1/5", "✗ 5/5")
    assert (0, 3) not in texts
    render(figure)


def test_heat_map_without_a_single_mean():
    figure = heat_map(as_scores(table() * NAN), "lr", "local_steps", log=True)
    assert len(boxes(figure.axes[0], hatched=True)) == 12
    assert boxes(figure.axes[0], hatched=False) == []
    render(figure)


def test_heat_map_of_rounds_that_are_infinite():
    values = table()
    values[0, 0] = math.inf
    figure = heat_map(as_scores(values), "lr", "local_steps")
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert texts[0, 0] == "inf"
    assert boxes(figure.axes[0], hatched=True) == []  # nobody failed
    render(figure)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (30, 2), (2, 40), (30, 40)])
def test_heat_map_of_extreme_shapes(size):
    rows = [
        (i, j, 0, NAN if i == j == 1 else i + j) for i in range(size[0]) for j in range(size[1])
    ]
    frame = pd.DataFrame(rows, columns=["a", "b", "seed", "score"]).assign(momentum=0.9)
    figure = heat_map(frame, "a", "b")
    assert max(figure.get_size_inches()) <= 12  # fits a page
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == {(1, 1): ["0"], (30, 2): ["✗"], (2, 40): ["✗"], (30, 40): ["✗"]}.get(
        size
    ) or len(texts) == len(rows)
    assert figure.axes[0].get_title() == ""  # one seed, nothing tuned
    render(figure)


def test_values_in_the_cells_can_be_read():
    rows = [(i, j, 0, i + 16 * j) for i in range(16) for j in range(10)]  # every shade
    figure = heat_map(pd.DataFrame(rows, columns=["a", "b", "seed", "score"]), "a", "b")
    mesh, shown = cells_of(figure.axes[0])

    def luminance(color):  # of WCAG 2
        rgb = np.array(to_rgba(color)[:3])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ (0.2126, 0.7152, 0.0722)

    assert len(figure.axes[0].texts) == 160
    for text in figure.axes[0].texts:
        column, row = text.get_position()
        behind, ink = (
            luminance(mesh.cmap(mesh.norm(shown[row, column]))),
            luminance(text.get_color()),
        )
        assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) >= 4.5  # WCAG's level AA


def test_axes_in_numeric_order_with_strings_and_missing_values():
    rows = [("b", NAN, 1.0), ("a", 10, 2.0), ("a", 9, 3.0), ("c", 10, 4.0)]
    frame = pd.DataFrame(rows, columns=["algorithm", "server_lr", "score"]).assign(seed=0)
    axes = heat_map(frame, "server_lr", "algorithm").axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["9", "10", "none"]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b", "c"]
    np.testing.assert_array_equal(cells_of(axes)[1], [[3, 2, NAN], [NAN, NAN, 1], [NAN, 4, NAN]])


@pytest.mark.parametrize("mode", ["min", "max"])
def test_sensitivity_shows_means_and_intervals(mode):
    values = table()
    figure = sensitivity(as_scores(values), "lr", by="local_steps", mode=mode, label="loss")
    (axes,) = figure.axes
    drawn = [line for line in axes.lines if line.get_linestyle() != "None"]
    assert [line.get_label() for line in drawn] == ["1", "4", "16", "64"]
    means = values.mean(axis=3)  # [lr, steps, momentum]
    chosen = means.argmin(axis=2) if mode == "min" else means.argmax(axis=2)
    for j, line in enumerate(drawn):
        seeds = np.stack([values[i, j, chosen[i, j]] for i in range(3)])  # [lr, seed]
        np.testing.assert_array_equal(line.get_xdata(), LRS)
        np.testing.assert_allclose(line.get_ydata(), seeds.mean(axis=1), rtol=1e-12)
        half = stats.t.ppf(0.975, 4) * stats.sem(seeds, axis=1)
        xs, band = band_of(axes, j)
        np.testing.assert_allclose(xs, LRS)
        expected = (seeds.mean(axis=1) - half, seeds.mean(axis=1) + half)
        np.testing.assert_allclose(band, expected, rtol=1e-12, atol=1e-14)  # low may be near 0
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "loss")
    assert axes.get_title() == "mean of 5 seeds, best over momentum"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["1", "4", "16", "64"]
    assert figure.legends[0].get_title().get_text() == "local steps"
    render(figure)


def marks(axes, marker):
    """x and height of the marks above the panel, by colour."""
    return {
        line.get_color(): (list(line.get_xdata()), set(line.get_ydata()))
        for line in axes.lines
        if line.get_marker() == marker and len(line.get_xdata())
    }


def test_sensitivity_marks_failures_at_the_top_edge():
    values = table()
    values[2, 0], values[1:, 2, :, 3], values[0, 1, :, 1] = NAN, NAN, math.inf
    figure = sensitivity(as_scores(values), "lr", by="local_steps", yscale="log")
    (axes,) = figure.axes
    failed = marks(axes, "x")
    first, third = COLORS[0], COLORS[2]
    assert {color: x for color, (x, _) in failed.items()} == {first: [1.0], third: [0.1, 1.0]}
    assert {c: x for c, (x, _) in marks(axes, "^").items()} == {COLORS[1]: [0.01]}
    heights = [y for _, y in (*failed.values(), *marks(axes, "^").values())]
    assert min(min(y) for y in heights) > 1  # in parts of the axis
    assert len(set.union(*heights)) == 3  # none hides another
    line = axes.lines[0]
    np.testing.assert_array_equal(np.isfinite(line.get_ydata()), [True, True, False])
    texts = [t.get_text() for t in figure.legends[0].get_texts()]
    assert texts == ["1", "4", "16", "64", "a seed failed", "infinite"]
    low, high = axes.get_ylim()
    assert 0.01 < low < high < 10  # the marks do not stretch the axis
    render(figure)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([0.001, 0.002, 0.005, 0.01, 0.02, 0.05], "log"),
        ([1, 2, 4, 8], "log"),
        ([0.0, 0.5, 0.9], "linear"),
        ([1, 2, 3, 4], "linear"),
        ([0.1, 1.0], "linear"),  # two values are even on any axis
        ([0.3], "linear"),
    ],
)
def test_the_axis_is_logarithmic_where_the_grid_is(values, scale):
    frame = pd.DataFrame({"m": values, "seed": 0, "score": np.arange(len(values)) + 1.0})
    (axes,) = (figure := sensitivity(frame, "m")).axes
    assert axes.get_xscale() == scale
    assert [t.get_text() for t in axes.get_xticklabels()] == [f"{v:g}" for v in values]
    assert not figure.legends
    render(figure)


def test_sensitivity_to_names_and_without_missing_values():
    rows = [("sgd", NAN, 3.0), ("adam", 0.9, 1.0), ("adam", 0.99, 2.0), ("yogi", 0.9, 4.0)]
    frame = pd.DataFrame(rows, columns=["optimizer", "beta", "score"]).assign(seed=0)
    (axes,) = (figure := sensitivity(frame, "optimizer")).axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["adam", "sgd", "yogi"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1, 3, 4])
    render(figure)
    (axes,) = sensitivity(frame, "beta", by="optimizer").axes
    shown = {
        line.get_label(): list(line.get_xdata()) for line in axes.lines if line.get_xdata().size
    }
    assert shown == {"adam": [0.9, 0.99], "yogi": [0.9]}  # sgd has no beta


def speed_ups(**kwargs):
    rng = np.random.default_rng(3)
    rows = [
        (name, k, m, s, (1 / m + floor * k) * rng.uniform(0.8, 1.2))
        for name, floor in (("fedavg", 0.01), ("fedac", 0.001))
        for k in (1, 8)
        for m in (2, 8, 32)
        for s in range(4)
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "local_steps", "num_clients", "seed", "score"])
    return statistics.speed_up(frame, **kwargs)


def lines_of(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


def test_speed_up_figure_shows_the_frame_beside_linear_speed_up():
    frame = speed_ups(per=["algorithm", "local_steps"], level=0.9)
    figure = speed_up_figure(frame, by="algorithm", panel="local_steps", label="suboptimality")
    assert figure.get_supxlabel() == (
        "Lines: mean over 4 seeds; bands: its 90 % interval (Student's t)."
    )
    panels = np.array(figure.axes).reshape(2, 2)  # [row, local_steps]
    for k, (upper, lower) in zip((1, 8), panels.T, strict=True):
        part = frame.loc[frame["local_steps"] == k]
        for axes, name in ((upper, "error"), (lower, "speed_up")):
            assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
            for i, algorithm in enumerate(("fedac", "fedavg")):
                rows = part.loc[part["algorithm"] == algorithm]
                (line,) = lines_of(axes, {"fedac": "FedAc", "fedavg": "FedAvg"}[algorithm])
                np.testing.assert_array_equal(line.get_xdata(), [2, 8, 32])
                np.testing.assert_array_equal(line.get_ydata(), rows[name])
                assert to_hex(line.get_color()) == COLORS[i].lower()
                _, band = band_of(axes, i)
                bounds = rows[[f"{name}_low", f"{name}_high"]].to_numpy().T
                np.testing.assert_allclose(band, bounds, rtol=1e-12)
        (guide,) = lines_of(upper, "linear speed-up")
        largest = part.loc[part["num_clients"] == 2, "error"].max()
        np.testing.assert_allclose(guide.get_ydata(), largest * np.array([1, 1 / 4, 1 / 16]))
        (guide,) = lines_of(lower, "linear speed-up")
        np.testing.assert_allclose(guide.get_ydata(), [1, 4, 16])
        assert upper.get_title() == f"local steps = {k}"
        assert [t.get_text() for t in lower.get_xticklabels()] == ["2", "8", "32"]
        assert lower.get_xlabel() == "number of clients"
    assert panels[0, 0].get_ylabel() == "suboptimality"
    assert panels[1, 0].get_ylabel() == "speed-up over number of clients = 2"
    texts = [t.get_text() for t in figure.legends[0].get_texts()]
    assert texts == ["FedAc", "FedAvg", "linear speed-up"]
    render(figure)


def test_speed_up_figure_of_curves_with_their_own_base_and_gaps():
    rows = [("a", m, s, (1 + s) / m) for m in (2, 4, 8) for s in (0, 1)]
    rows += [("b", m, s, NAN if m == 8 else (2 + s) / m) for m in (4, 8, 16) for s in (0, 1)]
    frame = statistics.speed_up(
        pd.DataFrame(rows, columns=["algorithm", "cohort_size", "seed", "score"]),
        "cohort_size",
        per="algorithm",
    )
    figure = speed_up_figure(frame, "cohort_size", by="algorithm")
    left, right = figure.axes
    guides = lines_of(right, "linear speed-up")
    assert [list(guide.get_ydata()) for guide in guides] == [[1, 2, 4, 8], [1, 2, 4]]
    assert right.get_ylabel() == "speed-up over cohort size = 2 or 4"
    np.testing.assert_array_equal(np.isnan(lines_of(left, "b")[0].get_ydata()), [0, 1, 0])
    render(figure)


@pytest.mark.parametrize("by", [None, "algorithm"])
def test_curves_that_do_not_speed_up_have_no_linear_line(by):
    rows = [("fedavg", m, s, 1 + m / 100 + s) for m in (2, 8, 32) for s in (0, 1)]
    frame = pd.DataFrame(rows, columns=["algorithm", "num_clients", "seed", "score"])
    figure = speed_up_figure(statistics.speed_up(frame, per=by or ()), by=by)
    assert not any(lines_of(axes, "linear speed-up") for axes in figure.axes)
    texts = [t.get_text() for legend in figure.legends for t in legend.get_texts()]
    assert texts == ([] if by is None else ["FedAvg"])
    render(figure)


@pytest.mark.parametrize("lowest", [1e-9, -0.5])
def test_a_band_down_to_zero_does_not_stretch_a_logarithmic_axis(lowest):
    # 1 and 1 +- spread have the interval from `lowest`: their standard deviation is the spread.
    spread = (1 - lowest) * np.sqrt(3) / stats.t.ppf(0.975, 2)
    rows = [(m, s, v / m) for m in (2, 8) for s, v in enumerate((1 - spread, 1, 1 + spread))]
    frame = statistics.speed_up(pd.DataFrame(rows, columns=["num_clients", "seed", "score"]))
    np.testing.assert_allclose(frame["error_low"], [lowest / 2, lowest / 8], rtol=1e-5)
    left, _ = (figure := speed_up_figure(frame)).axes
    assert left.get_ylim()[0] > 0.125 / 10
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["linear speed-up"]
    render(figure)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: heat_map(f, "lr", "lr"), "x and y are both 'lr'"),
        (lambda f: heat_map(f, "lr", "eta"), r"lacks the columns \['eta'\]"),
        (
            lambda f: heat_map(f.assign(score=-1.0), "lr", "momentum", log=True),
            "log is True and a mean score is -1; expected > 0",
        ),
        (lambda f: sensitivity(f, "eta"), r"lacks the columns \['eta'\]"),
        (lambda f: sensitivity(f.assign(lr=NAN), "lr"), "'lr', which no row has"),
        (lambda f: speed_up_figure(f), r"lacks the columns \['num_clients', 'error'"),
        (
            lambda f: speed_up_figure(speed_ups(per=["algorithm", "local_steps"])),
            "two rows for {'num_clients': 2}",
        ),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(as_scores(table()))


@pytest.mark.parametrize(("values", "rotation"), [("ab", 0), (["a long value"] * 2, 30)])
def test_long_values_of_the_horizontal_axis_do_not_overlap(values, rotation):
    rows = [(f"{x} {i}" * (1 + rotation // 10), s, i) for i, x in enumerate(values) for s in (0, 1)]
    figure = sensitivity(pd.DataFrame(rows, columns=["schedule", "seed", "score"]), "schedule")
    ticks = figure.axes[0].get_xticklabels()
    assert {tick.get_rotation() for tick in ticks} == {rotation}


@pytest.mark.parametrize(
    ("mode", "log", "far"), [("min", False, 1e30), ("min", True, 1e30), ("max", False, -1e30)]
)
def test_a_far_worse_mean_does_not_set_the_colours(mode, log, far):
    """64 means from 1 to 2 (max: -2 to -1), the last one replaced: others set the colours."""
    sign = 1 if mode == "min" else -1
    means = sign * np.linspace(1, 2, 64)
    means[-1] = far
    cells = [(a, b) for a in range(8) for b in range(8)]
    frame = pd.DataFrame(
        [(a, b, 0, mean) for (a, b), mean in zip(cells, means, strict=True)],
        columns=["lr", "mu", "seed", "score"],
    )
    axes, _ = (figure := heat_map(frame, "lr", "mu", mode=mode, log=log)).axes
    (colors,) = [x for x in axes.collections if x.get_array() is not None]
    others = sign * means[:-1]
    np.testing.assert_allclose(sorted(np.abs(colors.get_clim())), [others.min(), others.max()])
    assert len(axes.texts) == 64
    assert any(text.get_text() == f"{far:.2e}" for text in axes.texts)
    render(figure)


def test_equal_means_and_few_of_them_keep_all_colours():
    for scores in ([1.0, 1.0, 1.0, 5.0], [1.0, 9.0], [2.0]):
        rows = [(i, 0, 0, score) for i, score in enumerate(scores)]
        frame = pd.DataFrame(rows, columns=["lr", "mu", "seed", "score"])
        axes = heat_map(frame, "lr", "mu").axes[0]
        (colors,) = [x for x in axes.collections if x.get_array() is not None]
        assert colors.norm.vmax >= max(scores)


def test_lines_of_numbers_with_equal_short_texts_have_names_of_their_own():
    """The legend finds the look of a line by its name."""
    rows = [(a, lr, 0, a * lr) for a in (1_000_001.0, 1_000_002.0) for lr in (0.1, 0.2)]
    frame = pd.DataFrame(rows, columns=["alpha", "lr", "seed", "score"])
    figure = sensitivity(frame, "lr", by="alpha")
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["1000001.0", "1000002.0"]
    colors = [handle.get_color() for handle in figure.legends[0].legend_handles]
    assert len(set(colors)) == 2
