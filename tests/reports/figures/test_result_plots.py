"""Figures of the results of ``simulate``, ``compare`` and ``sweep``."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest
from figures import render

import fedjax_sim as fs
from fedjax_sim import plotting

COLUMNS = ["algorithm", "seed", "round", "metric", "value"]


@pytest.fixture(scope="module")
def setup():
    """Two clients with targets 1 and 3, three rounds that end at the times 2, 3 and 7."""
    data = fs.FederatedData({"y": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(lambda w, batch, key: (w - batch["y"]) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.full(3, 2, task.num_steps)
    timeline = timeline.__class__(**(vars(timeline) | {"time": np.array([2.0, 3.0, 7.0])}))
    errors = lambda w: {"error": abs(w - 2), "square": (w - 2) ** 2}  # noqa: E731
    return fs.Setup(task, timeline, np.array([0.0, 1.0], np.float32), errors, eval_every=1)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(0), 2)


@pytest.mark.slow
def test_simulations_draw_the_mean_over_seeds(setup, keys):
    """With rate 1/4 the error halves per round; its mean over the seeds begins with 1.5."""
    figure = fs.simulate(fs.fedavg(0.25), setup, keys).plot(x="time")
    error, square = figure.axes
    assert (error.get_ylabel(), square.get_ylabel()) == ("error", "square")
    assert error.get_xlabel() == "simulated time"
    (line,) = error.lines
    np.testing.assert_allclose(line.get_xdata(), [2, 3, 7])
    np.testing.assert_allclose(line.get_ydata(), [0.75, 0.375, 0.1875])
    assert not figure.legends
    render(figure)


def test_comparisons_draw_a_line_per_algorithm(setup, keys):
    algorithms = {"fast": fs.fedavg(0.25), "slow": fs.fedavg(0.125)}
    figure = fs.compare(algorithms, setup, keys).plot("error", x="local_steps", yscale="log")
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    fast, slow = axes.lines
    assert fast.get_xdata().tolist() == slow.get_xdata().tolist() == [2, 4, 6]
    np.testing.assert_allclose(fast.get_ydata(), [0.75, 0.375, 0.1875])
    np.testing.assert_allclose(slow.get_ydata(), 1.5 * 0.75 ** np.arange(1, 4))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fast", "slow"]


@pytest.mark.slow
def test_sweeps_draw_one_or_two_hyper_parameters(setup, keys):
    grid = {"lr": [0.0625, 0.125, 0.25]}
    figure = fs.sweep(fs.fedavg, setup, grid, keys).plot("error")
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "error")
    expected = 1.5 * np.array([0.875, 0.75, 0.5]) ** 3
    np.testing.assert_allclose(axes.lines[0].get_ydata(), expected, rtol=1e-5)
    render(figure)


def sweep_frame(**columns):
    """One row per combination of the columns; the value is their sum."""
    index = pd.MultiIndex.from_product(columns.values(), names=columns.keys())
    frame = index.to_frame(index=False)
    value = frame.select_dtypes("number").sum(axis=1)
    return frame.assign(seed=0, round=1, metric="loss", value=value, diverged_at=0)


def test_two_hyper_parameters_make_a_heat_map():
    figure = plotting.sweep_figure(
        sweep_frame(lr=[1.0, 2.0], mu=[3.0, 5.0], rho=[0.0, 9.0]), "loss"
    )
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "mu")
    assert [text.get_text() for text in axes.texts] == ["4.00", "5.00", "6.00", "7.00"]
    assert "rho" in axes.get_title()  # tuned


def test_algorithms_are_lines_and_the_better_direction_counts():
    frame = sweep_frame(algorithm=["a", "b"], lr=[1.0, 2.0], mu=[3.0, 5.0])
    figure = plotting.sweep_figure(frame, "loss", x="lr", mode="max")
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines[:1]] == [[6.0, 7.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_best_accuracies_are_the_largest():
    frame = sweep_frame(lr=[1.0, 2.0], mu=[3.0, 5.0]).assign(metric="test/accuracy")
    figure = plotting.sweep_figure(frame, "test/accuracy", x="lr")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [6.0, 7.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": "lr"}, "y is 'lr' and x is None; expected both, or neither"),
        ({}, r"history has one value of \['lr'\]; expected a name with several"),
    ],
)
def test_sweep_figures_need_a_hyper_parameter(options, message):
    with pytest.raises(ValueError, match=message):
        plotting.sweep_figure(sweep_frame(lr=[1.0]), "loss", **options)


def test_unknown_measures_of_progress_are_refused():
    history = pd.DataFrame([("a", 0, 1, "loss", 1.0)], columns=COLUMNS)
    with pytest.raises(ValueError, match="x is 'epoch'; expected one of 'round', 'time', 'loc"):
        plotting.result_curves(history, x="epoch")
    with pytest.raises(ValueError, match=r"x is 'bits', which the history does not .* 'round' \("):
        plotting.result_curves(history, x="bits")
    timed = pd.concat([history, history.assign(metric="time")])
    with pytest.raises(ValueError, match=r"expected one of 'round', 'time' \(fs\.plot of the"):
        plotting.result_curves(timed, x="bits")


def test_updates_without_reports_repeat_no_point():
    """Seed 1 has one update only; its timeline is padded with a second at the same time."""
    rows = [
        ("a", seed, t, name, value)
        for seed, times in enumerate([(1.0, 2.0), (1.5, 1.5)])
        for t, time in enumerate(times, start=1)
        for name, value in (("time", time), ("loss", 4.0 - time))
    ]
    figure = plotting.result_curves(pd.DataFrame(rows, columns=COLUMNS), "loss", x="time")
    assert figure.axes[0].lines[0].get_xdata().tolist() == [1.5]


@pytest.mark.parametrize("rounds", [(1, 2, 3), (3, 1, 2)])
def test_the_last_evaluation_at_a_time_counts(rounds):
    """Two server updates at the time 3: the second one has the current model."""
    runs = {1: (1.0, 1.0), 2: (3.0, 0.5), 3: (3.0, 0.25)}
    rows = [
        ("a", 0, t, name, value)
        for t in rounds
        for name, value in zip(("time", "loss"), runs[t], strict=True)
    ]
    figure = plotting.result_curves(pd.DataFrame(rows, columns=COLUMNS), "loss", x="time")
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1.0, 1.0], [3.0, 0.25]]


def test_a_value_that_is_no_result_is_refused():
    with pytest.raises(ValueError, match="result is a DataFrame; expected a result"):
        fs.plot(pd.DataFrame())


def test_every_result_has_a_figure_without_arguments(setup, keys, tmp_path):
    """The most important metric is "error", although "a" comes first in the alphabet."""
    metrics = lambda w: {"a": w, "error": abs(w - 2)}  # noqa: E731
    setup = dataclasses.replace(setup, eval_fn=metrics)
    one = fs.simulate(fs.fedavg(0.25), setup, keys, storage=tmp_path / "run")
    grid = {"lr": [0.0625, 0.125, 0.25]}
    alternatives = {"same": fs.Alternative(fs.fedavg(0.25)), "slow": fs.Alternative(fs.fedavg(0.1))}
    earlier = dataclasses.replace(setup, timeline=setup.timeline[:1])
    begun = fs.simulate(fs.fedavg(0.25), earlier, keys, storage=tmp_path / "begun")
    results = {
        "simulation": (one, ["error", "a"]),
        "comparison": (fs.compare({"fedavg": fs.fedavg(0.25)}, setup, keys), ["error", "a"]),
        "sweep": (fs.sweep(fs.fedavg, setup, grid, keys), ["error"]),
        "sweep of one": (fs.sweep(fs.fedavg, setup, {"lr": [0.25]}, keys), ["error", "a"]),
        "folder": (tmp_path / "run", ["error", "a"]),
        "text": (str(tmp_path / "run"), ["error", "a"]),
        "folders": ([tmp_path / "run", tmp_path / "begun"], ["error", "a"]),
        "loaded": (fs.load(tmp_path / "run"), ["error", "a"]),
        "fork": (fs.fork(begun, alternatives, setup, keys), ["error"]),
        "valuation": (fs.valuation.Valuation("by hand", np.ones(2), None, 1), []),
    }
    for result, labels in results.values():
        figure = fs.plot(result)
        assert [axes.get_ylabel() for axes in figure.axes][: len(labels)] == labels
        render(figure)
