"""Methods against one simulated clock: what the FAVANO experiments share.

From "FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and App. C.
A seed decides which clients are slow, how long their steps take, whom the server contacts, the
split, the initial model and the minibatches.  All methods of a seed have the first five in common.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.sharding import AxisType, Mesh, PartitionSpec

import fedjax_sim as fs
from fedjax_sim import cohort, devices
from fedjax_sim.asynchrony import (
    InFlight,
    arrivals,
    arrivals_in_flight,
    bits_moved,
    contacts,
    contacts_in_flight,
    counts,
    exponential,
    geometric,
    holdings,
    literal,
    planned,
    renewal,
    stacked,
    synchronous,
    two_speeds,
)
from fedjax_sim.compression import Codec, compressed, identity, lattice
from fedjax_sim.data import partition
from fedjax_sim.data.batches import Batches
from fedjax_sim.diagnostics.in_flight import advanced, held_models, variance_probe
from fedjax_sim.engine import EvalFn, RunState
from fedjax_sim.objectives import Objective
from fedjax_sim.reweighting import StalenessWeight, expected_steps, realised_steps
from fedjax_sim.typing import Params, PyTree

Law = Literal["renewal", "strict", "pending", "literal"]
Variance = Literal["none", "lazy", "exact"]
Split = Literal["iid", "shards", "pairs"]
LAWS: tuple[Law, ...] = ("renewal", "strict", "pending", "literal")


@dataclasses.dataclass(frozen=True)
class Clock:
    """Appendix C.2: who is slow, how long a step takes, and when the server acts."""

    slow_fraction: float = 1 / 3
    horizon: float = 5000.0  # time units
    num_clients: int = 100  # n
    cohort_size: int = 20  # s
    max_steps: int = 20  # K
    buffer: int = 10  # Z
    fast: float = 1 / 2  # chance that a step ends within a time unit
    slow: float = 1 / 16
    waiting: float = 4.0
    interaction: float = 3.0
    law: Law = "renewal"  # of the steps between two contacts

    @property
    def interval(self) -> float:
        return self.waiting + self.interaction


class Problem(NamedTuple):
    """What is learnt."""

    examples: PyTree  # [N, ...]
    assignment: Callable[[int], list[np.ndarray]]  # seed -> rows of each client, equally many
    objective: Objective
    batches: Batches
    init: Callable[[Array], Params]
    evaluate: EvalFn
    lr: float


def assignment(
    labels: np.ndarray, split: Split, num_clients: int
) -> Callable[[int], list[np.ndarray]]:
    """Dealt at random, or two classes to every client; all clients equally many examples."""

    def of_seed(seed: int) -> list[np.ndarray]:
        if split == "iid":
            parts = partition.iid(len(labels), num_clients, seed)
            return [rows[: len(labels) // num_clients] for rows in parts]
        parts = partition.classes_per_client(labels, num_clients, 2, seed, method=split)
        if split == "pairs":
            return parts
        smallest = min(map(len, parts))  # shards of different classes differ a little
        rng = np.random.default_rng(seed)
        return [rng.permutation(rows)[:smallest] for rows in parts]

    return of_seed


class Method(NamedTuple):
    """An algorithm and the schedule it runs on."""

    label: str
    schedule: Literal["rounds", "contacts", "mixing contacts", "buffer", "every report"]
    algorithm: Callable[[float, Array], fs.FedAlgorithm]  # (lr, constants of the clients)
    constants: Callable[[Clock, np.ndarray], np.ndarray] = lambda clock, success: np.zeros(
        len(success)
    )
    lr_factor: float = 1.0  # of the local rate
    num_steps: int | None = None  # of a report; None: the clock's cap
    codecs: tuple[Codec, Codec] = (identity(), identity())  # of messages up and down


def fedavg() -> Method:
    return Method("FedAvg", "rounds", lambda lr, _: fs.fedavg(lr))


def quafl(*, rate_factor: bool = False) -> Method:
    label = "QuAFL" + (", rate (s + 1) / s" if rate_factor else "")
    return Method(label, "mixing contacts", lambda lr, _: fs.quafl(lr, rate_factor=rate_factor))


def fedbuff(server_lr: float, *, scaled: bool = True, buffer: int = 10, n: int = 100) -> Method:
    """``scaled``: the local rate times Z / n, as QuAFL's program has it."""
    label = f"FedBuff, server rate {server_lr:g}" + ("" if scaled else ", lr unscaled")
    factor = buffer / n if scaled else 1.0
    return Method(label, "buffer", lambda lr, _: fs.fedbuff(lr, server_lr), lr_factor=factor)


