"""Segments whose time is bounded: equal bits, one program, and what a kill leaves."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import jax
import jax.numpy as jnp
import long_run
import numpy as np
import processes
import pytest
from call_records import SINGLE, records
from optimised import run_optimised

import fedjax_sim as fs
from fedjax_sim.runs.pace import Pace

KEYS = jax.random.split(jax.random.key(1), 2)


def setup_of(placement=None, *, eval_every=4, rounds=11) -> fs.Setup:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.array([0, 4, 5, 17, 30], np.int32))

    def objective(w, batch, key):
        return (batch["x"] @ w - batch["y"] + jax.random.normal(key, (2,))) ** 2

    task = fs.empirical_task(
        objective, data, fs.with_replacement(2, num_steps=3), placement=placement
    )
    timeline = fs.timelines.uniform(jax.random.key(0), rounds, 4, 2, task.num_steps)
    norm = lambda w: {"norm": jnp.sum(w**2)}  # noqa: E731
    return fs.Setup(task, timeline, jnp.zeros((2, 3)), norm, eval_every=eval_every)


PROBES = fs.Probes(
    client={"drift": lambda visit: jnp.sum(visit.upload[0] ** 2)},
    server={"moved": lambda update: jnp.sum(jnp.abs(update.new_state.params))},
)
LENGTHS = {  # options -> the rounds after which segments end; None: they depend on the machine
    "one round": ({"segment_seconds": 1e-9}, list(range(1, 12))),
    "by time": ({}, None),
    "one evaluation": ({"callbacks": [SINGLE]}, [1, 4, 8, 11]),
}
HOST = {
    "examples": lambda: fs.execution.on_host(memory=10**6),
    "examples and states": lambda: fs.execution.on_host(memory=10**6, states=True),
    "loads of one round": lambda: fs.execution.on_host(memory=900, states=True),
}


def go(setup, folder, on_progress=None, **options):
    ends = []

    def seen(progress):
        ends.append(progress.round)
        if on_progress is not None:
            on_progress(progress)

    result = fs.simulate(
        fs.scaffold(0.05),
        setup,
        KEYS,
        **records(
            folder=folder,
            more_callbacks=[types.SimpleNamespace(progress=seen)],
            checkpoint_seconds=0,
            probes=PROBES,
            **options,
        ),
    )
    return result, ends, (folder / "history.csv").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return go(setup_of(), tmp_path_factory.mktemp("whole"))


def assert_equal_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one[0].state, other[0].state)
    jax.tree.map(np.testing.assert_array_equal, one[0].history, other[0].history)
    assert one[2] == other[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_do_not_change_a_bit(name, whole, tmp_path):
    options, ends = LENGTHS[name]
    found = go(setup_of(), tmp_path, **options)
    assert_equal_bits(found, whole)
    assert found[0].history.round.tolist() == [[4, 8, 11]] * 2
    if ends is not None:
        assert found[1] == ends
    in_memory = fs.simulate(
        fs.scaffold(0.05), setup_of(), KEYS, **records(probes=PROBES, **options)
    )
    frames = in_memory.to_frame(), found[0].to_frame()
    assert frames[0].equals(frames[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["examples", "examples and states"])
def test_lengths_on_the_host_do_not_change_a_bit(name, whole, tmp_path):
    """Segments end with loads."""
    found = go(setup_of(HOST[name]()), tmp_path, segment_seconds=1e-9)
    assert_equal_bits(found, whole)
    assert found[1] == [4, 8, 11]


@pytest.mark.slow
def test_loads_of_one_round_do_not_change_a_bit(tmp_path):
    """With optimisation, as users have it: without it, last bits of such programs differ.

    All 30 examples of 16 bytes do not fit into half of 900 bytes, the 25 of a round do.
    """
    script = f"""
