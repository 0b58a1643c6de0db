"""Convolutions of a cohort as implicit products, beside the present choice, layer by layer.

    python -m benchmarks.jobs benchmarks.implicit '{"seconds": 80}'
    python -m benchmarks.jobs benchmarks.implicit '{"network": "ResNet-18"}'

Ten clients with 50 images each.  For every distinct layer of ResNet-18 and of the wide LeNet-5 but
the first ones (three input channels), and for the convolution and its two gradients: microseconds
of the kernels of ``fedjax_sim.models.convolution.implicit`` with a few tiles, of ``auto`` and, at
the end, of grouped convolutions (``lax``), in bfloat16 and TF32.  Beside them the error of each
relative to ``jax.lax`` in float32 on the same device.  Programs of a group of layers are compiled
side by side and then timed one after the other.  The second command measures whole rounds.

On a CPU ``{"tiny": true}`` runs the same with the interpreter of the kernels.
"""

import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import Array, lax

from benchmarks import accelerator
from benchmarks.jobs import Measured
from fedjax_sim.models.convolution import implicit
from fedjax_sim.models.convolution.geometry import Geometry, Operation
from fedjax_sim.models.convolution.implicit import Tiles
from fedjax_sim.models.convolution.lowering import auto

CLIENTS, BATCH = 10, 50
THREADS = 16
COMPILING = 0.7  # of the time that is left for a group, at most
TIMED = 0.01  # seconds of calls, three times per program
LAYOUT = ("NHWC", "HWIO", "NHWC")
DTYPES = {"bfloat16": jnp.bfloat16, "tf32": jnp.float32}
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
# Of the norm of the result: operands in bfloat16 have errors of 2^-9, in TF32 of 2^-11.
ALLOWED = {"bfloat16": 1e-2, "tf32": 2e-3}


class Layer(NamedTuple):
    """A convolution of square images; ``copies`` of them are in ResNet-18."""

    channels: int
    outputs: int
    size: int
    side: int = 3
    stride: int = 1
    pad: int = 1
    copies: int = 1

    @property
    def name(self) -> str:
        kernel = f"{self.side}x{self.side}/{self.stride}"
        return f"{self.channels}-{self.outputs} {kernel} {self.size}x{self.size}"

    @property
    def geometry(self) -> Geometry:
        size, side, stride, pad = self.size, self.side, self.stride, self.pad
        return Geometry(
            (size, size), (side, side), (stride, stride), ((pad, pad), (pad, pad)), (1, 1), None,
            lambda setting: "gemm",
        )  # fmt: skip

    def flops(self, clients: int, batch: int) -> float:
        """Operations of one product of all clients; multiply-add = 2."""
        pixels = self.geometry.output_size[0] ** 2 * batch * clients
        return 2.0 * pixels * self.side**2 * self.channels * self.outputs


# The most important first: when the time is over, the others have no numbers.
GROUPS = (
    (
        Layer(64, 64, 32, copies=4),
        Layer(128, 128, 16, copies=3),
        Layer(256, 256, 8, copies=3),
        Layer(512, 512, 4, copies=3),
        Layer(64, 64, 14, 5, pad=0, copies=0),  # LeNet-5
    ),
    (Layer(64, 128, 32, stride=2), Layer(128, 256, 16, stride=2), Layer(256, 512, 8, stride=2)),
    (
        Layer(64, 128, 32, 1, 2, 0),
        Layer(128, 256, 16, 1, 2, 0),
        Layer(256, 512, 8, 1, 2, 0),
    ),
)
TINY = (
    (Layer(16, 16, 4, copies=4), Layer(16, 32, 5, 5, pad=0, copies=0)),
    (Layer(16, 32, 4, stride=2), Layer(16, 32, 4, 1, 2, 0)),
)


class Run(NamedTuple):
    """Sizes of a measurement, and how its kernels run."""

    clients: int = CLIENTS
    batch: int = BATCH
    interpret: bool = False


