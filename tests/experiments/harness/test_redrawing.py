"""Reports that are functions of their files."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from experiments.harness import redrawing
from experiments.harness.report import Report


def build(tables, facts):
    losses, constants = tables[""], tables["constants"]
    report = Report(f"{facts['lrs']} on {facts['data']}", losses, constants)
    if "other" in tables:
        report.section("Other", tables["other"])
    figure, axes = plt.subplots()
    axes.plot(losses["round"], losses["loss"])
    return report, {"losses": figure}


def test_a_redrawn_report_equals_the_saved_one(tmp_path):
    tables = {
        "": pd.DataFrame({"round": [1, 2], "loss": [0.31884999, np.pi]}),
        "constants": pd.DataFrame({"L": [1 / 3]}),
    }
    redrawing.save_report(tmp_path, "a", tables, build, lrs=(0.1, 0.2), data=tmp_path)
    text, drawn, csv = (tmp_path / file for file in ("a.md", "losses.png", "a.csv"))
    saved = text.read_text()
    assert saved.startswith(f"# [0.1, 0.2] on {tmp_path}\n")
    assert "| 2 | 3.142 |" in saved
    assert csv.read_text() == "round,loss\n1,0.31885\n2,3.1416\n"
    text.unlink()
    drawn.unlink()
    redrawing.redraw_report(tmp_path, "a", build)
    assert text.read_text() == saved
    assert drawn.stat().st_size > 1000
    # Tables that another command wrote into the folder are passed too.
    (tmp_path / "a-other.csv").write_text("mu\n0.5\n")
    redrawing.redraw_report(tmp_path, "a", build)
    assert "## Other\n\n| mu |" in text.read_text()


def test_a_kill_while_a_report_is_written_leaves_whole_files(tmp_path, monkeypatch):
    """Runs that a report has are not repeated, so half a table would be taken for all of them."""
    table = pd.DataFrame({"loss": [0.5, 0.25]})
    Report("Losses").save(tmp_path, "losses", table, options={"lr": 0.1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def cut_short(self, path, **options):
        path.write_text("loss\n0.")
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", cut_short)
    with pytest.raises(KeyboardInterrupt):
        Report("Losses").save(tmp_path, "losses", table, options={"lr": 0.1})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    rows = redrawing.reported_rows(tmp_path, "losses", options={"lr": 0.1})
    pd.testing.assert_frame_equal(rows, table)
