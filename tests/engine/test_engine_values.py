"""Small functions of the engine, with values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim import engine
from fedjax_sim.engine.evaluation.streaming import default_batch, masked, wide
from fedjax_sim.engine.execution import chunks, lost_process
from fedjax_sim.engine.execution.devices import platform_named
from fedjax_sim.engine.execution.distributed import connection, idle_gpus, local_device_ids
from fedjax_sim.engine.loops import most_evaluations
from fedjax_sim.engine.rounds import weights_of_clients

FULL = fs.timelines.full


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (engine.quantile_names, [(0.1, 0.5)], {"q10": 0.1, "q50": 0.5}),
        (engine.direction, ["test/accuracy"], "max"),
        (engine.direction, ["train/loss"], "min"),
        (engine.direction, ["valid/bleu"], None),
        (engine.direction, ["top-5"], "max"),
        (engine.direction, ["Top-5 Error"], "min"),
        (engine.direction, ["client/accuracy/std"], "min"),
        (engine.is_fraction, ["test/accuracy"], True),
        (engine.is_fraction, ["top-5 error"], False),
        (engine.is_fraction, ["loss"], False),
        (
            engine.headline,
            [["client/accuracy/q10", "time", "train/loss", "loss", "test/accuracy", "auc"]],
            ["test/accuracy", "train/loss", "auc", "loss", "client/accuracy/q10"],
        ),
        (engine.split_of, ["client/test"], "test"),
        (engine.split_of, ["personal/test"], "personal/test"),
        (engine.split_of, [""], ""),
        (default_batch, [{"kernel": np.zeros((784, 10))}, "cpu"], 1000),
        (wide, [jnp.dtype("bfloat16")], np.float32),
        (wide, [np.dtype("float64")], np.float64),
        (engine.num_buffers, [FULL(3, 2, num_steps=1)], 0),
        (engine.is_ragged, [FULL(2, 3, [8, 8, 8])], False),
        (engine.is_ragged, [FULL(2, 3, [1, 1, 8])], True),
        (engine.has_kernels, [{"kernel": np.zeros((784, 10))}], False),
        (engine.platform_of, [jax.ShapeDtypeStruct((2,), "float32")], None),
        # JAX calls GPUs by their maker's software: CUDA is NVIDIA's, ROCm is AMD's.
        (platform_named, ["cpu"], "cpu"),
        (platform_named, ["tpu"], "tpu"),
        (platform_named, ["cuda"], "gpu"),
        (platform_named, ["rocm"], "gpu"),
        (most_evaluations, [10, 5], 3),  # rounds 4 to 13 of 13: after 5, 10 and 13
        (chunks.cpu_chunk, [1000, 100], 128),
        (chunks.cpu_chunk, [90, 100], 90),
        (chunks.cpu_chunk, [10, 16384], 2),
        (chunks.accelerator_chunk, [100, 10_000_000], 100),
        (chunks.accelerator_chunk, [10, 1_000_000_000], 5),
        (chunks.tpu_chunk, [10, 35_000_000], 10),
        (chunks.tpu_chunk, [10, 390_000_000], 2),
        (chunks.tpu_chunk, [10, 5_000_000_000], 1),
        (chunks.tpu_chunk, [5, 390_000_000], 1),
        (chunks.tpu_chunk, [6, 390_000_000], 2),
        (chunks.tpu_chunk, [7, 390_000_000], 2),
        (local_device_ids, [{"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1"}], []),
        (local_device_ids, [{"SLURM_STEP_TASKS_PER_NODE": "4,1", "SLURM_NODEID": "0"}], None),
        (connection, ["gpu", [4, 4], [0, 0]], "2 processes, 8 devices (gpu, 4 per process)"),
        (
            connection,
            ["gpu", [1, 2], [3, 0]],
            "2 processes, 3 devices (gpu, by process 1 2); idle: 3 GPUs (by process 3 0)",
        ),
    ],
)
def test_values(function, arguments, expected):
    assert function(*arguments) == expected


def test_idle_gpus():
    task = {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}
    assert idle_gpus(1, "gpu", task | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}) == 3
    assert idle_gpus(16, "cpu", task | {"SLURM_GPUS_ON_NODE": "4"}) == 4


def test_periods_of_evaluations():
    norm = Partial(lambda params: {"norm": jnp.abs(params)})
    assert engine.periods(fs.evaluation.at_rounds(norm, 10)) == {10}
    assert engine.periods(norm) == set()


def test_arrays():
    assert masked(jnp.ones(2, jnp.bfloat16), jnp.array([True, False])).tolist() == [1, 0]
    assert engine.platform_of({"x": jnp.ones(2)}) == jax.devices()[0].platform
    twice = jax.make_jaxpr(lambda x: jnp.sin(jnp.cos(x)).sum())(jnp.ones(1000))
    assert chunks.peak_bytes(twice) == 8000  # the cosines and the sines


def test_lines_of_a_lost_process():
    """A line of another thread stays, the stack of the process that was lost goes."""
    fatal, stack = lost_process._FATAL, lost_process._STACK
    lines = ["a warning\n", f"F1122 {fatal} detected fatal errors\n", stack, "@ 0x7f"]
    text = "".join(lost_process.filtered(lines, 2, heartbeat_timeout=20))
    assert text.startswith(
        "a warning\nprocess 0 of 2 was lost: it ended, or showed no sign of life"
    )
    assert "0x7f" not in text


@pytest.mark.parametrize("weighting", [fs.uniform_weights, fs.weight_by_examples])
def test_timelines_of_lists_in_double_precision(weighting, x64):
    """NumPy's integers have 64 bits, which strict promotion does not mix with those of 32."""
    timeline = fs.Timeline(
        clients=[[0, 1], [2, 0]],
        version=[[0, 0], [0, 1]],  # client 2 starts from the first broadcast
        num_steps=[[5, 5], [9, 5]],
        mask=[[True, True], [True, False]],
        time=[1.0, 2.0],
        max_steps=9,
        max_staleness=1,
    )

    def oracle(client, key, max_steps):  # F_i(w) = (w - i)^2 / 2
        grad = lambda w, step=0: w - client.astype(w.dtype)  # noqa: E731
        return fs.Oracle(grad, lambda w, step: w, grad)

    task = fs.Task(oracle, num_examples=np.ones(3, int), num_steps=np.full(3, 5))
    setup = fs.Setup(task, timeline, jnp.array(1.0), weighting=weighting)
    state, _ = fs.run(fs.fedavg(0.1), setup, jax.random.key(0))
    first = (0.9**5 + 1) / 2
    moved = (2 + (1 - 2) * 0.9**9) - 1
    assert float(state.server.params) == pytest.approx(first + moved, rel=1e-14)


def test_weights_of_all_clients_receive_steps_in_32_bits(x64):
    """As in rounds: a weighting may combine them with other integers of the visit."""
    task = fs.Task(None, num_examples=np.ones(3, int), num_steps=np.array([2, 0, 1]))
    weighting = lambda work: jnp.minimum(work.num_steps, work.client)  # noqa: E731
    assert weights_of_clients(task, weighting, 2).tolist() == [0, 0, 1]
