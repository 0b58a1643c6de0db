"""Parts of a sweep: every run in exactly one of them, and kills that lose nothing."""

import itertools
import pathlib
import subprocess
import sys
import time

import jax
import killed_sweep
import numpy as np
import processes
import pytest
import small_runs
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_sim as fs
from fedjax_sim.runs.sweeps.grid import divide, expand, groups, shares_of

SCRIPT = pathlib.Path(killed_sweep.__file__)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 30), st.booleans())
def test_every_run_is_in_one_part(sizes, num_parts, per_seed):
    grid = [{"batch_size": b, "lr": 0.1 * i} for b, size in enumerate(sizes) for i in range(size)]
    whole = list(shares_of(groups(expand(grid), {"batch_size"}), 2, per_seed))
    parts = [divide(whole, (i, num_parts)) for i in range(1, num_parts + 1)]
    pieces = list(itertools.chain.from_iterable(parts))
    runs = [(i, j) for group, numbers in pieces for i in group.members for j in numbers]
    assert sorted(runs) == list(itertools.product(range(len(grid)), range(2)))
    for group, _ in pieces:
        entries = [grid[i] for i in group.members]
        assert {entry["batch_size"] for entry in entries} == {group.static["batch_size"]}
        assert group.values["lr"].tolist() == [entry["lr"] for entry in entries]
    if num_parts <= len(whole):
        assert len(pieces) == len(whole)  # no group is cut
    else:  # one piece per part, as long as there are configurations
        assert len(pieces) == min(num_parts, len(grid) * (1 + per_seed))
        assert max(map(len, parts)) == 1


@pytest.mark.parametrize(("number", "of"), [(0, 4), (5, 4), (1, 0), (-1, 4), (3, 2), (1.5, 2)])
def test_numbers_that_are_no_part(number, of):
    with pytest.raises(ValueError, match=f"part is {number}; expected 1 .. {of}, the parts"):
        fs.Part(small_runs.GRID, number, of)
    with pytest.raises(ValueError, match=r"part is '1'; expected 1 \.\. 2, the parts"):
        fs.Part(small_runs.GRID, "1", 2)  # as an environment variable has it


def test_a_part_needs_a_folder_and_one_process(monkeypatch):
    with pytest.raises(ValueError, match="storage is None; expected the folder that the parts"):
        small_runs.sweep(None, grid=fs.Part(small_runs.GRID, 1, 2))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"connects 2 processes; .*--part I --parts N"):
        small_runs.sweep(None)


def runs_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("slices/*.npz")}


@pytest.mark.slow
def test_a_killed_and_repeated_part_loses_nothing(tmp_path):
    """Part 1 is killed in its second slice, part 2 runs to its end; then part 1 is repeated."""
    env = processes.environment(tmp_path / "cache")

    def start(folder: str, pause: str, *part: str) -> subprocess.Popen:
        command = [sys.executable, SCRIPT, tmp_path / folder, pause, *part]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    killed, deadline = start("shared", "0.1", "1/2"), time.monotonic() + 120
    while not runs_of(tmp_path / "shared") and killed.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.15)  # into the next slice, whose four segments take 0.4 seconds
    killed.kill()
    killed.communicate()
    before = runs_of(tmp_path / "shared")
    assert 0 < len(before) < killed_sweep.NUM_SEEDS, "the kill came too late to test anything"
    # Two configurations are in part 1, one in part 2, with four seeds each.
    printed = start("shared", "0", "2/2").communicate(timeout=120)[0].split()
    assert [int(printed[0]), int(printed[2])] == [4, 2 * len(before)]
    repeated = killed_sweep.main(tmp_path / "shared", part=(1, 2))
    assert (len(repeated.runs), repeated.resumed) == (12, 2 * len(before) + 4)
    after = runs_of(tmp_path / "shared")
    assert after.items() >= before.items()
    assert len(after) == 8

    for part in (1, 2):
        killed_sweep.main(tmp_path / "whole", part=(part, 2))
    shared, whole = (killed_sweep.main(tmp_path / name) for name in ("shared", "whole"))
    assert (shared.missing, shared.resumed, shared.compilations) == (0, 12, 0)
    assert small_runs.sweep_bits(shared) == small_runs.sweep_bits(whole)
    for one, same in zip(shared.runs, killed_sweep.main(None).runs, strict=True):
        assert one[:2] == same[:2]
        np.testing.assert_allclose(one.history.metrics["x"], same.history.metrics["x"], rtol=1e-5)
