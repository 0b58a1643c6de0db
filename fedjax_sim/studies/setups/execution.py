"""Options of how a run is computed: execution of the clients, precision, memory, divergence."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax

from fedjax_sim.engine import Execution, strategies
from fedjax_sim.studies.setups.fields import HIDDEN, Count, Gigabytes, group


@group
class MeasuredExecution:
    """An execution that fedjax-sim measure found."""

    chunk: Count
    """Clients at once."""
    num_devices: Count = 1
    """Devices that clients are divided over."""
    lowering: str = "auto"
    """Lowering of convolutions."""


@group
class ExecutionOptions:
    """Execution of the clients, precision, memory, and the reaction to a divergence."""

    execution: Literal["auto", "vmapped", "chunked", "sequential"] = "auto"
    """Execution of the clients per round; results agree up to the order of summation."""
    chunk_size: Count = 10
    """Clients per chunk of the chunked execution."""
    # A choice changes the order of sums, so a run records those that it used, None where it went by
    # the rules: later measurements do not change a run that is resumed or repeated.
    measured: Annotated[dict[str, MeasuredExecution | None], HIDDEN] = dataclasses.field(
        default_factory=dict
    )
    """With --execution auto: executions by algorithm; default: those that fedjax-sim measure stored
    for this machine."""
    precision: Literal["default", "float32", "tf32", "bfloat16", "float64"] = "default"
    """Precision of the models' arithmetic. default: float32, matrix products as the device prefers;
    float32: exact products; tf32: products of 10 bits on GPUs; bfloat16: local gradients in
    bfloat16, the rest in float32; float64: everything."""
    num_strata: Count | None = None
    """Store clients' data and states by device: number of blocks of clients, the same number on
    every device; default: all data on every device. Required for several processes."""
    examples_memory: Gigabytes | None = None
    """Gigabytes of device memory for clients' examples; the others stay in host memory until a
    round needs them; default: all on the device."""
    states: Literal["device", "host"] = "device"
    """Storage of client state between rounds; host requires --examples-memory."""
    accept_changed_code: bool = False
    """Continue a folder although functions of the study module or of the package compute something
    else than those that its rounds were run with."""
    on_divergence: Literal["record", "stop", "raise"] = "record"
    """Reaction to a model that is no longer finite: continue and record it, stop the algorithm
    after all seeds have diverged, or end with an error."""


@contextlib.contextmanager
def arithmetic(options: ExecutionOptions) -> Iterator[None]:
    """Context in which arrays and programs have the precision of the options."""
    products = {"float32": "float32", "tf32": "tensorfloat32"}.get(options.precision)
    with contextlib.ExitStack() as settings:
        if products is not None:
            settings.enter_context(jax.default_matmul_precision(products))
        if options.precision == "float64":
            settings.enter_context(jax.enable_x64(True))
        yield


def strategy_of(options: ExecutionOptions) -> Execution | None:
    """Returns the execution strategy of the clients; None for ``auto``."""
    match options.execution:
        case "vmapped":
            return strategies.vmapped()
        case "chunked":
            return strategies.chunked(options.chunk_size)
        case "sequential":
            return strategies.sequential()
    return None
