"""Progress bars of a sweep in a terminal."""

import io

import pytest
from rich.console import Console

from fedjax_sim.cli.console import sweep_progress
from fedjax_sim.sweeps.grid import cut
from fedjax_sim.sweeps.sweep import SweepProgress


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_no_bar_without_a_program(screen):
    """Before an error of an option, or if all runs were finished before."""
    with sweep_progress(screen):
        pass
    with pytest.raises(ValueError, match="mine"), sweep_progress(screen):
        raise ValueError("mine")
    assert screen.file.getvalue().strip() == ""


def test_a_bar_with_a_program(screen):
    with sweep_progress(screen) as show:
        plan = cut(4, 3, 2, 2, 1)
        show(SweepProgress({"cohort_size": 5}, plan, 2 * 10**8, 10**9, 0, 0, 10, 0, 12))
    first, last = screen.file.getvalue().strip().splitlines()
    assert first.startswith("cohort_size=5: 3 slices on 2 devices")
    assert "0/12 runs" in last
