"""Runs that are stopped and continued, in chunks and with clients divided over two devices."""

import pathlib
import signal
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import numpy.testing as npt
from call_records import records
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim.engine.execution import strategies
from fedjax_sim.engine.execution.placement import by_client
from fedjax_sim.types import FedAlgorithm

NUM_CLIENTS, COHORT, ROUNDS, STOP = 8, 2, 8, 4
KEY = jax.random.key(5)


def squared_norm(params):
    return {"squared_norm": jnp.sum(params["w"] ** 2)}


def regression_setup(placement=None) -> fs.Setup:
    """Two passes over eight clients, four rounds each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 3)).astype(np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 33, 4, dtype=np.int32))

    def objective(params, batch, key):
        del key
        return (batch["x"] @ params["w"] - batch["y"]) ** 2

    batches = fs.with_replacement(2, num_steps=2)
    task = fs.empirical_task(objective, data, batches, placement=placement)
    timeline = fs.timelines.cyclic(ROUNDS, NUM_CLIENTS, COHORT, task.num_steps)
    if placement is not None:
        timeline = fs.timelines.arrange_by_stratum(timeline, NUM_CLIENTS, 2)
    return fs.Setup(task, timeline, {"w": jnp.zeros(3)}, squared_norm, eval_every=2)


def executions() -> Iterator[tuple[str, fs.Setup, strategies.Execution | None]]:
    """The same run in one piece, in chunks of one client, and on two devices."""
    yield "vmapped", regression_setup(), strategies.vmapped()
    yield "chunked", regression_setup(), strategies.chunked(1)
    mesh = jax.make_mesh((2,), ("clients",), devices=jax.devices()[:2])
    yield "by_client", regression_setup(by_client(NUM_CLIENTS, mesh)), None


def check_stopped_runs(algorithm: FedAlgorithm, folder: pathlib.Path) -> None:
    """Asserts that runs continue with the same bits, and that all executions agree."""
    expected = None

    def stop(progress):
        if progress.round == STOP:
            signal.raise_signal(signal.SIGINT)

    for name, setup, execution in executions():

        def go(directory, on_progress=None, setup=setup, execution=execution):
            return fs.simulate(
                algorithm,
                setup,
                KEY,
                **records(
                    progress=on_progress,
                    folder=directory,
                    execution=execution,
                    segment_seconds=1e-9,
                ),
            )

        whole = go(folder / name / "whole")
        stopped = go(folder / name / "stopped", stop)
        assert stopped.interrupted
        assert stopped.rounds_done == STOP
        resumed = go(folder / name / "stopped")
        jax.tree.map(npt.assert_array_equal, resumed.state.server, whole.state.server)
        histories = [
            (folder / name / run / "history.csv").read_bytes() for run in ("whole", "stopped")
        ]
        assert histories[0] == histories[1]
        expected = whole.state.server if expected is None else expected
        assert_close(whole.state.server, expected, 1e-4)
