"""Files of a comparison: JSON, summary, timings, tables and figures."""

import json

import hand_made_runs
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedjax_sim.cli import report, tables
from fedjax_sim.reports import results, results_table
from fedjax_sim.runs.storage.files import FolderError


def test_json_is_strict(tmp_path):
    path = tmp_path / "x.json"
    report.write_json(path, {"a": float("nan"), "b": [np.float32(2), np.inf], "c": (True, None)})
    values = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert values == {"a": None, "b": [2.0, None], "c": [True, None]}


def test_summary_when_only_some_seeds_reach_the_target():
    values = {0: [0.1, 0.9], 1: [0.2, 0.3], 2: [0.8, 0.7]}
    rows = [("a", s, 0, r, report.ACCURACY, v[r - 1]) for s, v in values.items() for r in (1, 2)]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 3}}
    row = report.summarize(history, 0.75, timing).loc["a"]
    assert row["reached"] == 2
    assert row["rounds_to_target"] == 1.5  # of rounds 2 and 1
    assert row["accuracy_mean"] == pytest.approx((0.9 + 0.3 + 0.7) / 3)
    assert not row["finished"]
    assert row["local_steps_per_second"] == 0
    timing["a"]["num_rounds"] = 2
    none = report.summarize(history, 0.95, timing).loc["a"]
    assert none["reached"] == 0
    assert np.isnan(none["rounds_to_target"])
    assert none["finished"]


@pytest.mark.parametrize(("clock", "finished"), [(False, [False, True]), (True, [True, True])])
def test_an_algorithm_that_a_later_call_has_left_behind_is_not_finished(clock, finished):
    """Its accuracy after 2 rounds stood beside one after 4 rounds, and nothing said so."""
    rows = [
        (x, 0, 0, r, report.ACCURACY, 0.5)
        for x, n in (("a", 2), ("b", 4))
        for r in (2, 4)[: n // 2]
    ]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    history = history.assign(time=history["round"] / 1) if clock else history
    timing = {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0}
    timings = {"a": timing | {"num_rounds": 2}, "b": timing | {"num_rounds": 4}}
    summary = report.summarize(history, 0.8, timings)
    assert summary["finished"].tolist() == finished
    (_, column, *_) = tables.summary_table(summary, 0.8).columns
    notes = ["after round 2" in cell for cell in column.cells]
    assert notes == [not finished[0], False]


@pytest.mark.parametrize(
    ("metrics", "score"),
    [(("utility",), "utility"), (("size", "F/error"), "F/error"), (("time", "local_steps"), None)],
)
def test_a_setup_without_an_accuracy_has_the_summary_of_its_first_metric(metrics, score):
    """A study's own setup may evaluate anything, or nothing."""
    rows = [("a", s, 0, r, m, r - s) for s in (0, 1) for r in (1, 2) for m in metrics]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 2}}
    summary = report.summarize(history, 0.8, timing)
    row = summary.loc["a"]
    assert (row["rounds"], row["finished"], row["seeds"]) == (2, True, 2)
    assert row["reached"] == 0  # 0.8 is an accuracy
    assert [x for x in row.index if x.endswith("_mean")] == ([f"{score}_mean"] if score else [])
    table = tables.summary_table(summary, 0.8)
    assert [str(x.header) for x in table.columns[:3]] == ["algorithm", score or "result", "seconds"]
    assert [next(iter(x.cells)) for x in table.columns[:2]] == ["a", "1.500" if score else ""]


def test_a_first_metric_of_some_rounds_or_of_one_algorithm():
    """The last of 3 rounds has other metrics; the second algorithm is not evaluated by it yet."""
    names = ("time", report.PERSONAL)
    rows = [(x, 0, 0, r, m, 0.9) for x in "ab" for r in (1, 2, 3) for m in names]
    rows += [("a", 0, 0, 2, "test/loss", 0.25)]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 3}
    summary = report.summarize(history, 0.8, dict.fromkeys("ab", timing))
    assert summary["rounds"].tolist() == [3, 3]
    assert summary["finished"].tolist() == [True, True]
    np.testing.assert_array_equal(summary["loss_mean"], [0.25, np.nan])
    assert summary["personal_mean"].tolist() == [0.9, 0.9]
    assert [x for x in summary if x.endswith("_mean")] == ["loss_mean", "personal_mean"]
    table = tables.summary_table(summary, 0.8)
    assert [list(x.cells) for x in table.columns[:3]] == [
        ["a", "b"], ["0.900", "0.900"], ["0.250", ""]
    ]  # fmt: skip


def test_personal_models_have_their_own_accuracy():
    rows = [
        ("a", s, 0, r, metric, value + 0.1 * s)
        for s in (0, 1)
        for r, metric, value in [
            (1, report.ACCURACY, 0.4), (2, report.ACCURACY, 0.5), (1, report.PERSONAL, 0.7)
        ]
    ]  # fmt: skip
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 2}}
    row = report.summarize(history, 0.9, timing).loc["a"]
    assert row["personal_mean"] == pytest.approx(0.75)
    assert row["personal_std"] == pytest.approx(0.1 / np.sqrt(2))


