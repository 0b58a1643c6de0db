"""Rounds of the goals on accelerators: W1 to W4, a wide LeNet-5 and ResNet-18, by precision.

``PRECISION seconds`` are those of a round under ``execution.auto``, many rounds per dispatch for
small models; ``PRECISION tflop_per_s`` is the arithmetic of training by them.  Then two clients do
two steps of four examples in every precision and in float32 on the CPU, and ``PRECISION off`` is
the distance of the two rounds' changes of the model, relative to the change.  If one is off by too
much, the job fails, with all numbers.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fedjax_sim as fs
from benchmarks.candidates import ours, problem, timeline
from benchmarks.jobs import Measured, timed
from benchmarks.workloads import GOALS, Workload, reduced

# The most that a round's change may differ from that of float32 on the CPU. Products err by 2^-24,
# 2^-11 and 2^-9 per operand, which a step's sums and ReLUs at their kinks multiply.
ALLOWED = {"bfloat16": 0.1, "tf32": 0.02, "float32": 1e-3}
PRODUCTS = {"float32": "float32", "tf32": "tensorfloat32", "bfloat16": "default"}
ROUNDS = {"logistic": 100, "softmax": 10, "femnist": 10}  # per dispatch


def measure(workload: str, seconds: float, tiny: bool) -> Measured:
    """Runs in a process of its own; prints what it has after every precision.

    Raises:
        RuntimeError: a round differs too much from the one on the CPU.
    """
    w = reduced(GOALS[workload]) if tiny else GOALS[workload]
    numbers: Measured = {}
    for precision in ALLOWED:
        with arithmetic(precision):
            call = ours(w, "auto", ROUNDS.get(w.model, 1), half=precision == "bfloat16")
            found = timed(call, seconds)
        numbers[f"{precision} seconds"] = found["seconds"]
        numbers[f"{precision} first_call_seconds"] = found["first_call_seconds"]
        numbers[f"{precision} tflop_per_s"] = w.flops_per_round / found["seconds"] / 1e12
        print(json.dumps(numbers), flush=True)
    exact = on_the_cpu(reduced(w))
    off = {precision: distance(reduced(w), precision, exact) for precision in ALLOWED}
    numbers |= {f"{precision} off": value for precision, value in off.items()}
    print(json.dumps(numbers), flush=True)
    if not all(value <= ALLOWED[precision] for precision, value in off.items()):
        raise RuntimeError(
            f"rounds of {workload} differ from the CPU's by {off}; expected at most {ALLOWED}"
        )
    return numbers


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Context of a precision's products; bfloat16 belongs to the task."""
    with jax.default_matmul_precision(PRODUCTS[precision]):
        yield


def on_the_cpu(w: Workload) -> Any:
    """Returns the change of the server's model in a round in float32 on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return _change(w, "float32")


def distance(w: Workload, precision: str, exact: Any) -> float:
    """Returns ``||u - v|| / ||v||`` of a round's change u here and v, the exact one."""
    here = _change(w, precision)
    off, size = (
        float(jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree))))
        for tree in (jax.tree.map(jnp.subtract, here, exact), exact)
    )
    return off / size


def _change(w: Workload, precision: str) -> Any:
    """Returns the change of the server's model in one round, on the host."""
    with arithmetic(precision):
        model, task = problem(w, half=precision == "bfloat16")
        params = jax.jit(model.init)(jax.random.key(0))
        setup = fs.Setup(task, timeline(w, jax.random.key(1), 1), params)
        execution = fs.execution.vmapped()
        state = fs.simulate(
            fs.fedavg(w.lr), setup, jax.random.key(2), options=fs.Options(execution=execution)
        ).state
    return jax.device_get(jax.tree.map(jnp.subtract, state.server.params, params))
