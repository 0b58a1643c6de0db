"""Measurement of the fastest execution of rounds, on this machine and for one model.

:func:`~fedjax_sim.engine.execution.strategies.auto` follows rules that were measured elsewhere.
:func:`measure_executions` runs the candidates: strategies over clients, chunk sizes, one or all
host devices, and the lowerings of convolutions.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_is_setup, check_keys
from fedjax_sim.engine import advance, check_run, devices, first_state, make_mesh, strategies
from fedjax_sim.models import Convolution, auto, blocked, canonical, im2col, winograd
from fedjax_sim.runs import read_json, write_json
from fedjax_sim.types import FedAlgorithm, Params, Setup, Task, Timeline

LOWERINGS: dict[str, Convolution] = {
    "auto": auto,
    "im2col": im2col,
    "blocked": blocked,
    "canonical": canonical,
    "winograd": winograd,
}
_SECONDS = 0.5  # measured per candidate, at least
_HOPELESS = 3.0  # times the best: measured no further


class ExecutionChoice(NamedTuple):
    """Execution of rounds."""

    chunk: int
    num_devices: int = 1
    lowering: str = "auto"

    def execution(self) -> strategies.Execution:
        """Returns the strategy."""
        inner = strategies.chunked(self.chunk)
        if self.num_devices == 1:
            return inner
        available = devices.workers()
        if len(available) < self.num_devices:
            raise ValueError(
                f"num_devices is {self.num_devices}; expected at most {len(available)}, the "
                "devices of this process"
            )
        return strategies.sharded(make_mesh(available[: self.num_devices]), inner)


class Measured(NamedTuple):
    """Measurement of a choice: seconds per round (median), to compile, and bytes on a device."""

    choice: ExecutionChoice
    seconds: float
    compile_seconds: float
    num_bytes: int


class Problem(NamedTuple):
    """An algorithm on a setup, with one key or n keys ``[n]``."""

    algorithm: FedAlgorithm
    setup: Setup
    key: Array


def measure_executions(
    algorithm: FedAlgorithm,
    setup: Setup | Callable[[Convolution], Setup],
    keys: Array,
    *,
    on_measured: Callable[[Measured], None] | None = None,
) -> list[Measured]:
    """Measures executions of an algorithm's rounds; returns the fastest first.

    First chunk sizes on one device and on all devices; then, if the model has convolutions, the
    lowerings with the best chunk size.  Choices that exceed the device's memory are left out.

    Args:
        algorithm: the algorithm to execute.
        setup: a few rounds to execute; or a function that returns them with a given lowering of the
            model's convolutions, which are then measured too.
        keys: one key, or n keys ``[n]``.
        on_measured: called after every measurement.

    Raises:
        ValueError: as :func:`~fedjax_sim.simulate`.

    Example:
        >>> import jax.numpy as jnp, fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((8, 2), np.float32)}, np.arange(0, 9, 2))
        >>> loss = lambda w, batch, key: (batch["x"] @ w - 1) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=2))
        >>> timeline = fs.timelines.full(2, 4, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jnp.zeros(2))
        >>> results = measure_executions(fs.fedavg(0.1), setup, jax.random.key(0))
        >>> results[0].seconds <= results[-1].seconds
        True
        >>> {measured.choice.chunk for measured in results} <= {1, 2, 4}
        True
    """
    check_keys(keys)
    make = setup if callable(setup) else None
    setup = setup(auto) if callable(setup) else setup
    check_is_setup(setup)
    # A few rounds, without an evaluation that they need not reach.
    problem = Problem(algorithm, dataclasses.replace(setup, eval_fn=None), keys)
    check_run(algorithm, problem.setup, keys.shape[0] if keys.ndim else None)
    results: list[Measured] = []

    def add(problem: Problem, choices: Iterator[ExecutionChoice]) -> None:
        for choice in choices:
            best = min((m.seconds for m in results), default=float("inf"))
            measured = _measure(problem, choice, best)
            if measured is not None:
                results.append(measured)
                if on_measured is not None:
                    on_measured(measured)

    add(problem, _strategies(problem.setup.timeline.cohort_size, len(devices.workers())))
    kernels = any(np.ndim(x) - keys.ndim >= 4 for x in jax.tree.leaves(problem.setup.params))
    if make is not None and kernels:
        for name in list(LOWERINGS)[1:]:
            best = min(results, key=lambda m: m.seconds).choice
            lowered = problem._replace(setup=make(LOWERINGS[name]))
            add(lowered, iter([best._replace(lowering=name)]))
    return sorted(results, key=lambda m: m.seconds)


def _strategies(cohort_size: int, num_devices: int) -> Iterator[ExecutionChoice]:
    for count in sorted({1, num_devices}):
        most = -(-cohort_size // count)
        powers = [4**i for i in range(most.bit_length()) if 4**i < most]
        for chunk in [*powers, most]:
            yield ExecutionChoice(chunk, count)


def _measure(problem: Problem, choice: ExecutionChoice, best: float) -> Measured | None:
    """Measures one choice; returns None if it does not fit the device."""
    algorithm, setup, key = problem
    task, timeline, params = setup.task, setup.timeline, setup.params
    batched = key.ndim == 1
    in_timeline = 0 if timeline.clients.ndim == 3 else None

    def begin(task: Task, timeline: Timeline, params: Params):
        return first_state(algorithm, Setup(task, timeline, params))

    def rounds(task: Task, timeline: Timeline, state, key: Array):
        part = Setup(task, timeline, None, eval_every=timeline.num_rounds)
        return advance(algorithm, part, state, key, execution=choice.execution())[0]

    if batched:
        begin = jax.vmap(begin, (None, in_timeline, 0))
        rounds = jax.vmap(rounds, (None, in_timeline, 0, 0))
    state = jax.jit(begin)(task, timeline, params)
    began = time.perf_counter()
    compiled = jax.jit(rounds, donate_argnums=2).lower(task, timeline, state, key).compile()
    compile_seconds = time.perf_counter() - began
    num_bytes = devices.program_bytes(compiled)
    if num_bytes > devices.memory_limit(devices.workers()[0]):
        return None
    task, timeline, state, key = jax.device_put(
        (task, timeline, state, key), compiled.input_shardings[0]
    )
    times: list[float] = []
    while sum(times) < _SECONDS or len(times) < 3:
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(task, timeline, state, key))
        times.append(time.perf_counter() - began)
        if len(times) > 1 and min(times) / timeline.num_rounds > _HOPELESS * best:
            break
    seconds = statistics.median(times) / timeline.num_rounds
    return Measured(choice, seconds, compile_seconds, num_bytes)


def describe(problem: Problem, batch_size: int) -> dict[str, Any]:
    """Returns the machine and the shapes of the problem, on which a measurement depends."""
    leading = problem.key.ndim
    shapes = jax.tree.map(lambda x: list(np.shape(x))[leading:], problem.setup.params)
    device = devices.workers()[0]
    one = jax.eval_shape(
        lambda p: jax.tree.map(lambda x: x[0], p) if leading else p, problem.setup.params
    )
    client_state = jax.eval_shape(problem.algorithm.init_client, one)
    return {
        "device": f"{len(devices.workers())} x {device.device_kind}",
        "cores": devices.num_cores() if device.platform == "cpu" else None,
        "jax": jax.__version__,
        "parameters": jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, list)),
        "batch_size": batch_size,
        "cohort_size": problem.setup.timeline.cohort_size,
        "replicas": problem.key.shape[0] if leading else 1,
        "client_state": bool(jax.tree.leaves(client_state)),
    }


def store(path: pathlib.Path, description: Mapping[str, Any], results: Sequence[Measured]) -> None:
    """Adds the fastest choice for a description to a file."""
    entries = [e for e in _entries(path) if e["for"] != json.loads(json.dumps(description))]
    best = results[0]
    entries.append(
        {"for": dict(description), "choice": best.choice._asdict(), "seconds": best.seconds}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path.resolve(), {"choices": entries}, indent=1)  # a link of the user's stays


def stored(path: pathlib.Path, description: Mapping[str, Any]) -> ExecutionChoice | None:
    """Returns the stored choice for a description, or None."""
    wanted = json.loads(json.dumps(description))
    found = (entry["choice"] for entry in _entries(path) if entry["for"] == wanted)
    return next((ExecutionChoice(**choice) for choice in found), None)


def _entries(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the content of a file of stored choices; an empty list without a file."""
    advice = "delete it and run fedjax-sim measure again"
    try:
        return read_json(path, advice)["choices"] if path.exists() else []
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); {advice}") from error
