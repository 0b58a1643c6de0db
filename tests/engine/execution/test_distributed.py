"""Several processes on one machine: the run of one process, written once, resumed elsewhere."""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import processes
import pytest

from fedjax_sim.engine.execution import distributed

HELPERS = pathlib.Path(__file__).parents[2] / "helpers"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> dict[str, str]:
    return processes.environment(tmp_path_factory.mktemp("cache"), PYTHONUNBUFFERED="1")


def start(env: dict[str, str], commands: list[list[str]]) -> list[subprocess.Popen]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [subprocess.Popen(command, env=env, **pipes) for command in commands]


def run_together(env: dict[str, str], commands: list[list[str]]) -> list[str]:
    """The processes' output; of a failed or hanging one the test fails, and none is left behind."""
    started = start(env, commands)
    try:
        outputs = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), outputs
    return outputs


def commands_of(folder, number: int, devices: int, *options: str) -> list[list[str]]:
    script, port = str(HELPERS / "one_of_several.py"), str(processes.free_port())
    return [
        [sys.executable, script, str(folder), str(i), str(number), port, str(devices), *options]
        for i in range(number)
    ]


def workers(env, folder, number: int, devices: int, *options: str) -> list[str]:
    return run_together(env, commands_of(folder, number, devices, *options))


def history(folder) -> tuple[list, np.ndarray]:
    with (folder / "history.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [row[:-1] for row in rows], np.array([float(row[-1]) for row in rows])


@pytest.fixture(scope="module")
def alone(env, tmp_path_factory):
    """One process with two devices."""
    folder = tmp_path_factory.mktemp("alone")
    workers(env, folder, 1, 2)
    return history(folder)


def assert_same_history(found, expected):
    assert found[0] == expected[0]
    # Devices' sums are added in another order: a few units of single precision.
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)


def test_two_processes_are_as_one(env, tmp_path, alone):
    outputs = workers(env, tmp_path, 2, 2)
    assert_same_history(history(tmp_path), alone)
    # Each loads its own strata's clients: 5, 5, 5 and 4.
    assert "loaded [(0, 5), (5, 10)]" in outputs[0]
    assert "loaded [(10, 15), (15, 19)]" in outputs[1]


def test_interrupted_by_one_continued_by_another_number(env, tmp_path, alone):
    """Ctrl-C in one process ends both after the same round; one process on one device goes on."""
    outputs = workers(env, tmp_path, 2, 1, "--stop-at", "5")
    assert all("rounds 5 interrupted True" in output for output in outputs)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    (output,) = workers(env, tmp_path, 1, 1)
    assert "rounds 12 interrupted False" in output
    assert_same_history(history(tmp_path), alone)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a:1", None, 0), "num_processes is None; expected all of coordinator, num_processes, "),
        (("a:1", 0, 0), "num_processes is 0; expected at least 1"),
        (("a:1", 2, -1), "process_id is -1; expected 0 .. num_processes - 1 = 1"),
        (("a", 1, 0), "coordinator is 'a'; expected host:port"),
        (("a:65536", 1, 0), "coordinator is 'a:65536'; expected host:port"),
    ],
)
def test_refuses(given, message):
    with pytest.raises(ValueError, match=message):
        distributed.connect(*given)


def test_a_lost_process_is_named_and_ends_the_other(env, tmp_path):
    """Killed or frozen: the other process ends with one line and without JAX's stack trace."""
    options = "--rounds", "100000", "--heartbeat", "4", "--pause", "0.5"
    folders = tmp_path / "killed", tmp_path / "frozen"
    pairs = [start(env, commands_of(folder, 2, 1, *options)) for folder in folders]
    try:
        for folder, pair in zip(folders, pairs, strict=True):
            while not (folder / "history.csv").exists():  # they run
                assert [process.poll() for process in pair] == [None, None]
                time.sleep(0.1)
        os.kill(pairs[0][0].pid, signal.SIGKILL)
        os.kill(pairs[1][1].pid, signal.SIGSTOP)
        outputs = [pairs[lost][1 - lost].communicate(timeout=120)[0] for lost in (0, 1)]
    finally:
        for process in [*pairs[0], *pairs[1]]:
            process.kill()
            process.wait()
            process.stdout.close()
    for lost, output in enumerate(outputs):
        assert pairs[lost][1 - lost].returncode == -signal.SIGABRT
        assert (
            f"process {lost} of 2 was lost: it ended, or showed no sign of life for 4 s" in output
        )
        assert "continue from the last checkpoint" in output
        assert "stack trace" not in output
        assert "coordination_service" not in output
