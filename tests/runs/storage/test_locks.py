"""Locks of folders: other processes and threads are kept out, dead ones are not waited for."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import filelock
import pytest
import small_runs

from fedjax_sim.engine.execution import distributed
from fedjax_sim.runs.storage import locks
from fedjax_sim.runs.storage.locks import FolderInUseError, locked

SCRIPT = pathlib.Path(small_runs.__file__).with_name("locked_folder.py")


def in_another_thread(work):
    """Calls a function in a thread; returns what it raised."""
    errors = []

    def call():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return errors


def enter(folder):
    with locked(folder):
        pass


def test_callers_and_their_functions_share_a_lock(tmp_path):
    with locked(tmp_path / "new"), locked(tmp_path / "new" / ".." / "new"), locked(tmp_path):
        assert in_another_thread(lambda: enter(tmp_path / "new"))
    enter(tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]


def test_another_thread_is_refused(tmp_path):
    with locked(tmp_path):
        since = json.loads((tmp_path / ".lock.json").read_text())["since"]
        (error,) = in_another_thread(lambda: enter(tmp_path))
    assert isinstance(error, FolderInUseError)
    expected = (
        f"{tmp_path} is in use by process {os.getpid()} on {os.uname().nodename} since {since}"
    )
    assert str(error).startswith(expected)
    assert "delete" not in str(error)  # its lock ends with the process
    assert not in_another_thread(lambda: enter(tmp_path))


def test_waiting_for_another_thread(tmp_path):
    order = []

    def later():
        with locked(tmp_path, wait=True):
            order.append("second")

    with locked(tmp_path):
        thread = threading.Thread(target=later)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    enter(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_lock_without_a_description_of_its_holder(tmp_path, text, monkeypatch):
    monkeypatch.setattr(locks, "_BETWEEN", 0.0)
    with locked(tmp_path):
        (tmp_path / ".lock.json").write_text(text)
        (error,) = in_another_thread(lambda: enter(tmp_path))
    assert "is in use by another process; wait" in str(error)


def test_a_holder_that_has_just_taken_the_lock_is_named(tmp_path):
    with locked(tmp_path):
        described = (tmp_path / ".lock.json").read_text()
        (tmp_path / ".lock.json").unlink()
        later = threading.Timer(0.1, (tmp_path / ".lock.json").write_text, (described,))
        later.start()
        (error,) = in_another_thread(lambda: enter(tmp_path))
        later.join()
    assert f"is in use by process {os.getpid()} on " in str(error)


def test_remains_of_killed_writers_are_removed(tmp_path):
    (tmp_path / ".a.json.0123456789ab.tmp").touch()
    enter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_simulate_and_compare_lock_their_directories(tmp_path):
    with locked(tmp_path):
        (error,) = in_another_thread(lambda: small_runs.run(tmp_path))
        assert isinstance(error, FolderInUseError)
        (error,) = in_another_thread(lambda: small_runs.compare(tmp_path))
        assert isinstance(error, FolderInUseError)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """filelock then creates a marker, which may outlive a process of another host."""
    monkeypatch.setattr(filelock, "FileLock", filelock.SoftFileLock)
    with locked(tmp_path):
        (error,) = in_another_thread(lambda: enter(tmp_path))
    assert f"If it does not exist any more, delete {tmp_path / '.lock'}" in str(error)
    enter(tmp_path)
    # A process of this host that does not exist any more.
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    (tmp_path / ".lock").write_text(f"{ended.stdout.strip()}\n{os.uname().nodename}\n")
    os.utime(tmp_path / ".lock", (0, 0))
    with locked(tmp_path, wait=True):
        pass


def test_only_the_first_of_several_processes_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "is_first", lambda: False)
    with locked(tmp_path / "other"):
        assert not (tmp_path / "other").exists()


def test_the_others_end_when_the_first_cannot_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "is_first", lambda: False)
    monkeypatch.setattr(distributed, "any_of", lambda flag: True)
    with pytest.raises(RuntimeError, match="process 0 failed"), locked(tmp_path):
        pass


def test_a_read_only_folder_is_not_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.os, "access", lambda path, mode: False)
    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_gone(tmp_path):
    with subprocess.Popen(
        [sys.executable, SCRIPT, tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(FolderInUseError, match=f"in use by process {process.pid} on "):
            enter(tmp_path)
        process.send_signal(signal.SIGKILL)
    enter(tmp_path)
