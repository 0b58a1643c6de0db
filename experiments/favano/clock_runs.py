"""Runs of methods against one simulated clock, kept on disk by seed.

From "FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and App. C.
A seed decides which clients are slow, how long their steps take, whom the server contacts, the
split, the initial model and the minibatches.  All methods share the first five per seed.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.sharding import AxisType, Mesh, PartitionSpec

import fedjax_sim as fs
from experiments.favano import in_flight
from experiments.favano.clock_inputs import Inputs, batch_of, groups_of_equal_sizes, prepared
from experiments.favano.methods import Clock, Method, Variance
from experiments.favano.problem import Problem
from experiments.harness import KeptFrames
from fedjax_sim.engine import devices, strategies
from fedjax_sim.types import EvalFn, Params, PyTree


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

    Finished seeds are read from ``work``; ``facts`` is everything that they depend on besides the
    clock, the method and the rate.
    """
    frame = swept(
        problem, clock, method, seeds, [problem.lr],
        eval_time=eval_time, variance=variance, work=work, facts=facts,
    )  # fmt: skip
    return frame.drop(columns="lr")


def swept(
    problem: Problem,
    clock: Clock,
    method: Method,
    seeds: Sequence[int],
    lrs: Sequence[float],
    *,
    eval_time: float,
    variance: Variance,
    work: pathlib.Path,
    facts: dict[str, Any],
) -> pd.DataFrame:
    """Histories as :func:`run` returns them, at several client rates: column lr."""
    identity = {"clock": dataclasses.asdict(clock), "method": method.label, "variance": variance}
    identity |= {"eval_time": eval_time, **facts}
    kept = {lr: KeptFrames(work, identity | {"lr": lr}) for lr in lrs}
    missing = {lr: frames.missing(seeds) for lr, frames in kept.items()}
    some = [seed for seed in seeds if any(seed in without for without in missing.values())]
    for group in groups_of_equal_sizes(problem, some):
        pairs = [(lr, seed) for lr in lrs for seed in group if seed in missing[lr]]
        train(problem, clock, method, pairs, eval_time, variance, kept)
    frames = [frames.load(seeds).assign(lr=lr) for lr, frames in kept.items()]
    return pd.concat(frames, ignore_index=True).assign(algorithm=method.label)


def train(
    problem: Problem,
    clock: Clock,
    method: Method,
    pairs: Sequence[tuple[float, int]],
    eval_time: float,
    variance: Variance,
    kept: Mapping[float, KeptFrames],
) -> None:
    """Runs pairs of a rate and a seed, as many at a time as there are devices, and keeps their
    histories."""
    seeds = list(dict.fromkeys(seed for _, seed in pairs))
    every, batch, offsets = prepared(problem, clock, method, seeds, eval_time, variance)
    mixing = method.schedule == "mixing contacts"
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    up, down = (codec.bits(shapes) for codec in method.codecs)
    workers = devices.workers()[: len(pairs)]
    mesh = Mesh(np.array(workers), ("runs",), axis_types=(AxisType.Auto,))
    runs, common = PartitionSpec("runs"), PartitionSpec()

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(runs, runs, common, common), out_specs=runs,
        check_vma=False,
    )  # fmt: skip
    def program(lrs: Array, batch: Inputs, examples: PyTree, evaluate: EvalFn) -> tuple:
        inputs: Inputs = jax.tree.map(lambda x: x[0], batch)
        lr = lrs[0] * method.lr_factor
        data = fs.FederatedData(jax.tree.map(lambda x: x[inputs.order], examples), offsets)
        task = fs.empirical_task(problem.objective, data, problem.batches)

        def models(state: fs.RunState, moment: Array) -> Params:
            version = jnp.asarray(inputs.flight.version)[moment]
            start = (
                state.clients if mixing else in_flight.held_models(state, inputs.timeline, version)
            )
            if variance == "lazy":
                return start
            return in_flight.advance_models(
                start, task, inputs.key, lr=lr,
                num_steps=jnp.asarray(inputs.flight.num_steps)[moment],
                first_step=jnp.asarray(inputs.flight.first_step)[moment], max_steps=clock.max_steps,
            )  # fmt: skip

        measured = variance != "none" and method.schedule != "rounds"
        probe = {"variance": in_flight.variance_probe(models, inputs.flight)} if measured else {}
        setup = fs.Setup(task, inputs.timeline, inputs.params, eval_fn=evaluate, eval_every=every)
        state, history = fs.run(
            method.algorithm(lr, jnp.asarray(inputs.constants)), setup, inputs.key,
            execution=strategies.sequential(), probes=fs.Probes(run=probe),
        )  # fmt: skip
        metrics = history.metrics | {
            name: values[history.round - 1] for name, values in history.probes.items()
        }
        return jax.tree.map(lambda x: x[None], (history.round, metrics, state.diverged_at))

    for first in range(0, len(pairs), len(workers)):
        # Devices beyond the last pair repeat it without any visits.
        used = min(len(workers), len(pairs) - first)
        chosen = [pairs[first + min(i, used - 1)] for i in range(len(workers))]
        rows = np.array([seeds.index(seed) for _, seed in chosen])
        began = time.perf_counter()
        inputs = jax.tree.map(lambda x, rows=rows: jnp.asarray(x)[rows], batch)
        mask = inputs.timeline.mask & (np.arange(len(workers)) < used)[:, None, None]
        inputs = inputs._replace(timeline=dataclasses.replace(inputs.timeline, mask=mask))
        lrs = jnp.array([lr for lr, _ in chosen])
        results = program(lrs, inputs, problem.examples, problem.evaluate)
        rounds, metrics, diverged_at = jax.tree.map(np.asarray, results)
        seconds = time.perf_counter() - began
        for i, (lr, seed) in enumerate(chosen[:used]):
            frame = _frame(batch_of(batch.timeline, int(rows[i])), rounds[i], up, down)
            for name, values in metrics.items():
                frame[name] = values[i]
            frame["diverged_at"], frame["seconds"] = int(diverged_at[i]), seconds
            # After its own end a shorter schedule has empty updates.
            kept[lr].save(seed, frame.drop_duplicates("round", keep="first"))
        print(f"{method.label}: {first + used} of {len(pairs)} runs, {seconds:.0f} s", flush=True)


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
            "bits": fs.timelines.bits_moved(timeline, up, down)[at],
        }
    )
