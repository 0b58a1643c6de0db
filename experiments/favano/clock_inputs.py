"""Inputs of runs against a simulated clock: everything that differs between seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from experiments.favano.methods import Clock, Method, Variance, in_flight, timeline
from experiments.favano.problem import Problem
from fedjax_sim.types import Params


class Inputs(NamedTuple):
    """Inputs of a run that differ between seeds."""

    timeline: fs.Timeline
    flight: fs.timelines.InFlight
    order: np.ndarray  # [N'] rows, client after client
    constants: np.ndarray  # [M]
    params: Params
    key: Array


def groups_of_equal_sizes(problem: Problem, seeds: Sequence[int]) -> list[list[int]]:
    """Groups of seeds whose clients have the same numbers of examples: each group runs in one
    program."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for seed in seeds:
        groups.setdefault(tuple(map(len, problem.assignment(seed))), []).append(seed)
    return list(groups.values())


def prepared(
    problem: Problem,
    clock: Clock,
    method: Method,
    seeds: Sequence[int],
    eval_time: float,
    variance: Variance,
) -> tuple[int, Inputs, np.ndarray]:
    """Updates between evaluations, all seeds' inputs, and the clients' offsets."""
    keys = [jax.random.key(seed) for seed in seeds]
    success = [
        fs.timelines.two_speeds(
            jax.random.fold_in(key, 1), clock.num_clients, clock.slow_fraction,
            fast=clock.fast, slow=clock.slow,
        )
        for key in keys
    ]  # fmt: skip
    clocks = [jax.random.fold_in(key, 2) for key in keys]
    timelines = [timeline(method, clock, k, s) for k, s in zip(clocks, success, strict=True)]
    batch = fs.timelines.stacked(timelines)
    gap = float(np.mean([t.time[-1] / t.num_rounds for t in timelines]))
    every = max(1, round(eval_time / gap))
    flight = fs.timelines.InFlight(
        *(np.zeros((len(seeds), 0, clock.num_clients), int) for _ in range(4))
    )
    if variance != "none" and method.schedule != "rounds":
        flights = [
            in_flight(method, clock, k, s, every) for k, s in zip(clocks, success, strict=True)
        ]
        # All schedules are padded to the moments of the longest one.
        flight = fs.timelines.InFlight(*(_padded(parts) for parts in zip(*flights, strict=True)))
        if method.schedule != "mixing contacts":
            versions = np.stack(
                [
                    fs.timelines.held_versions(batch_of(batch, i), clock.num_clients)
                    for i in range(len(seeds))
                ]
            )
            batch = fs.timelines.allocate_buffers(batch, versions)
    parts = [problem.assignment(seed) for seed in seeds]
    return (
        every,
        Inputs(
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