def test_seeds_that_end_in_different_rounds_all_count():
    """Seeds that run one after the other may be stopped early, or not have begun."""
    last = {0: 4, 1: 2}
    rows = [
        ("a", s, 0, r, metric, 0.1 * r + s / 10)
        for s in last
        for r in (2, 4)
        for metric in (report.ACCURACY, report.PERSONAL)
        if r <= last[s]
    ]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 4}}
    row = report.summarize(history, 0.35, timing).loc["a"]
    assert row["accuracy_mean"] == pytest.approx((0.4 + 0.3) / 2)
    assert row["personal_mean"] == pytest.approx((0.4 + 0.3) / 2)
    assert (row["rounds"], row["reached"], row["finished"]) == (2, 1, False)
    first = history[history["seed"] == 0]
    assert [report.summarize(first, 0.35, timing, n).loc["a", "finished"] for n in (1, 2)] == [
        True,
        False,
    ]


def test_intervals_are_those_of_the_command_table():
    """Intervals are those of the mean over seeds; one seed and two have none."""
    values = (0.50, 0.52, 0.54)
    rows = [("a", s, 0, 1, report.ACCURACY, value) for s, value in enumerate(values)]
    history = pd.DataFrame(rows, columns=list(report.HISTORY_COLUMNS))
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 1}}
    summary = report.summarize(history, 0.9, timing)
    shown = tables.summary_table(summary, 0.9)
    assert next(iter(shown.columns[1].cells)) == "0.520 ± 0.050"  # 4.303 * 0.02 / sqrt(3)
    assert str(shown.caption) == "Mean over 3 seeds and its 95 % interval (Student's t)."
    markdown = results_table(results(history, [report.ACCURACY]))
    assert "0.520 ± 0.050" in markdown
    two = report.summarize(history[history["seed"] < 2], 0.9, timing).loc["a"]
    assert np.isnan([two["accuracy_low"], two["accuracy_high"]]).all()  # as in the table
    alone = report.summarize(history[history["seed"] == 0], 0.9, timing)
    shown = tables.summary_table(alone, 0.9)
    assert (next(iter(shown.columns[1].cells)), shown.caption) == ("0.500", None)
    headings = [tables.summary_table(alone, x).columns[2].header for x in (0.57, 0.855)]
    assert headings == ["rounds to 57%", "rounds to 85.5%"]


def test_time_to_target_is_the_median_over_seeds_that_reach_it():
    rows = [("a", s, r, 10.0 * r + s, report.ACCURACY, 0.3 * r) for s in (0, 1) for r in (1, 2, 3)]
    columns = ["algorithm", "seed", "round", "time", "metric", "value"]
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 3}}
    row = report.summarize(pd.DataFrame(rows, columns=columns), 0.5, timing).loc["a"]
    assert (row["rounds_to_target"], row["time_to_target"]) == (2, 20.5)
    none = report.summarize(pd.DataFrame(rows, columns=columns), 0.95, timing).loc["a"]
    assert np.isnan(none["time_to_target"])


TIMING = report.Timing(1.5, 2.0, 8, diverged=1, num_rounds=4)


def test_timings_of_calls_are_added(tmp_path):
    hand_made_runs.write_run(tmp_path)
    assert report.read_timing(tmp_path) == report.Timing()
    report.add_timing(tmp_path, TIMING)
    report.add_timing(tmp_path, report.Timing(0.5, 1.0, 4, diverged=0, num_rounds=4))
    assert report.read_timing(tmp_path) == report.Timing(2.0, 3.0, 12, diverged=0, num_rounds=4)


@pytest.mark.parametrize("text", ["", "{}", '{"run_seconds": "3"}'])
def test_damaged_timings_are_named(tmp_path, text):
    hand_made_runs.write_run(tmp_path)
    (tmp_path / "timing.json").write_text(text)
    with pytest.raises(FolderError, match=r"timing\.json is damaged .*; delete the file to cont"):
        report.read_timing(tmp_path)


def test_files_are_written_whole(tmp_path, monkeypatch):
    files = {"a.csv": pd.DataFrame({"x": [1]}), "b.png": Figure(), "c.md": "text\n"}
    report.write_all(tmp_path, files)
    assert {path.name for path in tmp_path.iterdir()} == set(files)
    assert (tmp_path / "a.csv").read_text() == "x\n1\n"
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")

    def broken(figure, path, **options):
        path.write_text("half")
        raise KeyboardInterrupt

    before = (tmp_path / "b.png").read_bytes()
    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(KeyboardInterrupt):
        report.write_all(tmp_path, files)
    assert (tmp_path / "b.png").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == set(files)
