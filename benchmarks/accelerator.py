"""Part ``accelerator``: image models under every strategy, lowering and precision.

Rounds of ten clients of W2, W3, a wide LeNet-5, ResNet-18 (group normalisation) and ViT-Tiny on
images of CIFAR's shape, in the device's usual precision (TF32 on GPUs): all strategies over clients
with the default lowering of convolutions, and all lowerings with vmapped clients; then the other
precisions with the fastest of these.  Beside seconds a round:
arithmetic a second, as a share of what one large product reaches in this precision, and of what
the step's products reach as bare batched products of the same shapes (``bare``); and how many times
as fast as ``vmapped/lax`` in the usual precision, plain JAX.

A network's programs are compiled side by side by threads, then timed one after the other in the
same process.  Meant for GPUs and TPUs; on a CPU ResNet-18 takes an hour.
"""

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fs
from benchmarks.candidates import execution_strategy
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.products import bare, products, training_flops
from benchmarks.report import Case
from benchmarks.workloads import WIDE
from fedjax_sim.models.convolution.lowering import implicit
from fedjax_sim.studies.executions import LOWERINGS
from fedjax_sim.timelines import sampling

COHORT, CLIENTS, LR = 10, 20, 0.01
STRATEGIES = ("vmapped", "chunked:5", "sequential")
CONVOLUTIONS = {"lax": lax.conv_general_dilated} | LOWERINGS | {"implicit": implicit}
# Measured in benchmarks/implicit.py; made for CPUs.
ELSEWHERE = {"implicit", "winograd"}
PRECISIONS = {"tf32": "tensorfloat32", "float32": "float32", "bfloat16": None}
SQUARE = {"cpu": 1024}  # side of the large product; elsewhere:
LARGE = 8192


class Network(NamedTuple):
    """A model and what a client does with it in a round."""

    build: Callable[[Any], fs.models.Model]  # of a convolution
    shape: tuple[int, int, int]
    classes: int
    batch: int
    steps: int
    convolutional: bool = True


NETWORKS = {
    "W2": Network(lambda conv: fs.models.femnist_cnn(conv=conv), (28, 28, 1), 62, 20, 5),
    "W3": Network(lambda conv: fs.models.lenet5(conv=conv), (32, 32, 3), 10, 50, 50),
    "LeNet-5": Network(
        lambda conv: fs.models.lenet5(100, *WIDE, conv=conv), (32, 32, 3), 100, 50, 50
    ),
    "ResNet-18": Network(lambda conv: fs.models.resnet18(100, conv=conv), (32, 32, 3), 100, 32, 5),
    "ViT-Tiny": Network(
        lambda _: fs.models.vit_tiny(num_classes=100), (32, 32, 3), 100, 32, 5, False
    ),
}


class Candidate(NamedTuple):
    """One way to execute a round."""

    strategy: str
    lowering: str
    precision: str

    @property
    def name(self) -> str:
        return "/".join(self)


def jobs(options: Options) -> list[Job]:
    """Returns a job per network."""
    return [
        Job(name, "all", "benchmarks.accelerator", {"network": name, "seconds": options.seconds})
        for name in options.chosen(NETWORKS)
    ]


def measure(
    network: str, seconds: float, precision: str | None = None, tiny: bool = False
) -> Measured:
    """Runs in a process of its own; prints what it has after every candidate."""
    chosen = NETWORKS[network]
    chosen = chosen._replace(batch=2, steps=1) if tiny else chosen
    return measured(chosen, seconds, lambda numbers: print(json.dumps(numbers)), precision)


