"""Rounds of the goals on accelerators: W1 to W4, a wide LeNet-5 and ResNet-18, by precision.

``WORKLOAD/PRECISION seconds`` are those of a round under ``execution.auto``, many rounds per
dispatch for small models; ``tflop_per_s`` is the arithmetic of training by them.
:mod:`benchmarks.distances` checks that a round in a precision is the one of the CPU.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence

import jax

from benchmarks.candidates import ours
from benchmarks.jobs import Measured, timed
from benchmarks.workloads import GOALS, reduced

PRODUCTS = {"bfloat16": "default", "tf32": "tensorfloat32", "float32": "float32"}
ROUNDS = {"logistic": 100, "softmax": 10, "femnist": 10}  # per dispatch


def measure(
    workloads: Sequence[str], precisions: Sequence[str], seconds: float, tiny: bool
) -> Measured:
    """Runs in a process of its own; prints what it has after every precision."""
    numbers: Measured = {}
    for name in workloads:
        w = reduced(GOALS[name]) if tiny else GOALS[name]
        for precision in precisions:
            with arithmetic(precision):
                call = ours(w, "auto", ROUNDS.get(w.model, 1), half=precision == "bfloat16")
                found = timed(call, seconds)
            way = f"{name}/{precision}"
            numbers[f"{way} seconds"] = found["seconds"]
            numbers[f"{way} first_call_seconds"] = found["first_call_seconds"]
            numbers[f"{way} tflop_per_s"] = w.flops_per_round / found["seconds"] / 1e12
            print(json.dumps(numbers), flush=True)
    return numbers


@contextlib.contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Context of a precision's products; bfloat16 belongs to the task."""
    with jax.default_matmul_precision(PRODUCTS[precision]):
        yield