import pathlib
import test_segments as here
folder = pathlib.Path({str(tmp_path)!r})
whole = here.go(here.setup_of(), folder / "whole")
small = here.setup_of(here.HOST["loads of one round"]())
found = here.go(small, folder / "found", segment_seconds=1e-9)
here.assert_equal_bits(found, whole)
assert found[1] == list(range(1, 12))
here.continue_with_another_memory(folder / "other")
"""
    run_optimised(__file__, script)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "then"), [(1, "by time"), (3, "one round"), (4, "by time"), (6, "one round")]
)
def test_an_interrupt_between_evaluations_resumes_with_the_same_bits(stop, then, whole, tmp_path):
    def interrupt(progress):
        if progress.round == stop:
            signal.raise_signal(signal.SIGINT)

    stopped, ends, _ = go(setup_of(), tmp_path, interrupt, segment_seconds=1e-9)
    assert stopped.interrupted
    assert stopped.rounds_done == ends[-1] == stop
    assert stopped.history.round.shape == (2, stop // 4)
    rounds = stopped.to_frame().query("metric == 'moved'")["round"]
    assert rounds.tolist() == [*range(1, stop + 1)] * 2
    resumed, ends, rows = go(setup_of(), tmp_path, **LENGTHS[then][0])
    assert ends[-1] == 11
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole[0].state)
    assert rows == whole[2]


def continue_with_another_memory(tmp_path):
    """A load that begins between two evaluations ends with the second."""
    small, large = HOST["loads of one round"], HOST["examples and states"]
    whole = go(setup_of(large()), tmp_path / "whole")

    def interrupt(progress):
        if progress.round == 6:
            signal.raise_signal(signal.SIGINT)

    go(setup_of(small()), tmp_path / "parts", interrupt, segment_seconds=1e-9)
    resumed, ends, rows = go(setup_of(large()), tmp_path / "parts")
    assert ends == [8, 11]
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole[0].state)
    assert rows == whole[2]


@pytest.mark.slow
def test_a_time_limit_does_not_wait_for_an_evaluation(tmp_path):
    limit = fs.callbacks.TimeLimit(1e-9)
    result = fs.simulate(
        fs.fedavg(0.05), dataclasses.replace(setup_of(), eval_every=11), KEYS, callbacks=[limit]
    )
    assert result.interrupted
    assert result.rounds_done == 1


@pytest.mark.parametrize("seconds", [0, -1.0, np.nan])
def test_refuses_a_time_that_is_not_positive(seconds):
    with pytest.raises(ValueError, match=r"segment_seconds is .*; expected a positive number"):
        fs.simulate(fs.fedavg(0.05), setup_of(), KEYS, options=fs.Options(segment_seconds=seconds))


def test_pace():
    """A third of the 30 seconds is planned; a segment has at most eight times the rounds before."""
    pace = Pace(3000, 100, 30.0)
    ends, done = [], 0
    while done < 6000:
        last = pace.after(done, 6000)
        pace.took(last - done, 0.008 * (last - done))  # 8 ms per round: 1250 rounds in a third
        ends.append(last)
        done = last
    assert ends == [1, 9, 73, 500, 1700, 2900, 4100, 5300, 6000]
    slow = Pace(3000, 100, 30.0)
    slow.took(1, 60.0)
    assert slow.after(1, 6000) == 2


@pytest.mark.slow
def test_a_kill_before_the_first_evaluation_keeps_the_rounds(tmp_path):
    """Killed after half of what was a segment: the part between two evaluations is kept.

    A round sleeps 10 ms, so the first evaluation would come after 10 seconds.
    """
    env = processes.environment(tmp_path / "cache")
    command = [sys.executable, long_run.__file__]
    killed, records = tmp_path / "killed", pathlib.Path("checkpoints")
    process = subprocess.Popen(
        [*command, killed, "0.3"], env=env | {"SLEEP": "0.01"}, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    try:
        while len(list((killed / records).glob("*/record.json"))) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    kept = max(int(path.parent.name) for path in (killed / records).glob("*/record.json"))
    assert 0 < kept < long_run.EVAL_EVERY
    for folder in (killed, tmp_path / "whole"):
        long_run.main(str(folder), 30)
    histories = [(tmp_path / name / "history.csv").read_bytes() for name in ("killed", "whole")]
    assert histories[0] == histories[1]
    calls = (killed / "calls.jsonl").read_text().splitlines()
    assert [json.loads(call)["after_round"] for call in calls][1] >= kept
