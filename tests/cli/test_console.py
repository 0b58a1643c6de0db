"""Progress of commands: bars in a terminal, lines in the log of a job."""

import io
import re

import pytest
from rich.console import Console

from fedjax_sim.cli.console import progress_bars, sweep_progress, tuning_progress
from fedjax_sim.runs.events import notify
from fedjax_sim.runs.result import Progress
from fedjax_sim.runs.sweeps.grid import cut
from fedjax_sim.runs.sweeps.sweep import SweepProgress
from fedjax_sim.runs.sweeps.tuning import Tried


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_no_bar_without_a_program(terminal):
    """Before an error of an option, or if all runs were finished before."""
    screen = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    with sweep_progress(screen):
        pass
    with pytest.raises(ValueError, match="mine"), sweep_progress(screen):
        raise ValueError("mine")
    # A bar in a terminal is erased: every line that is shown is preceded by one that clears it.
    assert screen.file.getvalue().rsplit("\x1b[2K", maxsplit=1)[-1].strip() == ""


def test_a_bar_with_a_program(screen):
    with sweep_progress(screen) as show:
        plan = cut(4, 3, 2, 2, 1)
        show.progress(SweepProgress({"cohort_size": 5}, plan, 2 * 10**8, 10**9, 0, 0, 10, 0, 12))
    assert "cohort_size=5: 3 slices on 2 devices" in plain(screen)
    assert "0/12 runs" in plain(screen).splitlines()[-1]


def plain(console: Console) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", console.file.getvalue()).strip()


def test_lines_of_a_run_in_a_log():
    log = Console(file=io.StringIO(), width=40)
    with progress_bars(["scaffold"], log) as (bar,):
        bar.begin("scaffold")
        bar.progress(Progress(2, 10, {}, name="scaffold"))
        for done in (4, 6):  # within a minute
            bar.progress(Progress(done, 10, {"test/loss": 0.5}, name="scaffold"))
        last = {"test/accuracy": 0.75, "test/loss": 0.25}
        bar.progress(Progress(10, 10, last, name="scaffold"))
    assert re.sub(r"\d+ s", "T s", log.file.getvalue()).splitlines() == [
        "scaffold 0 %, T s, compiling",
        "scaffold 20 %, T s, round 2/10",
        "scaffold 100 %, T s, round 10/10, test/accuracy 0.75, test/loss 0.25",
    ]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"test/accuracy": 0.75, "test/loss": 0.25}, "loss 0.250  accuracy 0.750"),
        ({"utility": 0.75}, "utility 0.750"),
        ({"test/loss": 0.25}, "loss 0.250"),
        ({"local_steps": 3.0}, ""),
    ],
)
def test_lines_of_a_run_in_a_terminal_show_what_was_measured(screen, metrics, shown):
    """A study's own setup may have neither an accuracy nor a loss of the test."""
    with progress_bars(["fedavg"], screen) as (bar,):
        bar.begin("fedavg")
        bar.progress(Progress(4, 10, metrics, name="fedavg"))
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.file.getvalue())
    assert re.search(rf"round 4/10 +{shown} *ETA", text)


def test_lines_of_a_sweep_in_a_log():
    log = Console(file=io.StringIO(), width=120)
    with sweep_progress(log) as show:
        plan = cut(4, 3, 2, 2, 1)
        for round in (0, 2, 4):
            show.progress(SweepProgress({}, plan, 2 * 10**8, 10**9, 0, round, 10, 0, 12))
    lines = log.file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("all: 3 slices on 2 devices")
    assert "0/12 runs" in lines[1]


def test_a_batch_of_which_no_trial_does_all_rounds():
    """A sampler may propose again what a rung has cut in an earlier batch."""
    log = Console(file=io.StringIO(), width=120)
    with tuning_progress(log, 4, 2, "accuracy") as show:
        for score, complete in ((0.5, True), (0.25, False), (0.25, False), (0.25, False)):
            show.tried(Tried({"lr": score}, score, 1 + complete, complete))
    assert log.file.getvalue().splitlines() == [
        "trials 1 to 2 of 4: accuracy 0.5 to 0.5",
        "trials 3 to 4 of 4: accuracy none did all rounds",
    ]


def test_other_processes_print_nothing():
    log = Console(file=io.StringIO(), quiet=True)
    with progress_bars(["scaffold"], log) as callbacks:
        notify(callbacks, "begin", "scaffold")
    assert log.file.getvalue() == ""
