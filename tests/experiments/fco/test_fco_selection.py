"""Selection of pairs of rates and tables, from made-up histories."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.fco.lasso import LASSO
from experiments.fco.lowrank import LOW_RANK
from experiments.fco.recovery_report import first_rounds, reference_table, scored
from experiments.fco.selection import (
    PAIR,
    curves_of,
    ends_of,
    kept_tables,
    load,
    select,
    widened,
)
from experiments.fco.tables import equal_rates_table, fastest_table, grid_text, selected_table
from experiments.harness.report import write_csv


def histories(runs, metric="f1", loss=1.0):
    """``{(method, lr, server_lr): values}`` every 10 rounds; a NaN is where the run diverged."""
    rows = []
    for pair, values in runs.items():
        lost = [10 * (i + 1) for i, value in enumerate(values) if math.isnan(value)]
        diverged_at = lost[0] if lost else 0
        for i, value in enumerate(values):
            run = (*pair, 0, diverged_at, 10 * (i + 1))
            rows += [(*run, metric, value), (*run, "train/loss", loss)]
    columns = [*PAIR, "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_pairs_are_selected_by_the_last_hundred_rounds():
    """Ten evaluations; the best of the whole run does not win, nor does one that diverged."""
    late = [0.0] * 10 + [0.5] * 10
    early = [1.0] * 10 + [0.4] * 10
    lost = [1.0] * 19 + [math.nan]
    history = histories({("A", 0.1, 1.0): late, ("A", 0.2, 1.0): early, ("A", 0.3, 1.0): lost})
    score = scored(history, LASSO, np.array([2.0]))
    # Up to a millionth of the mean over all rounds, at most 1.
    np.testing.assert_allclose(score["score"], [0.5, 0.4, math.nan], atol=1.1e-6)
    selected = select(history, "f1", 10, "max", score)
    assert selected.rates == {"A": (0.1, 1.0)}
    assert set(selected.winners["lr"]) == {0.1}
    assert selected.at_end("A", "f1") == 0.5
    table = selected_table(selected, lambda method: {"name": method})
    assert table.to_dict("records") == [
        {"method": "A", "lr": 0.1, "server_lr": 1.0, "name": "A"}
        | {"at the grid's edge": "lr", "failed runs": "1 of 3"}
    ]
    renamed = history.replace({"metric": {"f1": "error"}})
    least = scored(renamed, LOW_RANK, np.array([2.0]))
    assert select(renamed, "error", 10, "min", least).rates == {"A": (0.2, 1.0)}


def test_a_curve_has_no_mean_where_a_seed_has_no_value():
    """The mean of the other seed would jump where the first one diverged."""
    parts = [
        histories({("A", 0.1, 1.0): values}).assign(seed=seed)
        for seed, values in enumerate(([0.5, 0.5], [1.0, math.nan]))
    ]
    curve = curves_of(pd.concat(parts))["A"]
    np.testing.assert_array_equal(curve["f1"], [0.75, math.nan])


def test_the_fastest_of_perfect_pairs_is_selected():
    slow = [0.0] * 5 + [1.0] * 10
    fast = [0.0] * 4 + [1.0] * 11
    history = histories({("A", 0.1, 1.0): slow, ("A", 0.2, 1.0): fast})
    selected = select(history, "f1", 10, "max", scored(history, LASSO, np.array([2.0])))
    assert selected.rates == {"A": (0.2, 1.0)}


def test_runs_that_end_above_the_start_have_no_score():
    fine = histories({("A", 0.1, 1.0): [0.5] * 10})
    grown = histories({("A", 0.2, 1.0): [0.7] * 10}, loss=1e20)
    score = scored(pd.concat([fine, grown]), LASSO, np.array([2.0]))
    np.testing.assert_allclose(score["score"], [0.5, math.nan], rtol=1e-5)


def test_references_are_compared_where_the_pair_was_run():
    values = [0.1] * 4 + [0.5] * 5 + [0.9] + [0.95] * 10
    pairs = {("FedDualAvg", 1e-3, 1.0): values, ("FedDualAvg", 1e-3, 0.3): values}
    table = reference_table(histories(pairs), LASSO.references["I"])
    assert table["rounds"].tolist() == ["50 / 100 / 200"]
    assert table["here"].tolist() == ["0.5 / 0.9 / 0.95"]
    np.testing.assert_allclose(table["largest difference"], [0.32])
    assert not len(reference_table(histories(pairs), []))


def test_scores_at_equal_rates():
    """At the server rate of FedDualAvg's best pair; runs that diverged have no number."""
    runs = {("FedDualAvg", 0.1, 1.0): [0.2], ("FedDualAvg", 0.1, 0.3): [0.4]}
    runs |= {("FedMiD", 0.1, 1.0): [math.nan], ("FedMiD", 0.1, 0.3): [0.1]}
    selected = select(histories(runs, "loss"), "loss", 1)
    assert selected.rates == {"FedDualAvg": (0.1, 1.0), "FedMiD": (0.1, 0.3)}
    assert selected.at_rates((0.1, 1.0)) == {"FedDualAvg": 0.2, "FedMiD": math.inf}
    table = equal_rates_table(selected)
    assert table.columns.tolist() == ["server_lr", "lr", "FedDualAvg", "FedMiD"]
    np.testing.assert_array_equal(table.to_numpy(), [[1.0, 0.1, 0.2, math.nan]])


