"""Runs of methods against one simulated clock, kept on disk by seed.

From "FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and App. C.
A seed decides which clients are slow, how long their steps take, whom the server contacts, the
split, the initial model and the minibatches.  All methods share the first five per seed.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.sharding import AxisType, Mesh, PartitionSpec

import fedjax_sim as fs
from experiments.favano.methods import Clock, Method, in_flight, timeline
from experiments.favano.problem import Problem
from experiments.harness import KeptFrames
from fedjax_sim.diagnostics.in_flight import advance_models, held_models, variance_probe
from fedjax_sim.execution import devices, strategies
from fedjax_sim.timelines import (
    InFlight,
    allocate_buffers,
    bits_moved,
    held_versions,
    stacked,
    two_speeds,
)
from fedjax_sim.types import EvalFn, Params, PyTree

Variance = Literal["none", "lazy", "exact"]


class Seed(NamedTuple):
    """Inputs of a run that differ between seeds."""

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
    """Histories of the method: round, time, local_steps, reports, bits, metrics, seed, algorithm.

    Finished seeds are read from ``work``; ``facts`` is everything that they depend on besides clock
    and method.
    """
    identity = {"clock": dataclasses.asdict(clock), "method": method.label, "variance": variance}
    identity |= {"eval_time": eval_time, "lr": problem.lr, **facts}
    kept = KeptFrames(work, identity)
    for group in groups_of_equal_sizes(problem, kept.missing(seeds)):
        train(problem, clock, method, group, eval_time, variance, kept)
    return kept.load(seeds).assign(algorithm=method.label)


def groups_of_equal_sizes(problem: Problem, seeds: Sequence[int]) -> list[list[int]]:
    """Groups of seeds whose clients have the same numbers of examples: each group runs in one
    program."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for seed in seeds:
        groups.setdefault(tuple(map(len, problem.assignment(seed))), []).append(seed)
    return list(groups.values())


def train(
    problem: Problem,
    clock: Clock,
    method: Method,
    seeds: Sequence[int],
    eval_time: float,
    variance: Variance,
    kept: KeptFrames,
) -> None:
    """Runs the seeds, as many at a time as there are devices, and keeps their histories."""
    every, batch, offsets = _prepared(problem, clock, method, seeds, eval_time, variance)
    mixing = method.schedule == "mixing contacts"
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

        def models(state: fs.RunState, moment: Array) -> Params:
            version = jnp.asarray(seed.flight.version)[moment]
            start = state.clients if mixing else held_models(state, seed.timeline, version)
            if variance == "lazy":
                return start
            return advance_models(
                start, task, seed.key, lr=lr, num_steps=jnp.asarray(seed.flight.num_steps)[moment],
                first_step=jnp.asarray(seed.flight.first_step)[moment], max_steps=clock.max_steps,
            )  # fmt: skip

        measured = variance != "none" and method.schedule != "rounds"
        probe = {"variance": variance_probe(models, seed.flight)} if measured else {}
        setup = fs.Setup(task, seed.timeline, seed.params, eval_fn=evaluate, eval_every=every)
        state, history = fs.run(
            method.algorithm(lr, jnp.asarray(seed.constants)), setup, seed.key,
            execution=strategies.sequential(), probes=fs.Probes(run=probe),
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
            # After its own end a shorter schedule has empty updates.
            kept.save(seeds[row], frame.drop_duplicates("round", keep="first"))
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
        # All schedules are padded to the moments of the longest one.
        flight = InFlight(*(_padded(parts) for parts in zip(*flights, strict=True)))
        if method.schedule != "mixing contacts":
            versions = np.stack(
                [held_versions(batch_of(batch, i), clock.num_clients) for i in range(len(seeds))]
            )
            batch = allocate_buffers(batch, versions)
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
    """One timeline of a batch."""
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
