"""Figures of a compiled program, and an estimate of the time of one round."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.compiled.arithmetic import bytes_accessed, flops
from benchmarks.compiled.hlo import (
    COLLECTIVES,
    Loop,
    Module,
    Operation,
    is_kernel,
    loops,
    parse,
    total,
)
from benchmarks.compiled.targets import Chip, Target

# Seconds of a kernel inside a CUDA graph, and of an iteration of a loop that the host runs: a graph
# is launched and the loop's condition read back.  Assumptions, not measured.
KERNEL_SECONDS = 1e-6
HOST_ITERATION_SECONDS = 15e-6

Quantity = Callable[[Operation], float]


def figures(
    text: str,
    memory: Any,
    target: Target,
    rounds: int,
    max_steps: int,
    on_host: Sequence[bool] = (),
) -> dict[str, Any]:
    """Returns the figures of one program; ``on_host``: for each loop, True if the host runs it."""
    module = parse(text)
    count = Counts(module, target)
    found = {
        "temporaries": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "output": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
    }
    round_loop, step_loop = count.round_and_step(rounds, max_steps)

    def per_round(quantity: Quantity) -> float:
        if round_loop is None:
            return total(module, module.entry, quantity) / rounds
        return total(module, round_loop.body, quantity)

    def per_step(quantity: Quantity) -> float:
        if step_loop is None:
            return per_round(quantity) / max_steps
        return (step_loop.trips or 1) * total(module, step_loop.body, quantity) / max_steps

    for name, quantity in count.quantities().items():
        found[f"{name}_per_step"] = per_step(quantity)
        found[f"{name}_per_round"] = per_round(quantity)
    if not target.rates.clock:
        body = round_loop.body if round_loop else module.entry
        hosted = host_loops(module, on_host)
        found["host_iterations_per_round"] = (hosted is None or round_loop in hosted) + iterations(
            module, body, hosted
        )
    found["collectives_per_round"] = {
        kind: n
        for kind in COLLECTIVES
        if (n := per_round(lambda o, kind=kind: is_kernel(o) and o.opcode.startswith(kind)))
    }
    found["unknown_trips"] = sum(
        loop.trips is None for name in module.computations for loop in loops(module, name)
    )
    found["roofline_seconds"] = per_round(count.seconds)
    if counts := half_precision(module):
        found["half_precision"] = counts
    return found


def estimate(row: Mapping[str, Any], chip: Chip) -> dict[str, float]:
    """Returns the estimated seconds of one round and its three parts.

    Launches, bytes at the memory's bandwidth and FLOPs at the peak of products.  On a GPU the sum
    of the launches and, kernel by kernel, the larger of the other two parts; on a TPU the
    compiler's cycles, which contain everything.

    Example:
        >>> row = {"kernels_per_round": 2e3, "host_iterations_per_round": 10,
        ...        "bytes_per_round": 6e9, "flops_per_round": 1e9, "roofline_seconds": 3e-3}
        >>> chip = Chip(flops=1e12, bandwidth=3e12, memory=1e9, clock=0, source="")
        >>> {k: round(v, 6) for k, v in estimate(row, chip).items()}
        {'launches': 0.00215, 'bytes': 0.002, 'flops': 0.001, 'total': 0.00515}
    """
    parts = {
        "bytes": row["bytes_per_round"] / chip.bandwidth,
        "flops": row["flops_per_round"] / chip.flops,
    }
    if chip.clock:
        return {"launches": 0.0, **parts, "total": row["cycles_per_round"] / chip.clock}
    launches = row["kernels_per_round"] * KERNEL_SECONDS
    launches += row["host_iterations_per_round"] * HOST_ITERATION_SECONDS
    return {"launches": launches, **parts, "total": launches + row["roofline_seconds"]}


class Counts:
    """Quantities of the operations of one module on one target."""

    def __init__(self, module: Module, target: Target):
        self._module, self._chip = module, target.rates
        self._within = {
            id(operation): operations
            for operations in module.computations.values()
            for operation in operations.values()
        }
        self._seconds: dict[int, float] = {}

    def bytes(self, operation: Operation) -> float:
        """Bytes read and written."""
        return bytes_accessed(self._module, operation, self._within[id(operation)])

    def flops(self, operation: Operation) -> float:
        """Arithmetic of products and convolutions."""
        return flops(self._module, operation, self._within[id(operation)])

    def seconds(self, operation: Operation) -> float:
        """The larger of the times of bytes and arithmetic."""
        if id(operation) not in self._seconds:
            self._seconds[id(operation)] = max(
                self.bytes(operation) / self._chip.bandwidth,
                self.flops(operation) / self._chip.flops,
            )
        return self._seconds[id(operation)]

    def quantities(self) -> dict[str, Quantity]:
        """Quantities that are reported per local step and per round."""
        kernels = {"kernels": lambda o: float(is_kernel(o))}
        cycles = {"cycles": lambda o: float(o.cycles)}
        unit = cycles if self._chip.clock else kernels
        return {**unit, "bytes": self.bytes, "flops": self.flops}

    def round_and_step(self, rounds: int, max_steps: int) -> tuple[Loop | None, Loop | None]:
        """Returns the loop over rounds, and the loop within it that does the visits.

        The latter is the heaviest loop that runs the local steps or contains the loop that does; if
        the compiler has changed that loop's trip count, the heaviest of all.
        """
        module = self._module

        def weight(loop: Loop) -> float:
            return (loop.trips or 1) * total(module, loop.body, self._weight)

        def find(candidates: list[Loop], trips: int) -> Loop | None:
            """The heaviest loop with this trip count, or one that contains such a loop."""
            found = [loop for loop in candidates if contains(module, loop, trips)]
            return max(found, key=weight, default=None)

        outer = list(loops(module, module.entry))
        round_loop = find(outer, rounds)
        while round_loop is not None and round_loop.trips != rounds:
            round_loop = find(list(loops(module, round_loop.body)), rounds)
        inner = outer if round_loop is None else list(loops(module, round_loop.body))
        return round_loop, find(inner, max_steps) or max(inner, key=weight, default=None)

    def _weight(self, operation: Operation) -> float:
        if self._chip.clock:
            return operation.cycles
        return self.seconds(operation) + KERNEL_SECONDS * is_kernel(operation)


def contains(module: Module, loop: Loop, trips: int) -> bool:
    """Returns True if a loop, or one within it, has this trip count."""
    return loop.trips == trips or any(
        contains(module, inner, trips) for inner in loops(module, loop.body)
    )


def host_loops(module: Module, on_host: Sequence[bool]) -> set[Loop] | None:
    """Returns the loops that the host runs; None: all.

    The thunks of a program have its loops in the same order.
    """

    def ordered(computation: str) -> Iterator[Loop]:
        for loop in loops(module, computation):
            yield loop
            yield from ordered(loop.body)

    every = list(ordered(module.entry))
    if len(every) != len(on_host):
        return None if any(on_host) or not on_host else set()
    return {loop for loop, outside in zip(every, on_host, strict=True) if outside}


def iterations(module: Module, computation: str, counted: Collection[Loop] | None) -> int:
    """Returns the iterations of the counted loops (None: all) inside a computation."""
    return sum(
        (loop.trips or 1)
        * ((counted is None or loop in counted) + iterations(module, loop.body, counted))
        for loop in loops(module, computation)
    )


def half_precision(module: Module) -> dict[str, int]:
    """Returns how products and sums of half-precision numbers are rounded; empty: there are none.

    Products whose results are in float32 and in half precision, and reductions that add in half
    precision.  Every operation of the program counts once.  Matrix units add in float32 in any case
    (TPUs always, cuBLAS and Triton for bfloat16); a result in half precision is rounded once.
    """
    counts = {"wide_products": 0, "half_products": 0, "half_sums": 0}
    for operations in module.computations.values():
        for operation in operations.values():
            is_half = bool(re.match(_HALF, operation.shape.lstrip("(")))
            if operation.opcode in ("reduce", "reduce-window"):
                counts["half_sums"] += _adds_halves(module, operation)
            elif _is_product(operation):
                operands = [operations[name] for name in operation.operands[:2]]
                if all(re.match(_HALF, operand.shape) for operand in operands):
                    counts["half_products" if is_half else "wide_products"] += 1
    return counts if any(counts.values()) else {}


_HALF = r"b?f16\["


def _is_product(operation: Operation) -> bool:
    library = operation.opcode == "custom-call" and re.search(
        "__cublas|__cudnn", operation.attributes
    )
    return operation.opcode in ("dot", "convolution") or bool(library)


def _adds_halves(module: Module, reduction: Operation) -> bool:
    """Returns True for sums in half precision, not for maxima or sums that are rounded later."""
    inner = (o for c in reduction.called for o in module.computations[c].values())
    return any(o.opcode == "add" and re.match(_HALF, o.shape) for o in inner)


def grouped_convolutions(lowered: str) -> int:
    """Returns the number of convolutions with groups in a program before compilation.

    Compilers replace some of them: a TPU's uses dense kernels or dilated images instead.

    Example:
        >>> line = "batch_group_count = 1 : i64, feature_group_count = {} : i64"
        >>> grouped_convolutions("; ".join(["first", line.format(1), line.format(4)]))
        1
    """
    return len(re.findall(r"(?:batch|feature)_group_count = (?!1\b)", lowered))