def test_two_parts_of_a_grid_are_one():
    """Also after a round trip through the files; an edge has no neighbour that was run."""
    parts = [
        histories({("A", 0.1, 1.0): [0.2], ("A", 0.3, 1.0): [0.4], ("B", 0.1, 1.0): [0.1]}, "loss"),
        histories({("A", 0.03, 1.0): [0.3], ("A", 0.1, 3.0): [0.5]}, "loss"),
    ]
    first, second = (select(part, "loss", 1, ends=ends_of(part, ["loss"], 1)) for part in parts)
    assert first.chosen["lr_at_edge"].tolist() == [True, False]  # one client rate of B: no edge
    both = widened(first, second)
    assert both.rates == {"A": (0.1, 1.0), "B": (0.1, 1.0)}
    assert both.chosen["lr_at_edge"].tolist() == [False, False]
    assert both.chosen["server_lr_at_edge"].tolist() == [True, False]
    assert both.at_rates((0.03, 1.0), "loss") == {"A": 0.3}
    assert both.at_end("B", "loss") == 0.1
    assert grid_text(both) == (
        "1 to 4 pairs of rates per method, client rates from 0.03 to 0.3, server rates from 1 to "
        "3, 1 seed"
    )
    better = histories({("A", 0.03, 1.0): [0.1]}, "loss")
    assert widened(first, select(better, "loss", 1)).rates["A"] == (0.03, 1.0)


def test_a_best_pair_without_history_is_refused():
    """The new run of the kept best pair is worse than a pair of which only the score is kept."""
    kept = histories({("A", 0.1, 1.0): [0.2], ("A", 0.3, 1.0): [0.4]}, "loss")
    worse = histories({("A", 0.1, 1.0): [0.9]}, "loss")
    with pytest.raises(ValueError, match=r"best pairs are {'A': \(0.3, 1.0\)}; expected those"):
        widened(select(kept, "loss", 1), select(worse, "loss", 1))


def test_files_hold_the_selection(tmp_path):
    history = histories({("A", 0.1, 1.0): [0.5, 0.2], ("A", 0.3, 1.0): [0.1, 0.4]}, "loss")
    selected = select(history, "loss", 1, ends=ends_of(history, ["train/loss"], 2))
    for kind, table in zip(("", "-scores"), kept_tables(selected), strict=True):
        write_csv(tmp_path / f"x{kind}.csv", table)
    assert pd.read_csv(tmp_path / "x.csv")["loss"].tolist() == [0.5, 0.2]
    again = load(tmp_path, "x", "loss", 1)
    pd.testing.assert_frame_equal(again.score, selected.score)
    pd.testing.assert_frame_equal(again.ends, selected.ends, check_dtype=False)
    assert again.rates == selected.rates
    for metric, values in selected.curves["A"].items():
        np.testing.assert_array_equal(again.curves["A"][metric], values)


def test_fastest_pairs():
    """The pair that reaches F1 0.95 first, of two at the same round the one with the best score."""
    runs = {
        ("A", 0.1, 1.0): [0.5, 1.0, 0.5],
        ("A", 0.2, 1.0): [0.5, 0.96, 1.0],
        ("A", 0.3, 1.0): [0.5, 0.5, 1.0],
        ("B", 0.1, 1.0): [0.5, 0.6, 0.7],
    }
    history = histories(runs)
    times = first_rounds(history, LASSO, LASSO.sets["I"])
    assert times[LASSO.event].tolist() == [20, 20, 30, math.inf]
    selected = select(history, "f1", 1, "max", ends=times)
    assert fastest_table(selected, LASSO.event).to_dict("records") == [
        {"method": "A", "lr": 0.2, "server_lr": 1.0, LASSO.event: 20.0, "score": 1.0}
    ]
    assert not len(fastest_table(select(history, "f1", 1, "max"), LASSO.event))