class Program(NamedTuple):
    """A candidate for an operation of a layer."""

    layer: Layer
    operation: Operation
    precision: str
    candidate: str
    tiles: Tiles | None = None

    @property
    def name(self) -> str:
        return f"{self.layer.name} {self.operation} {self.precision} {self.candidate}"


def tiles(layer: Layer, operation: Operation, precision: str, run: Run) -> list[Tiles]:
    """Returns the tiles to measure."""
    step = 64 if precision == "bfloat16" else 32
    if operation == "kernel_grad":
        pixels = layer.geometry.output_size[0] ** 2 * run.batch
        rows, columns = min(layer.channels, 128), min(layer.outputs, 128)
        group = layer.side if layer.side > 1 else 1
        shapes = [
            Tiles(rows, columns, step, warps=8 if rows * columns > 2**13 else 4),
            Tiles(min(rows, 64), columns, step, warps=8 if columns > 64 else 4, taps=group),
            Tiles(min(rows, 64), min(columns, 64), step, warps=4),
        ]
        if layer.side > 3:
            shapes[1] = shapes[1]._replace(warps=8)
        found = [_in_parts(t, layer, pixels, run.clients) for t in shapes]
    else:
        width, inner = layer.outputs, min(layer.channels, step)
        if operation == "input_grad":
            width, inner = layer.channels, min(layer.outputs, step)
        # Products in TF32 wait for each other, so more programs must fit a multiprocessor.
        few = 4 if precision == "bfloat16" else 2
        if width < 128:
            found = [
                Tiles(128, width, inner),
                Tiles(128, width, inner, stages=few),
                Tiles(256, width, inner, warps=8, stages=min(few, 3)),
            ]
        else:
            wide = Tiles(128, 256, inner, warps=8) if width > 128 else Tiles(256, 128, inner, 8)
            found = [
                Tiles(128, 128, inner, warps=8),
                Tiles(64, 128, inner, stages=few),
                wide if few > 2 else Tiles(128, 128, inner, warps=8, stages=2),
            ]
            found += [wide] if few == 2 else []
    return list(dict.fromkeys(found))