def favano(version: Literal["stochastic", "deterministic"] = "stochastic") -> Method:
    if version == "stochastic":
        return Method(
            "FAVANO", "contacts", lambda lr, p: fs.favano(lr, realised_steps(p)),
            lambda clock, success: capped(clock, success).p_active,
        )  # fmt: skip
    return Method(
        "FAVANO, deterministic alpha", "contacts",
        lambda lr, mean: fs.favano(lr, expected_steps(mean)),
        lambda clock, success: capped(clock, success).mean,
    )  # fmt: skip


def quafl_coded(bits: int, cell: float) -> Method:
    """QuAFL on its program's lattice in both directions."""
    codec = lattice(bits, cell)
    return quafl()._replace(
        label=f"QuAFL, lattice of {bits} bits, cell {cell:g}",
        algorithm=lambda lr, _: fs.quafl(lr, codec.through, codec.through),
        codecs=(codec, codec),
    )


def coded(method: Method, name: str, up: Codec, down: Codec) -> Method:
    """A method whose uploads are models, with its messages through codecs."""
    return method._replace(
        label=f"{method.label}, {name}",
        algorithm=lambda lr, constants: compressed(method.algorithm(lr, constants), up, down),
        codecs=(up, down),
    )


def fedasync(name: str, weight: StalenessWeight) -> Method:
    """Every report is mixed in with 0.6 times a weight by its staleness."""
    return Method(f"FedAsync, {name}", "every report", lambda lr, _: fs.fedasync(lr, 0.6, weight))


def async_sgd(lr_factor: float, *, adaptive: bool) -> Method:
    """One step a report; adaptive: the rate over the staleness, beyond the number of clients."""
    label = f"AsyncSGD, lr x {lr_factor:g}" + (", delay-adaptive" if adaptive else "")

    def algorithm(lr: float, constants: Array) -> fs.FedAlgorithm:
        n = constants.shape[0]
        return fs.async_sgd(lr, patience=n, bound=lr * n) if adaptive else fs.async_sgd(lr)

    return Method(label, "every report", algorithm, lr_factor=lr_factor, num_steps=1)


def capped(clock: Clock, success: np.ndarray) -> counts.CappedSteps:
    """The law of the steps between two contacts, one a client."""
    contact = clock.cohort_size / clock.num_clients
    if clock.law == "literal":
        return counts.geometric(success, clock.max_steps)
    if clock.law == "pending":  # no closed form: a long schedule, by speed
        return _simulated(clock, success)
    strict = clock.law == "strict"
    return counts.renewal(success, clock.max_steps, int(clock.interval), contact, strict=strict)


def _simulated(clock: Clock, success: np.ndarray) -> counts.CappedSteps:
    long = dataclasses.replace(clock, horizon=20_000 * clock.interval)
    timeline = _contacts(long, jax.random.key(17), success)
    first = np.asarray(timeline.version) == 0  # since the start, not since a contact
    clients, steps = np.asarray(timeline.clients)[~first], np.asarray(timeline.num_steps)[~first]
    laws = {
        p: counts.empirical(steps[success[clients] == p], clock.max_steps) for p in set(success)
    }
    return counts.CappedSteps(*(np.array(x) for x in zip(*(laws[p] for p in success), strict=True)))


def _steps(clock: Clock, success: np.ndarray):
    if clock.law == "literal":
        return literal(geometric(success))
    if clock.law == "pending":
        return renewal(exponential(1 / success), strict=True, pending=True)
    return renewal(geometric(success), strict=clock.law == "strict")


def _contacts(clock: Clock, key: Array, success: np.ndarray, **options: Any) -> fs.Timeline:
    return contacts(
        key,
        _steps(clock, success),
        horizon=clock.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        max_steps=clock.max_steps,
        interval=clock.interval,
        **options,
    )


def timeline(method: Method, clock: Clock, key: Array, success: np.ndarray) -> fs.Timeline:
    """The method's schedule."""
    shared = {"horizon": clock.horizon, "num_clients": clock.num_clients}
    if method.schedule == "rounds":
        return synchronous(
            key, geometric(success), cohort_size=clock.cohort_size, num_steps=clock.max_steps,
            interaction=clock.interaction, **shared,
        )  # fmt: skip
    if method.schedule == "buffer":
        return arrivals(
            key, geometric(success), num_steps=clock.max_steps, buffer=clock.buffer,
            interaction=clock.interaction, **shared,
        )  # fmt: skip
    if method.schedule == "every report":
        num_steps = method.num_steps or clock.max_steps
        return arrivals(key, geometric(success), num_steps=num_steps, **shared)
    receives = "current" if method.schedule == "mixing contacts" else "new"
    return _contacts(clock, key, success, receives=receives)


