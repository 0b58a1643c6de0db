"""Dashboards: their panels, lines and bands from a history."""

import numpy as np
import pandas as pd
import pytest
from figures import render

from fedjax_sim.reports.figures import dashboard

ROUNDS = np.array([2, 4, 6])


def history(*, diverged_at: int = 0) -> pd.DataFrame:
    """Two algorithms, two seeds; seed 1 of the second one may have diverged."""
    rows = []
    for a, algorithm in enumerate(("fedavg", "mine")):
        for seed in (0, 1):
            failed = diverged_at if a and seed else 0
            for round in ROUNDS:
                values = {
                    "time": float(round),
                    "test/accuracy": 0.1 * round,
                    "client/test/accuracy/q10": 0.05 * round,
                    "client/test/accuracy/q50": 0.1 * round,
                    "client/test/accuracy/q90": 0.15 * round,
                    "dynamics/alignment/q10": -0.5,
                    "dynamics/alignment/q50": 0.25 + 0.5 * seed,
                    "dynamics/alignment/q90": 0.9,
                    "dynamics/noise/q10": 0.01,
                    "dynamics/noise/q50": 1.0 + a,
                    "dynamics/noise/q90": 100.0,
                    "dynamics/noise/mean": 3.0,
                    "dynamics/mean_update": 1.0,
                }
                rows += [(algorithm, seed, failed, round, *item) for item in values.items()]
    columns = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_panels_show_medians_and_bands_over_clients():
    figure = dashboard(history(), caption="Digits.")
    labels = [
        "test accuracy",
        "client test accuracy",
        "alignment (cosine)",
        "variance of gradients",
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == labels
    accuracy, clients, alignment, noise = figure.axes
    assert [line.get_label() for line in accuracy.lines] == ["FedAvg", "mine"]
    np.testing.assert_allclose(clients.lines[0].get_ydata(), 0.1 * ROUNDS)
    extent = clients.collections[0].get_paths()[0].get_extents()
    np.testing.assert_allclose([extent.y0, extent.y1], [0.1, 0.9])
    np.testing.assert_allclose(alignment.lines[0].get_ydata(), 0.5)  # the mean over the seeds
    assert [axes.get_yscale() for axes in figure.axes] == ["linear"] * 3 + ["log"]
    np.testing.assert_allclose(noise.lines[1].get_ydata(), 2)
    assert figure.get_supxlabel().split("\n") == [
        "Digits.",
        "Of clients: median, and band from 10 % to 90 % of the clients.",
        "Others: mean of 2 seeds, without an interval, which needs 3.",
    ]
    render(figure)
    alone = dashboard(history(), ["test/accuracy"])
    assert alone.get_supxlabel().startswith("Lines: mean of 2 seeds, without")


def test_a_diverged_run_ends_and_is_named():
    figure = dashboard(history(diverged_at=4), ["dynamics/noise", "test/accuracy"])
    for axes in figure.axes:
        assert axes.lines[1].get_xdata()[np.isfinite(axes.lines[1].get_ydata())].tolist() == [2]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["FedAvg", "mine: diverged in round 4 (1 of 2 seeds)"]


def test_unknown_panels_are_refused():
    with pytest.raises(ValueError, match=r"metrics contains \['speed'\]; expected some of"):
        dashboard(history(), ["speed"])


def test_runs_without_a_value_of_the_column_have_a_line():
    frame = history().assign(lr=lambda rows: np.where(rows["algorithm"] == "mine", np.nan, 0.1))
    figure = dashboard(frame, ["test/accuracy"], by="lr")
    lines = {line.get_label(): line.get_ydata().tolist() for line in figure.axes[0].lines}
    assert lines == {"0.1": pytest.approx([0.2, 0.4, 0.6]), "none": pytest.approx([0.2, 0.4, 0.6])}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["0.1", "none"]


def test_runs_without_the_metrics_of_the_panels_have_no_line():
    frame = history()
    mine = (frame["algorithm"] == "mine") & (frame["metric"] == "test/accuracy")
    figure = dashboard(frame.loc[~mine], ["test/accuracy"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedAvg"]
