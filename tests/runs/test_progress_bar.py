"""The progress bar's texts and tables, without runs."""

import io
import sys
import types

import pytest

import fedjax_sim as fs
from fedjax_sim.runs.result import Progress
from fedjax_sim.runs.sweeps.grid import cut
from fedjax_sim.runs.sweeps.sweep import SweepProgress

HALF = Progress(5, 10, {"time": 1.0, "test/loss": 0.25})


def bar_at(*times: float) -> fs.ProgressBar:
    return fs.ProgressBar(clock=iter(times).__next__)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_in_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = bar_at(0.0, 1.0, 5.0, 9.0, 11.0)
    bar.begin("FedAvg")
    bar.progress(Progress(2, 10, {}, name="FedAvg"))
    bar.progress(HALF._replace(name="FedAvg"))  # three tenths in four seconds
    bar.progress(Progress(10, 10, {}, name="FedAvg"))
    assert sys.stderr.getvalue().split("\r\x1b[K")[1:] == [
        "FedAvg 0 %, 0 s, compiling",
        "FedAvg 20 %, 4 s, round 2/10",
        "FedAvg 50 %, 8 s, 7 s left, round 5/10, test/loss 0.25",
        "FedAvg 100 %, 10 s, round 10/10\n",
    ]


def test_lines_in_a_file():
    """At the start, at the first progress, at the end, and once per minute between."""
    log = io.StringIO()
    bar = fs.ProgressBar(iter([0, 0, 10, 50, 71, 100, 102]).__next__, file=log)
    bar.begin("FedAvg")
    for done in (1, 3, 5, 7, 10):
        bar.progress(Progress(done, 10, {"loss": 1 / done}, name="FedAvg"))
    assert log.getvalue().splitlines() == [
        "FedAvg 0 %, 0 s, compiling",
        "FedAvg 10 %, 10 s, round 1/10, loss 1",
        "FedAvg 50 %, 71 s, 76 s left, round 5/10, loss 0.2",
        "FedAvg 100 %, 102 s, round 10/10, loss 0.1",
    ]


def test_one_line_without_names(capsys):
    bar = bar_at(0.0, 3.0)
    bar.begin("")  # a run alone has no name, and its line began with the bar
    bar.progress(HALF)
    assert repr(bar) == "50 %, 3 s, round 5/10, test/loss 0.25"


def test_table_in_jupyter_is_displayed_once_and_updated(monkeypatch):
    shown, updates = [], []
    handle = types.SimpleNamespace(update=lambda bar: updates.append(bar._repr_html_()))

    def display(bar, display_id):
        shown.append((bar._repr_html_(), display_id))
        return handle

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    bar = bar_at(0.0, 1.0, 2.0, 3.0)
    bar.begin("<a>")
    bar.progress(HALF._replace(name="<a>"))
    bar.begin("b")
    assert len(shown) == 1
    assert shown[0][1] is True
    assert "<th>&lt;a&gt;</th>" in shown[0][0]
    assert [html.count("<progress") for html in updates] == [1, 2]
    assert '<progress value="0.5000" max="1">' in updates[-1]


@pytest.mark.parametrize(
    ("slices_done", "round", "runs_done", "fraction"),
    [(0, 0, 0, 0.0), (0, 5, 0, 2 / 12), (1, 10, 4, 4 / 12), (3, 10, 12, 1.0)],
)
def test_fraction_of_a_sweep_counts_the_slice_in_progress(slices_done, round, runs_done, fraction):
    plan = cut(4, 3, 2, 2, 1)  # 12 runs; a slice has 2 devices x 2 configurations x 1 seed
    progress = SweepProgress({}, plan, 1, 1, slices_done, round, 10, runs_done, 12)
    assert progress.fraction == pytest.approx(fraction)
    assert f"round {round}/10" in progress.status