def in_flight(
    method: Method, clock: Clock, key: Array, success: np.ndarray, every: int
) -> InFlight:
    """What the clients are at, after every ``every``-th update of the same schedule."""
    shared = {"every": every, "horizon": clock.horizon, "num_clients": clock.num_clients}
    if method.schedule == "buffer":
        return arrivals_in_flight(
            key, geometric(success), num_steps=clock.max_steps, buffer=clock.buffer,
            interaction=clock.interaction, **shared,
        )  # fmt: skip
    return contacts_in_flight(
        key, _steps(clock, success), cohort_size=clock.cohort_size, max_steps=clock.max_steps,
        interval=clock.interval, **shared,
    )  # fmt: skip


class Seed(NamedTuple):
    """What differs between seeds."""

    timeline: fs.Timeline
    flight: InFlight
    order: np.ndarray  # [N'] rows, client after client
    constants: np.ndarray  # [M]
    params: Params
    key: Array


def run(
    problem: Problem,
    clock: Clock,
    method: Method,
    seeds: Sequence[int],
    *,
    eval_time: float,
    variance: Variance,
    work: pathlib.Path,
    facts: dict[str, Any],
) -> pd.DataFrame:
    """The method's histories: seed, round, time, local_steps, reports, metrics.

    Finished seeds are read from ``work``; ``facts`` is what they depend on beside clock and method.
    """
    identity = {"clock": dataclasses.asdict(clock), "method": method.label, "variance": variance}
    identity |= {"eval_time": eval_time, "lr": problem.lr, **facts}
    text = json.dumps(identity, sort_keys=True)
    folder = work / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(text + "\n")
    missing = [seed for seed in seeds if not _finished(folder / f"{seed}.csv")]
    if missing:
        _train(problem, clock, method, missing, eval_time, variance, folder)
    parts = [pd.read_csv(folder / f"{seed}.csv").assign(seed=seed) for seed in seeds]
    return pd.concat(parts, ignore_index=True).assign(algorithm=method.label)


def _finished(path: pathlib.Path) -> bool:
    """A file that was damaged, or copied in part, does not count."""
    text = path.read_bytes() if path.exists() else b""
    return text.startswith(b"round,") and text.endswith(b"\n") and text.count(b"\n") > 1


def _train(problem, clock, method, seeds, eval_time, variance, folder) -> None:
    every, batch, offsets = _prepared(problem, clock, method, seeds, eval_time, variance)
    own = method.schedule == "mixing contacts"
    lr = problem.lr * method.lr_factor
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    up, down = (codec.bits(shapes) for codec in method.codecs)
    workers = devices.workers()[: len(seeds)]
    mesh = Mesh(np.array(workers), ("runs",), axis_types=(AxisType.Auto,))
    runs, common = PartitionSpec("runs"), PartitionSpec()

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(runs, common, common), out_specs=runs, check_vma=False
    )
    def program(batch: Seed, examples: PyTree, evaluate: EvalFn) -> tuple:
        seed: Seed = jax.tree.map(lambda x: x[0], batch)
        data = fs.FederatedData(jax.tree.map(lambda x: x[seed.order], examples), offsets)
        task = fs.empirical_task(problem.objective, data, problem.batches)

        def models(state: RunState, moment: Array) -> Params:
            version = jnp.asarray(seed.flight.version)[moment]
            start = state.clients if own else held_models(state, seed.timeline, version)
            if variance == "lazy":
                return start
            return advanced(
                start, task, seed.key, lr=lr, num_steps=jnp.asarray(seed.flight.num_steps)[moment],
                first_step=jnp.asarray(seed.flight.first_step)[moment], max_steps=clock.max_steps,
            )  # fmt: skip

        measured = variance != "none" and method.schedule != "rounds"
        probe = {"variance": variance_probe(models, seed.flight)} if measured else {}
        state, history = fs.run(
            method.algorithm(lr, jnp.asarray(seed.constants)), task, seed.timeline, seed.params,
            seed.key, cohort=cohort.sequential(), eval_fn=evaluate, eval_every=every,
            probes=fs.Probes(run=probe),
        )  # fmt: skip
        metrics = history.metrics | {
            name: values[history.round - 1] for name, values in history.probes.items()
        }
        return jax.tree.map(lambda x: x[None], (history.round, metrics, state.diverged_at))

    for first in range(0, len(seeds), len(workers)):
        rows = np.minimum(first + np.arange(len(workers)), len(seeds) - 1)
        began = time.perf_counter()
        these = jax.tree.map(lambda x, rows=rows: jnp.asarray(x)[rows], batch)
        done = program(these, problem.examples, problem.evaluate)
        rounds, metrics, diverged_at = jax.tree.map(np.asarray, done)
        seconds = time.perf_counter() - began
        for i, row in enumerate(rows[: len(seeds) - first]):
            frame = _frame(batch_of(batch.timeline, int(row)), rounds[i], up, down)
            for name, values in metrics.items():
                frame[name] = values[i]
            frame["diverged_at"], frame["seconds"] = int(diverged_at[i]), seconds
            # Behind its own end a shorter schedule has empty updates.
            frame = frame.drop_duplicates("round", keep="first")
            partial = folder / f"{seeds[row]}.tmp"
            frame.to_csv(partial, index=False)
            partial.replace(folder / f"{seeds[row]}.csv")  # a kill leaves none or a whole one
        print(
            f"{method.label}: {first + len(rows)} of {len(seeds)} seeds, {seconds:.0f} s",
            flush=True,
        )


