"""Files of a comparison: git revision, JSON, summary."""

import json
import subprocess

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.cli import report


def test_git_revision(tmp_path):
    file = tmp_path / "code.py"
    file.write_text("x = 1\n")
    assert report.git_revision(file) is None  # no checkout

    def git(*arguments: str) -> str:
        name = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *name, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert report.git_revision(file) is None  # a checkout of something else
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert report.git_revision(file) == {"revision": head, "modified": False}
    file.write_text("x = 2\n")
    assert report.git_revision(file) == {"revision": head, "modified": True}


def test_json_is_strict(tmp_path):
    path = tmp_path / "x.json"
    report.write_json(path, {"a": float("nan"), "b": [np.float32(2), np.inf], "c": (True, None)})
    values = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert values == {"a": None, "b": [2.0, None], "c": [True, None]}


def test_summary_when_only_some_seeds_reach_the_target():
    values = {0: [0.1, 0.9], 1: [0.2, 0.3], 2: [0.8, 0.7]}
    rows = [("a", s, r, report.ACCURACY, v[r - 1]) for s, v in values.items() for r in (1, 2)]
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


def test_time_to_target_is_the_median_over_seeds_that_reach_it():
    rows = [("a", s, r, 10.0 * r + s, report.ACCURACY, 0.3 * r) for s in (0, 1) for r in (1, 2, 3)]
    columns = ["algorithm", "seed", "round", "time", "metric", "value"]
    timing = {"a": {"compile_seconds": 0, "run_seconds": 0, "local_steps": 0, "num_rounds": 3}}
    row = report.summarize(pd.DataFrame(rows, columns=columns), 0.5, timing).loc["a"]
    assert (row["rounds_to_target"], row["time_to_target"]) == (2, 20.5)
    none = report.summarize(pd.DataFrame(rows, columns=columns), 0.95, timing).loc["a"]
    assert np.isnan(none["time_to_target"])


def test_unreadable_json_is_named(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(ValueError, match=r"x\.json cannot be read: .*No such file"):
        report.read_json(path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"x\.json cannot be read: Expecting"):
        report.read_json(path)