def measured(
    network: Network,
    seconds: float,
    report: Callable[[Measured], None] = lambda numbers: None,
    precision: str | None = None,
) -> Measured:
    """Returns ``CANDIDATE quantity`` -> number; ``report`` gets those so far after each one."""
    on_gpu = jax.default_backend() != "cpu"
    usual, *others = PRECISIONS if on_gpu else ("float32", "bfloat16")
    if precision is not None:
        usual, others = precision, []
    data, key = _data(network), jax.random.key(0)
    model = network.build(lax.conv_general_dilated)
    params = model.init(key)
    step = products(model.apply, params, jnp.zeros((network.batch, *network.shape)))
    flops = training_flops(step) * network.steps * COHORT
    numbers: Measured = {}
    large: dict[str, float] = {}  # GFLOP/s by precision

    def add(candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        found = {}
        for candidate, took in _timed(network, data, params, candidates, seconds):
            found[candidate] = took
            precision = candidate.precision
            bare = f"bare/{precision}"
            if precision not in large:
                large[precision] = _large(precision, seconds)
                once = _bare_seconds(step, precision, seconds) * network.steps
                numbers.update(_row(bare, once, flops, large[precision]))
            numbers.update(_row(candidate.name, took, flops, large[precision]))
            numbers[f"{candidate.name} of_bare"] = numbers[f"{bare} seconds"] / took
            report(numbers)
        return found

    every = [name for name in CONVOLUTIONS if name not in ELSEWHERE]
    default, *lowerings = ("auto", *every) if network.convolutional else ("lax",)
    ways = [(s, default) for s in STRATEGIES] + [("vmapped", name) for name in lowerings]
    found = add([Candidate(*way, usual) for way in dict.fromkeys(ways)])
    best = min(found, key=found.__getitem__)
    add([best._replace(precision=p) for p in others])
    return numbers


def _row(name: str, seconds: float, flops: float, large: float) -> Measured:
    rate = flops / 1e9 / seconds
    row = {"seconds": seconds, "gflop_per_s": rate, "of_large_product": rate / large}
    return {f"{name} {quantity}": value for quantity, value in row.items()}


def _data(network: Network) -> fs.FederatedData:
    rng = np.random.default_rng(0)
    size = network.batch * network.steps
    x = rng.standard_normal((CLIENTS * size, *network.shape), np.float32)
    y = rng.integers(0, network.classes, CLIENTS * size).astype(np.int32)
    return fs.FederatedData(jax.device_put({"x": x, "y": y}), np.arange(CLIENTS + 1) * size)


@contextlib.contextmanager
def _arithmetic(precision: str) -> Iterator[None]:
    """Context with the candidate's arithmetic, which is set per thread."""
    with jax.default_matmul_precision(PRECISIONS[precision] or "default"):
        yield


def _timed(
    network: Network,
    data: fs.FederatedData,
    params: Any,
    candidates: Sequence[Candidate],
    seconds: float,
) -> Iterator[tuple[Candidate, float]]:
    """Yields the candidates that fit the device with their median seconds per round."""

    def program(candidate: Candidate) -> Callable[[], Any]:
        model = network.build(CONVOLUTIONS[candidate.lowering])
        if candidate.precision == "bfloat16":
            model = fs.models.in_precision(model, jnp.bfloat16)
        loss = fs.objectives.cross_entropy(model.apply)
        task = fs.empirical_task(loss, data, fs.epochs(1, network.batch))
        algorithm, execution = fs.fedavg(LR), execution_strategy(candidate.strategy)

        def one_round(task: fs.Task, params: Any, key: jax.Array) -> Any:
            schedule, visits = jax.random.split(key)
            when = sampling.uniform(schedule, 1, CLIENTS, COHORT, network.steps)
            setup = fs.Setup(task, when, params)
            return fs.run(algorithm, setup, visits, execution=execution)[0].server.params

        key = jax.random.key(1)
        with _arithmetic(candidate.precision):
            compiled = jax.jit(one_round).lower(task, params, key).compile()
        return lambda: compiled(task, params, key)

    with ThreadPoolExecutor(min(8, fs.execution.num_cores())) as pool:
        pending = [pool.submit(program, candidate) for candidate in candidates]
    for candidate, future in zip(candidates, pending, strict=True):
        try:
            yield candidate, _median(future.result(), seconds)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise


def _median(call: Callable[[], Any], seconds: float) -> float:
    jax.block_until_ready(call())
    times, start = [], time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _operand_type(precision: str) -> Any:
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32


def _large(precision: str, seconds: float) -> float:
    """GFLOP/s of one large product."""
    size = SQUARE.get(jax.default_backend(), LARGE)
    a = jax.random.normal(jax.random.key(0), (size, size)).astype(_operand_type(precision))
    with _arithmetic(precision):
        product = jax.jit(jnp.dot)
        return 2e-9 * size**3 / _median(lambda: product(a, a), seconds)


def _bare_seconds(step: Sequence[Any], precision: str, seconds: float) -> float:
    """Operations of all clients' products of one step."""
    function, operands = bare(step, COHORT)
    operands = jax.tree.map(lambda x: x.astype(_operand_type(precision)), operands)
    with _arithmetic(precision):
        together = jax.jit(function)
        return _median(lambda: together(operands), seconds)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the networks, each with all its candidates."""
    del machine  # the rates by precision are measured beside the candidates
    found = []
    for name, rows in results.items():
        table: dict[str, dict[str, float]] = {}
        for key, value in rows["all"].items():
            candidate, _, quantity = key.partition(" ")
            if quantity:
                table.setdefault(candidate, {})[quantity] = value
        usual = next(iter(table)).rsplit("/", 1)[-1]
        plain = table.get(f"vmapped/lax/{usual}", {}).get("seconds", math.nan)
        for candidate, quantities in table.items():
            if not candidate.startswith("bare/"):
                quantities["times_plain_vmap"] = plain / quantities["seconds"]
        n = NETWORKS[name]
        title = f"{name}: {COHORT} clients x {n.steps} steps of {n.batch} images"
        found.append(Case(name, title, "a round", table, ours=""))
    return found