def _in_parts(t: Tiles, layer: Layer, pixels: int, clients: int) -> Tiles:
    """Divides the sum over pixels until the programs fill the device."""
    programs = clients * layer.side**2 // t.taps * (layer.channels // t.rows)
    programs *= layer.outputs // t.columns
    return t._replace(parts=max(1, min(-(-600 // programs), pixels // (8 * t.inner))))


def programs(layers: Sequence[Layer], run: Run) -> list[Program]:
    """Returns the kernels with each of their tiles, and ``auto``."""
    found = []
    for precision in DTYPES:
        for layer in layers:
            for operation in OPERATIONS:
                made = functools.partial(Program, layer, operation, precision)
                found += [
                    made("x".join(map(str, t)), t) for t in tiles(layer, operation, precision, run)
                ]
                found.append(made("auto"))
    return found


def function(program: Program, run: Run) -> Callable[[Array, Array], Array]:
    """Returns a program as a function of two arrays with a leading axis of clients."""
    g = program.layer.geometry
    if program.tiles is not None:
        by_kernel = {
            "conv": implicit.conv_clients,
            "input_grad": implicit.input_grad_clients,
            "kernel_grad": implicit.kernel_grad_clients,
        }[program.operation]
        return lambda a, b: by_kernel(a, b, g, program.tiles, run.interpret)
    lowering = auto if program.candidate == "auto" else lax.conv_general_dilated
    return jax.vmap(_operation(program, lowering, run))


def _operation(program: Program, lowering: Any, run: Run) -> Callable[[Array, Array], Array]:
    """One client's operation."""
    layer = program.layer
    g, dtype = layer.geometry, DTYPES[program.precision]
    x = jax.ShapeDtypeStruct((run.batch, *g.input_size, layer.channels), dtype)
    w = jax.ShapeDtypeStruct((*g.kernel_size, layer.channels, layer.outputs), dtype)

    def conv(x: Array, w: Array) -> Array:
        return lowering(x, w, g.strides, g.padding, dimension_numbers=LAYOUT)

    return {
        "conv": conv,
        "input_grad": lambda z, w: jax.linear_transpose(lambda x: conv(x, w), x)(z)[0],
        "kernel_grad": lambda x, z: jax.linear_transpose(lambda w: conv(x, w), w)(z)[0],
    }[program.operation]


def operands(layer: Layer, dtype: Any, run: Run, key: Array) -> dict[str, Array]:
    """Returns random images, kernels and gradients of outputs."""
    g, lead = layer.geometry, (run.clients, run.batch)
    shapes = {
        "x": (*lead, *g.input_size, layer.channels),
        "w": (run.clients, *g.kernel_size, layer.channels, layer.outputs),
        "z": (*lead, *g.output_size, layer.outputs),
    }
    return {
        name: jax.random.normal(one, shape).astype(dtype)
        for one, (name, shape) in zip(jax.random.split(key, 3), shapes.items(), strict=True)
    }


# The arguments and the shape of the result of each operation, as names of operands.
ARGUMENTS = {"conv": "xw", "input_grad": "zw", "kernel_grad": "xz"}
RESULT = {"conv": "z", "input_grad": "x", "kernel_grad": "w"}


class Expected(NamedTuple):
    """Operands of a layer, and the results of its operations in float32."""

    layer: Layer
    precision: str

    @property
    def name(self) -> str:
        return f"{self.layer.name} {self.precision} by jax.lax"

    def shapes(self, run: Run) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of the operands."""
        dtype, key = DTYPES[self.precision], jax.random.key(0)
        return jax.eval_shape(functools.partial(operands, self.layer, dtype, run), key)


def expected(
    case: Expected, run: Run, key: Array
) -> tuple[dict[str, Array], dict[Operation, Array]]:
    """Returns operands, and ``jax.lax``'s results in float32, computed client after client."""
    g = case.layer.geometry
    arrays = operands(case.layer, DTYPES[case.precision], run, key)

    def conv(x: Array, w: Array) -> Array:
        return lax.conv_general_dilated(
            x, w, g.strides, g.padding, dimension_numbers=LAYOUT, precision=lax.Precision.HIGHEST
        )

    def one_client(arrays: dict[str, Array]) -> dict[Operation, Array]:
        x, w, z = (arrays[name].astype(jnp.float32) for name in "xwz")
        out, transposed = jax.vjp(conv, x, w)
        return dict(zip(OPERATIONS, (out, *transposed(z)), strict=True))

    return arrays, lax.map(one_client, arrays)


def relative_error(actual: Array, expected: Array) -> Array:
    """Norm of the error over the norm of the expected array; not a number stays one."""
    error = actual.astype(jnp.float32) - expected
    return jnp.sqrt(jnp.sum(error**2) / jnp.sum(expected**2))


class Error(NamedTuple):
    """The error of a result."""

    case: Expected
    operation: Operation


def compiled(key: Any, run: Run) -> Callable[..., Any]:
    """Compiles a program, the expected results of a layer or an error, in any thread."""
    with jax.default_matmul_precision("default"):  # set per thread
        if isinstance(key, Expected):
            lowered = jax.jit(functools.partial(expected, key, run)).lower(jax.random.key(0))
            try:
                # Only the results count, so any algorithm does.
                return lowered.compile(compiler_options={"xla_gpu_autotune_level": "0"})
            except jax.errors.JaxRuntimeError:
                return lowered.compile()
        if isinstance(key, Error):
            shape = key.case.shapes(run)[RESULT[key.operation]]
            wide = jax.ShapeDtypeStruct(shape.shape, jnp.float32)
            return jax.jit(relative_error).lower(shape, wide).compile()
        shapes = Expected(key.layer, key.precision).shapes(run)
        arguments = [shapes[name] for name in ARGUMENTS[key.operation]]
        return jax.jit(function(key, run)).lower(*arguments).compile()


def microseconds(call: Callable[[], Any]) -> float:
    """Returns the time of a call among many that are queued on the device, the least of three."""
    jax.block_until_ready(call())
    began = time.perf_counter()
    jax.block_until_ready(call())
    calls = max(1, min(100, int(TIMED / (time.perf_counter() - began))))
    times, out = [], None
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(calls):
            out = call()  # the one before is freed
        jax.block_until_ready(out)
        times.append((time.perf_counter() - began) / calls)
    return round(1e6 * min(times), 1)


def measure(seconds: float = 80.0, tiny: bool = False, network: str | None = None) -> Measured:
    """Returns ``LAYER OPERATION PRECISION CANDIDATE quantity`` -> number; prints all after each.

    With a ``network`` its whole rounds are measured instead.
    """
    if jax.default_backend() != "gpu" and not tiny:
        raise ValueError(f"the device is a {jax.default_backend()}; expected a GPU, or tiny=True")
    if network is not None:
        return rounds(network, tiny)
    run = Run(2, 1, interpret=True) if tiny else Run()
    deadline = time.perf_counter() + seconds
    numbers: Measured = {}
    groups = TINY if tiny else GROUPS
    lists = [programs(layers, run) for layers in groups]
    lists.append([p._replace(candidate="lax") for p in lists[0] if p.candidate == "auto"])
    with _Threads(min(THREADS, os.cpu_count() or 1)) as pool:
        for group in lists:
            _measure_group(group, run, pool, deadline, numbers)
    layers = [layer for group in groups for layer in group]
    print("\n".join(table(numbers, layers, run)), file=sys.stderr, flush=True)
    return numbers | summary(numbers, layers)


def _measure_group(
    group: Sequence[Program], run: Run, pool: ThreadPoolExecutor, deadline: float, numbers: Measured
) -> None:
    """Compiles a group's programs, then runs them; adds to ``numbers`` and prints them."""
    cases = dict.fromkeys(Expected(p.layer, p.precision) for p in group)
    errors = dict.fromkeys(Error(Expected(p.layer, p.precision), p.operation) for p in group)
    futures = {key: pool.submit(compiled, key, run) for key in (*cases, *errors, *group)}
    # The rest of the time is for those that are compiled by then.
    began = time.perf_counter()
    compile_by = began + COMPILING * (deadline - began)
    ready = {key: _result(key, future, compile_by) for key, future in futures.items()}
    for case in cases:
        if ready[case] is None or time.perf_counter() > deadline:
            continue
        arrays, results = ready[case](jax.random.key(0))
        for program in group:
            error = ready[Error(case, program.operation)]
            if (program.layer, program.precision) != case:
                continue
            if ready[program] is None or error is None:
                continue
            if time.perf_counter() < deadline:
                arguments = (arrays[name] for name in ARGUMENTS[program.operation])
                call = functools.partial(ready[program], *arguments)
                wrong_by = functools.partial(_wrong_by, error, results[program.operation])
                _measure_one(program, call, wrong_by, numbers)


def _wrong_by(error: Callable[..., Array], expected: Array, actual: Array) -> Array:
    return error(actual, expected)


def _measure_one(
    program: Program,
    call: Callable[[], Array],
    wrong_by: Callable[[Array], Array],
    numbers: Measured,
) -> None:
    try:
        error = float(wrong_by(call()))
        numbers[f"{program.name} error"] = float(f"{error:.2g}")
        if error < ALLOWED[program.precision]:
            numbers[f"{program.name} us"] = microseconds(call)
        else:
            print(f"{program.name}: wrong by {error:.2g}", file=sys.stderr, flush=True)
    except jax.errors.JaxRuntimeError as error:
        print(f"{program.name}: {str(error)[:500]}", file=sys.stderr, flush=True)
    print(json.dumps(numbers), flush=True)


def _result(key: Any, future: Future, deadline: float) -> Any:
    """Returns what was compiled, or None, and prints why."""
    try:
        return future.result(max(0.0, deadline - time.perf_counter()))
    except Exception as error:  # of any compiler: the other candidates count
        future.cancel()
        text = f"{type(error).__name__} {error}".strip()[:500]
        print(f"{getattr(key, 'name', key)}: not compiled: {text}", file=sys.stderr, flush=True)
        return None


class _Threads(ThreadPoolExecutor):
    """Threads that need not end: a compiler cannot be interrupted."""

    def __exit__(self, *exception: Any) -> None:
        self.shutdown(wait=False, cancel_futures=True)


def table(numbers: Measured, layers: Sequence[Layer], run: Run) -> list[str]:
    """Returns a line per operation: the fastest kernel, its rate, and the other candidates."""
    lines = []
    for precision, operation, layer, times in _times(numbers, layers):
        kernels = {name: us for name, us in times.items() if name not in ("auto", "lax")}
        others = [f"{name} {times[name]:.0f}" for name in ("auto", "lax") if name in times]
        best = min(kernels, key=kernels.__getitem__, default=None)
        if best is not None:
            rate = layer.flops(run.clients, run.batch) / 1e6 / kernels[best]
            others = [f"{kernels[best]:.0f} us by {best}, {rate:.0f} TFLOP/s", *others]
        if times:
            lines.append(f"{layer.name} {operation} {precision}: {', '.join(others)}")
    return lines + [f"{key}: {value}" for key, value in summary(numbers, layers).items()]


def _times(
    numbers: Measured, layers: Sequence[Layer]
) -> Iterator[tuple[str, Operation, Layer, Measured]]:
    """Yields the microseconds of the candidates of every operation."""
    for precision, operation, layer in itertools.product(DTYPES, OPERATIONS, layers):
        start = f"{layer.name} {operation} {precision} "
        yield (
            precision,
            operation,
            layer,
            {
                key.removeprefix(start).removesuffix(" us"): value
                for key, value in numbers.items()
                if key.startswith(start) and key.endswith(" us")
            },
        )


def summary(numbers: Measured, layers: Sequence[Layer]) -> Measured:
    """Returns milliseconds of those layers of ResNet-18 that have all numbers, for each operation.

    ``mixed`` takes the faster one of ``auto`` and the kernels in every layer.
    """
    totals: Measured = {}
    for precision, operation, layer, times in _times(numbers, layers):
        kernels = [us for name, us in times.items() if name not in ("auto", "lax")]
        if layer.copies and kernels and "auto" in times:
            best = {"auto": times["auto"], "kernels": min(kernels)}
            for name, us in (best | {"mixed": min(best.values())}).items():
                key = f"ResNet-18 {operation} {precision} {name} ms"
                totals[key] = round(totals.get(key, 0.0) + layer.copies * us / 1e3, 4)
    return totals


def rounds(name: str, tiny: bool = False) -> Measured:
    """Returns seconds of whole rounds of a network, and prints them after each."""
    network = accelerator.NETWORKS[name]
    network = network._replace(batch=2, steps=1) if tiny else network
    data = accelerator._data(network)
    params = network.build(auto).init(jax.random.key(0))
    precisions = ("float32",) if tiny else ("tf32", "bfloat16")
    candidates = [
        accelerator.Candidate("vmapped", lowering, precision)
        for precision in precisions
        for lowering in ("auto", "implicit")
    ]
    numbers: Measured = {}
    for candidate, took in accelerator._timed(network, data, params, candidates, 0.3):
        numbers[f"{name} {candidate.name} seconds"] = took
        print(json.dumps(numbers), flush=True)
    return numbers