def _prepared(problem, clock, method, seeds, eval_time, variance) -> tuple[int, Seed, np.ndarray]:
    """Updates between evaluations, all seeds' inputs, and the clients' offsets."""
    keys = [jax.random.key(seed) for seed in seeds]
    success = [
        two_speeds(
            jax.random.fold_in(key, 1), clock.num_clients, clock.slow_fraction,
            fast=clock.fast, slow=clock.slow,
        )
        for key in keys
    ]  # fmt: skip
    clocks = [jax.random.fold_in(key, 2) for key in keys]
    timelines = [timeline(method, clock, k, s) for k, s in zip(clocks, success, strict=True)]
    batch = stacked(timelines)
    gap = float(np.mean([t.time[-1] / t.num_rounds for t in timelines]))
    every = max(1, round(eval_time / gap))
    flight = InFlight(*(np.zeros((len(seeds), 0, clock.num_clients), int) for _ in range(4)))
    if variance != "none" and method.schedule != "rounds":
        flights = [
            in_flight(method, clock, k, s, every) for k, s in zip(clocks, success, strict=True)
        ]
        # Schedules of different length have as many moments as the longest; the rest never come.
        flight = InFlight(*(_padded(parts) for parts in zip(*flights, strict=True)))
        if method.schedule != "mixing contacts":
            held = np.stack(
                [holdings(batch_of(batch, i), clock.num_clients) for i in range(len(seeds))]
            )
            batch = planned(batch, held)
    parts = [problem.assignment(seed) for seed in seeds]
    sizes = {tuple(map(len, rows)) for rows in parts}
    if len(sizes) != 1:
        raise ValueError("assignment gives clients of different sizes to seeds; expected the same")
    return (
        every,
        Seed(
            timeline=batch,
            flight=flight,
            order=np.stack([np.concatenate(rows) for rows in parts]).astype(np.int32),
            constants=np.stack([method.constants(clock, s).astype(np.float32) for s in success]),
            params=jax.tree.map(
                lambda *x: jnp.stack(x), *[problem.init(jax.random.fold_in(k, 3)) for k in keys]
            ),
            key=jnp.stack([jax.random.fold_in(key, 4) for key in keys]),
        ),
        np.concatenate([[0], np.cumsum(sizes.pop())]).astype(np.int32),
    )


def batch_of(timelines: fs.Timeline, i: int) -> fs.Timeline:
    """One of a batch."""
    return jax.tree.map(lambda x: x[i], timelines)


def _padded(parts: Sequence[np.ndarray]) -> np.ndarray:
    length = max(map(len, parts))
    return np.stack(
        [
            np.pad(x, [(0, length - len(x))] + [(0, 0)] * (x.ndim - 1), constant_values=-1)
            for x in parts
        ]
    )


def _frame(timeline: fs.Timeline, rounds: np.ndarray, up: int, down: int) -> pd.DataFrame:
    mask = np.asarray(timeline.mask)
    steps = np.where(mask, np.asarray(timeline.num_steps), 0).sum(axis=1).cumsum()
    updates = mask.any(axis=1).cumsum()
    at = rounds - 1
    return pd.DataFrame(
        {
            "round": updates[at],
            "time": np.asarray(timeline.time)[at],
            "local_steps": steps[at],
            "reports": mask.sum(axis=1).cumsum()[at],
            "bits": bits_moved(timeline, up, down)[at],
        }
    )
