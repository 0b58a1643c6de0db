"""Methods, learning rates and sweeps of the four tasks."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness.options import Folders, check_grid, check_names
from experiments.harness.runs import seed_keys, split_keys, swept
from fedjax_sim.checks import check_at_least

LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # of clients
SERVER_LRS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "FedDualAvg": fs.feddualavg,
    "FedDualAvg-OSP": fs.feddualavg_osp,
    "FedMiD": fs.fedmid,
    "FedMiD-OSP": fs.fedmid_osp,
}
# The thesis's best rates of the LASSO's set I, the second of all methods but FedDualAvg.
BEST, BEST_OF_OTHERS = (0.01, 1.0), (0.001, 0.3)
SUBGRADIENT = "subgradient-FedAvg"  # FedAvg (d) in the figures
PENALTY_METHODS = METHODS | {SUBGRADIENT: fs.fedavg_subgradient}  # not for constraints


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of all tasks."""

    known_methods: ClassVar[Mapping[str, Callable[..., fs.FedAlgorithm]]] = METHODS

    methods: tuple[str, ...] = tuple(METHODS)
    seeds: int = 1  # of cohorts, minibatches and drawn initial models; the data are the same
    lrs: tuple[float, ...] = LRS
    server_lrs: tuple[float, ...] = SERVER_LRS
    widen: bool = False  # adds the runs to the grid in the output folder
    work: pathlib.Path = pathlib.Path("results/fco")
    output: pathlib.Path = pathlib.Path("experiments/results/fco")

    def __post_init__(self) -> None:
        check_at_least(1, seeds=self.seeds)
        check_names("methods", self.methods, self.known_methods)
        check_grid(lrs=self.lrs, server_lrs=self.server_lrs)


class Problem(NamedTuple):
    """Task, schedule and initial models that all methods share; n seeds."""

    composite: fs.prox.Composite
    task: fs.Task
    timeline: fs.Timeline  # [n, ...]
    params: Any  # [n, ...]
    keys: jax.Array  # [n]
    eval_fn: Any


def glorot_weights(key: jax.Array, features: int) -> jax.Array:
    """Initial weights ``[d]`` of a Keras layer with one output, whose bias starts at 0.

    Uniform within ``+-sqrt(6 / (d + 1))`` (Glorot and Bengio, 2010, Eq. 16).
    """
    return jax.nn.initializers.glorot_uniform()(key, (features, 1))[:, 0]


def make_problem(
    composite: fs.prox.Composite,
    task: fs.Task,
    params: Any,
    eval_fn: Any,
    *,
    rounds: int,
    cohort: int,
    seeds: int,
) -> Problem:
    """Draws the cohorts and keys of every seed; more seeds leave the first ones as they were."""
    draw = functools.partial(
        fs.timelines.uniform,
        num_rounds=rounds,
        num_clients=task.num_clients,
        cohort_size=min(cohort, task.num_clients),
        num_steps=task.num_steps,
    )
    keys = seed_keys(seeds, root=1)
    if callable(params):
        draw_keys, init_keys, run_keys = split_keys(keys, 3)
        params = jax.jit(jax.vmap(params))(init_keys)
    else:
        draw_keys, run_keys = split_keys(keys, 2)
        params = jax.tree.map(lambda x: np.stack([x] * seeds), params)
    timeline = jax.jit(jax.vmap(draw))(draw_keys)
    return Problem(composite, task, timeline, params, run_keys, eval_fn)


def run(
    shared: Problem,
    method: str,
    lrs: Sequence[float],
    server_lrs: Sequence[float],
    directory: pathlib.Path,
    *,
    eval_every: int,
    identity: Mapping[str, Any],
) -> pd.DataFrame:
    """The tidy history of a method over its grid of rates; finished runs are not repeated."""
    setup = fs.Setup(
        shared.task,
        shared.timeline,
        shared.params,
        eval_fn=shared.eval_fn,
        eval_every=eval_every,
        weighting=fs.weight_by_examples,
    )
    factory = functools.partial(PENALTY_METHODS[method], composite=shared.composite)
    grid = {"lr": lrs, "server_lr": server_lrs}
    identity = {"method": method, **identity}
    history = swept(factory, setup, grid, shared.keys, directory, config=identity)
    history.insert(0, "method", method)
    return history


def run_all(
    shared: Problem,
    options: Options,
    directory: pathlib.Path,
    *,
    eval_every: int,
    identity: Mapping[str, Any],
) -> pd.DataFrame:
    """The tidy history of every method of the options over their grid, see :func:`run`."""
    parts = [
        run(
            shared,
            method,
            options.lrs,
            options.server_lrs,
            directory / method,
            eval_every=eval_every,
            identity=identity,
        )
        for method in options.methods
    ]
    return pd.concat(parts, ignore_index=True)
