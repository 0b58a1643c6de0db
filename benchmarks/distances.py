"""Distances of a round in each precision from the same round in float32 on the CPU.

Two clients do two steps of four examples of a workload of :mod:`benchmarks.goals`, and
``PRECISION off`` is the distance of the two rounds' changes of the model, relative to the change.
If one is off by too much, the job fails, with all numbers.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp

import fedjax_sim as fs
from benchmarks.candidates import problem, timeline
from benchmarks.goals import arithmetic
from benchmarks.jobs import Measured
from benchmarks.workloads import GOALS, Workload, reduced

# The most that a round's change may differ. Products err by 2^-9, 2^-11 and 2^-24 per operand,
# which a step's sums and ReLUs at their kinks multiply.
ALLOWED = {"bfloat16": 0.1, "tf32": 0.02, "float32": 1e-3}


def measure(workload: str) -> Measured:
    """Runs in a process of its own; prints what it has after every precision."""
    w = reduced(GOALS[workload])
    exact = on_the_cpu(w)
    numbers: Measured = {}
    for precision in ALLOWED:
        numbers[f"{precision} off"] = distance(w, precision, exact)
        print(json.dumps(numbers), flush=True)
    if not all(numbers[f"{precision} off"] <= most for precision, most in ALLOWED.items()):
        raise RuntimeError(
            f"rounds of {workload} differ from the CPU's by {numbers}; expected at most {ALLOWED}"
        )
    return numbers


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
