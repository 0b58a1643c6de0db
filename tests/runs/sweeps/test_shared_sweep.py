"""Several processes on one sweep: they divide the slices, and each returns all runs."""

import pathlib
import shutil
import subprocess
import sys
import threading
import time

import killed_sweep
import pytest
import small_runs
from processes import environment

import fedjax_sim as fs
from fedjax_sim.runs.storage.files import RecoveryWarning
from fedjax_sim.runs.storage.locks import locked, try_lock
from fedjax_sim.runs.sweeps import slices
from fedjax_sim.runs.sweeps.store import SweepStore
from fedjax_sim.runs.sweeps.sweep import SweepProgress

SCRIPT = pathlib.Path(killed_sweep.__file__)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished sweep of two slices, its claims and its bits."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, small_runs.sweep_bits(small_runs.sweep(folder))


@pytest.fixture
def folder(whole, tmp_path) -> pathlib.Path:
    return shutil.copytree(whole[0], tmp_path / "sweep")


class Claimed:
    """A sweep in a thread, one of whose slices another process has claimed."""

    def __init__(self, folder: pathlib.Path, monkeypatch):
        monkeypatch.setattr(slices, "_POLL_SECONDS", 0.01)
        claim = sorted((folder / "slices" / ".claims").iterdir())[0]
        self.slices = list((folder / "slices").glob("*.npz"))
        self.written = [path.read_bytes() for path in self.slices]
        for path in self.slices:
            path.unlink()
        self.lock = try_lock(claim)
        self.seen: list[SweepProgress] = []
        self.results: list[fs.Sweep] = []
        self.thread = threading.Thread(target=lambda: self.results.append(self._run(folder)))
        self.thread.start()
        deadline = time.monotonic() + 60
        while not any(path.exists() for path in self.slices):  # until the free slice is there
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.thread.join(0.3)
        assert self.thread.is_alive()  # it waits for the other
        assert sum(path.exists() for path in self.slices) == 1

    def _run(self, folder) -> fs.Sweep:
        return small_runs.sweep(folder, progress=self.seen.append)

    def end(self) -> fs.Sweep:
        self.lock.release()
        self.thread.join(60)
        return self.results[0]


@pytest.mark.slow
def test_a_slice_of_another_process_is_awaited(folder, whole, monkeypatch):
    claimed = Claimed(folder, monkeypatch)
    for path, content in zip(claimed.slices, claimed.written, strict=True):
        path.write_bytes(content)  # the other process finishes
    result = claimed.end()
    assert small_runs.sweep_bits(result) == whole[1]
    assert (result.resumed, len(result.runs)) == (2, 4)
    assert max(progress.runs_done for progress in claimed.seen) == 2


def test_a_slice_of_a_killed_process_is_computed(folder, whole, monkeypatch):
    claimed = Claimed(folder, monkeypatch)
    result = claimed.end()
    assert small_runs.sweep_bits(result) == whole[1]
    assert (result.resumed, result.interrupted) == (0, False)
    assert [progress.runs_done for progress in claimed.seen][-1] == 4


def test_an_interrupted_sweep_does_not_wait(monkeypatch, tmp_path):
    waits = []
    monkeypatch.setattr(slices.time, "sleep", lambda seconds: waits.append(seconds))
    shared = SweepStore(tmp_path, None)
    with shared.claimed("a") as is_claimed:
        assert is_claimed
        assert not shared.is_free("a")
        slices.wait_for_others(shared, ["a"], lambda: len(waits) > 2)
    assert len(waits) == 3
    assert shared.is_free("a")


def test_of_two_other_sweeps_one_is_refused(tmp_path):
    """The file that identifies the sweep is written under a lock."""
    with locked(tmp_path):
        thread = threading.Thread(target=lambda: SweepStore(tmp_path, {"a": 1}))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert not (tmp_path / "sweep.json").exists()
    thread.join()
    with pytest.raises(ValueError, match="another run: config differ"):
        SweepStore(tmp_path, {"a": 2})


@pytest.mark.slow
@pytest.mark.parametrize("what", ["empty", "cut", "flip", "text", "names"])
def test_a_damaged_slice_is_computed_again(folder, whole, what):
    path = sorted((folder / "slices").glob("*.npz"))[0]
    data = bytearray(path.read_bytes())
    if what == "flip":
        data[data.index(b"NUMPY") + 200] ^= 4  # in an array, not in a header
    elif what == "names":  # in the directory of the archive only
        where = data.rindex(b"metrics:norm.npy")
        data[where] ^= 1
    content = {"empty": b"", "cut": data[:-30], "text": b"history"}.get(what, data)
    path.write_bytes(bytes(content))
    with pytest.warns(RecoveryWarning, match=rf"{path.name} is damaged .* runs are repeated"):
        again = small_runs.sweep(folder)
    assert small_runs.sweep_bits(again) == whole[1]
    assert again.resumed == 2
    assert path.with_suffix(".damaged").read_bytes() == content


@pytest.mark.slow
def test_three_processes_divide_a_sweep_and_one_is_killed(tmp_path):
    env = environment(tmp_path / "cache")
    command = [sys.executable, SCRIPT, tmp_path / "shared"]
    processes = [
        subprocess.Popen([*command, "0.1"], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    deadline = time.monotonic() + 120
    while not list((tmp_path / "shared").glob("slices/*.npz")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed = next(process for process in processes if process.poll() is None)
    killed.kill()
    killed.communicate()
    printed = [process.communicate(timeout=120)[0] for process in processes if process != killed]
    computed = [int(text.split()[0]) for text in printed]
    found = [int(text.split()[2]) for text in printed]
    num_runs = killed_sweep.NUM_SEEDS * len(killed_sweep.LRS)
    assert [a + b for a, b in zip(computed, found, strict=True)] == [num_runs] * 2
    assert sum(computed) <= num_runs  # no run twice
    names = [path.name for path in (tmp_path / "shared").glob("slices/*.npz")]
    assert len(names) == killed_sweep.NUM_SEEDS
    shared, alone = killed_sweep.main(tmp_path / "shared"), killed_sweep.main(tmp_path / "alone")
    assert small_runs.sweep_bits(shared) == small_runs.sweep_bits(alone)
