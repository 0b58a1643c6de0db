"""The part ``topologies``: its jobs and its work by hand, and a tiny measurement."""

import json

import pytest

from benchmarks import report, topologies
from benchmarks.floors import Machine
from benchmarks.jobs import ROOT, Options

DEFAULTS = Options(workloads=("W1",), candidates=None, seconds=1.0, peers={})


def test_jobs():
    jobs = topologies.jobs(DEFAULTS)
    assert [job.arguments["clients"] for job in jobs] == [16, 64, 256, 1024, 4096]
    assert all(job.arguments["names"] == list(topologies.METHODS) for job in jobs)
    some = topologies.jobs(DEFAULTS._replace(candidates=("d2-ring", "numpy")))
    assert {tuple(job.arguments["names"]) for job in some} == {("d2-ring",)}
    assert topologies.jobs(DEFAULTS._replace(candidates=("numpy",))) == []


def test_work_of_a_round():
    """16 clients, 5 steps of 10 examples, two products of 60 x 10 with multiply-add = 2."""
    w = topologies.workload(16)
    assert w.steps == 5
    assert w.flops_per_round == 16 * 5 * 10 * 2 * 2 * 600
    assert w.parameters == 61 * 10


@pytest.mark.slow
def test_measured_on_few_clients(monkeypatch):
    monkeypatch.setattr(topologies, "MOST_ROUNDS", 2)
    flat = topologies.measure(4, 0.0, ["dfedavg-ring", "hier_fedavg", "gradient_tracking-ring"])
    assert all(value > 0 for value in flat.values())
    (case,) = topologies.cases({"4": {"methods": flat}}, Machine(1e9, 1e9))
    names = ["fedavg", "dfedavg-ring", "hier_fedavg", "gradient_tracking-ring"]
    assert list(case.rows) == names
    # A model, or two vectors as long, in single precision.
    assert [case.rows[name]["bits_per_link"] / (32 * 610) for name in names] == [1, 1, 1, 2]
    assert [case.rows[name]["links_per_client"] for name in names] == [1, 2, 1, 2]
    assert "4 clients x 5 steps" in report.table(case)


def test_the_page_has_the_numbers_of_the_results():
    stored = json.loads((ROOT / "benchmarks" / "results" / "topologies.json").read_text())
    assert stored["left_out"] == []
    cases = stored["cases"]
    assert list(cases) == [str(clients) for clients in topologies.CLIENTS]
    page = (ROOT / "docs" / "howto" / "topologies.md").read_text()
    shown = [
        f"{1e3 * cases[clients]['candidates']['fedavg']['cpu_seconds']:.2g} ms"
        for clients in ("16", "256", "4096")
    ]
    assert f"took {', '.join(shown)} of" in " ".join(page.split())
    for name in topologies.METHODS:
        rows = [case["candidates"][name] for case in cases.values()]
        ratios = " | ".join(f"{row['cpu_ratio']:.2f}" for row in rows)
        assert f"| {name} | {rows[0]['bits_per_link']:,} | {ratios} |" in page
