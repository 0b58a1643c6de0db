"""Runs against one simulated clock: what the FAVANO experiments share.

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
from experiments.favano_methods import Clock, Method, in_flight, timeline
from fedjax_sim.data import partition
from fedjax_sim.data.batches import Batches
from fedjax_sim.diagnostics.in_flight import advanced, held_models, variance_probe
from fedjax_sim.engine import EvalFn, RunState
from fedjax_sim.execution import devices, strategies
from fedjax_sim.objectives import Objective
from fedjax_sim.timelines import (
    InFlight,
    allocate_buffers,
    bits_moved,
    held_versions,
    stacked,
    two_speeds,
)
from fedjax_sim.types import Params, PyTree

Variance = Literal["none", "lazy", "exact"]
Split = Literal["iid", "shards", "pairs"]


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
    for alike in _of_equal_sizes(problem, missing):
        _train(problem, clock, method, alike, eval_time, variance, folder)
    parts = [pd.read_csv(folder / f"{seed}.csv").assign(seed=seed) for seed in seeds]
    return pd.concat(parts, ignore_index=True).assign(algorithm=method.label)


def _of_equal_sizes(problem: Problem, seeds: Sequence[int]) -> list[list[int]]:
    """Seeds that can run in one program, since their clients have as many examples."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for seed in seeds:
        groups.setdefault(tuple(map(len, problem.assignment(seed))), []).append(seed)
    return list(groups.values())


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
            seed.key, cohort=strategies.sequential(), eval_fn=evaluate, eval_every=every,
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
                [held_versions(batch_of(batch, i), clock.num_clients) for i in range(len(seeds))]
            )
            batch = allocate_buffers(batch, held)
    parts = [problem.assignment(seed) for seed in seeds]
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
        np.cumsum([0, *map(len, parts[0])]).astype(np.int32),
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
