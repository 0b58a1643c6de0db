"""The part ``selection``: its job, its work by hand, a tiny measurement, and the page's numbers."""

import json

import pytest

from benchmarks import report, selection
from benchmarks.floors import Machine
from benchmarks.jobs import ROOT, Options

DEFAULTS = Options(workloads=("W1",), candidates=None, seconds=1.0, peers={})


def test_one_job_has_all_methods():
    (job,) = selection.jobs(DEFAULTS)
    assert job.arguments["names"] == list(selection.METHODS)
    assert selection.jobs(DEFAULTS._replace(candidates=("numpy",))) == []


def test_work_of_a_round():
    """10 clients, 5 epochs of 5 minibatches of 10, two products of 60 x 10."""
    w = selection.workload(10)
    assert w.steps == 25
    assert w.flops_per_round == 10 * 25 * 10 * 2 * 2 * 600


@pytest.mark.slow
def test_measured_on_few_rounds(monkeypatch):
    monkeypatch.setattr(selection, "ROUNDS", 1)
    names = ["power_of_choice(10), 20 candidates"]
    flat = selection.measure(0.0, names)
    assert all(value > 0 for value in flat.values())
    (case,) = selection.cases({"100": {"methods": flat}}, Machine(1e9, 1e9))
    assert list(case.rows) == [selection.BASELINE, *names]
    assert "10 of 100 clients x 25 steps" in report.table(case)


def test_the_page_has_the_numbers_of_the_results():
    stored = json.loads((ROOT / "benchmarks" / "results" / "selection.json").read_text())
    assert stored["left_out"] == []
    rows = stored["cases"]["100"]["candidates"]
    assert list(rows) == list(selection.METHODS)
    page = (ROOT / "docs" / "howto" / "selection.md").read_text()
    assert f"({1e3 * rows[selection.BASELINE]['cpu_seconds']:.2g} ms" in page
    for name, row in rows.items():
        shown = f"`{name.split(', ')[0]}`, {name.split(', ')[1]}" if "(" in name else name
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {shown} |"))
        assert line.endswith(f"| {row['cpu_ratio']:.2f} |")
