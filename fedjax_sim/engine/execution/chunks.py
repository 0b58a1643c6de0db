"""Clients per chunk: the numbers behind :func:`~fedjax_sim.engine.execution.strategies.auto`.

On a CPU the cache decides, on an accelerator the memory.  docs/performance.md has the evidence.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

# On a CPU core: values per chunk (parameters of all its clients and replicas), and the most clients
# per chunk. From W1 and W4, alone and as sweeps (docs/performance.md).
_CPU_VALUES = 131_072
_CPU_CLIENTS = 128
# On an accelerator: bytes of the values of all clients that run together. Half the memory of the
# smallest one in use (16 GB, TPU v5e); the rest is for data, states and the compiler.
_ACCELERATOR_BYTES = 8_000_000_000
# On a TPU, clients of more bytes run in pairs: the on-chip memory of a v5e, which one fills.
_TPU_PAIR_BYTES = 128 * 2**20
# The last pair of an odd cohort is filled with a repeated client. In smaller odd cohorts that costs
# more than pairs gain, by the geometric mean of two models on three chips (docs/performance.md).
_TPU_ODD_COHORT = 7


def cpu_chunk(num_slots: int, parameters: int) -> int:
    """Returns the clients per chunk on a CPU core, which should divide the cohort.

    ``parameters`` are those of a client's replicas.  Powers of two only: other chunks of 5 to 12
    clients run at half the speed of 4 or 8.
    """
    limit = min(max(_CPU_VALUES // parameters, 1), _CPU_CLIENTS)
    if num_slots <= limit:
        return num_slots
    powers = [2**i for i in range(limit.bit_length()) if 2**i <= limit]
    # A step of a chunk costs as much as its clients plus one.
    return min(powers, key=lambda c: -(-num_slots // c) * (c + 1))


def accelerator_chunk(num_slots: int, num_bytes: int) -> int:
    """Returns the clients, of :func:`peak_bytes` each, per equal chunk on an accelerator."""
    limit = max(_ACCELERATOR_BYTES // max(num_bytes, 1), 1)
    num_chunks = -(-num_slots // limit)
    return -(-num_slots // num_chunks)


def tpu_chunk(num_slots: int, num_bytes: int) -> int:
    """Returns the clients per chunk on a TPU: two if one fills the on-chip memory, else as above.

    By the compilers' cycles, ten ResNet-18s take 1.25 times as long together as one after the other
    on a v5e, and 0.77 times on a v5p.  Pairs are within 5 % of the best chunk on both.  An odd
    cohort of fewer than seven such clients runs one after the other.
    """
    fitting = accelerator_chunk(num_slots, num_bytes)
    if num_bytes <= _TPU_PAIR_BYTES:
        return fitting
    return min(fitting, 1 if num_slots % 2 and num_slots < _TPU_ODD_COHORT else 2)


def peak_bytes(program: ClosedJaxpr | Jaxpr) -> int:
    """Returns the most bytes of values that exist at one time in a program, without its arguments.

    Activations that the backward pass needs, gradients and models count.  The compiler fuses
    operations and needs less; its padding and its copies need more.
    """
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    last_use: dict[Var, int] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        last_use |= {v: i for v in eqn.invars if isinstance(v, Var)}
    last_use |= {v: len(jaxpr.eqns) for v in jaxpr.outvars if isinstance(v, Var)}
    freed: list[list[Var]] = [[] for _ in range(len(jaxpr.eqns) + 1)]
    live = peak = 0
    for i, eqn in enumerate(jaxpr.eqns):
        results = sum(map(_num_bytes, eqn.outvars))
        inner = max(map(peak_bytes, inner_programs(eqn.params)), default=0)
        # A loop stores what its steps return beside what a step needs; a call returns its values.
        loop = eqn.primitive.name in ("scan", "while")
        peak = max(peak, live + (results + inner if loop else max(results, inner)))
        for var in eqn.outvars:
            if var in last_use:
                freed[last_use[var]].append(var)
                live += _num_bytes(var)
        live -= sum(map(_num_bytes, freed[i]))
    return peak


def inner_programs(params: dict[str, Any]) -> Iterator[ClosedJaxpr | Jaxpr]:
    """Yields the programs among an equation's parameters: bodies of loops, branches, calls."""
    kinds = ClosedJaxpr, Jaxpr
    for leaf in jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, kinds)):
        if isinstance(leaf, kinds):
            yield leaf


def _num_bytes(var: Any) -> int:
    shape, dtype = getattr(var.aval, "shape", ()), getattr(var.aval, "dtype", None)
    return int(np.prod(shape)) * getattr(dtype, "itemsize", 0)
