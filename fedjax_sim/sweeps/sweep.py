"""Hyper-parameters x seeds in as few compiled programs as their shapes allow.

Floats vary inside one program; what changes shapes or data (batch size, local steps, cohort size,
the algorithm itself) makes a group with a program of its own.  A group's runs are cut into blocks
that fit a device.  All runs of a seed see the same cohorts and minibatches, so differences between
configurations are paired, and a block gathers each minibatch once for all its configurations.
"""

import functools
import inspect
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_batch, check_setup
from fedjax_sim.engine import NO_PROBES, History, Probes
from fedjax_sim.execution import devices as device_list
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation import history as history_file
from fedjax_sim.simulation.interrupt import deferred_interrupt
from fedjax_sim.sweeps.grid import Block, Configuration, Grid, Group, Plan, expand, groups
from fedjax_sim.sweeps.program import Program, Programs, Trial, check_names
from fedjax_sim.sweeps.store import SweepRun, SweepStore, digest, portable
from fedjax_sim.types import Device, FedAlgorithm, Setup

RunNumber = tuple[int, int]  # (configuration, seed)


class SweepProgress(NamedTuple):
    """What a progress callback is told when a group's program is ready and after every segment."""

    static: Configuration  # the group's values that do not vary
    plan: Plan
    bytes_per_device: int  # what XLA says the program needs
    budget: int  # what it may need
    slices_done: int  # of the group
    round: int  # of the slice in progress
    num_rounds: int
    runs_done: int  # of the whole sweep
    num_runs: int


class Sweep(NamedTuple):
    """A finished or interrupted sweep."""

    runs: list[SweepRun]  # in the order of the grid, seeds innermost; those that are finished
    interrupted: bool
    resumed: int  # runs found on disk
    compilations: int  # programs compiled for rounds of training
    compile_seconds: float
    run_seconds: float

    def rows(self) -> Iterator[tuple[Configuration, str, int, int, str, float]]:
        """``(configuration, seed, diverged_at, round, metric, value)``: the tidy form."""
        for run in self.runs:
            for done, name, value in history_file.melted(run.history):
                yield run.configuration, run.seed, run.diverged_at, done, name, value


def sweep(
    factory: Callable[..., FedAlgorithm],
    setup: Setup | Callable[..., Setup],
    grid: Grid,
    keys: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
    static: Collection[str] | None = None,
    seeds: Sequence[str] | None = None,
    memory: int | None = None,
    devices: Sequence[Device] | None = None,
    directory: str | pathlib.Path | None = None,
    config: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Runs every (configuration, seed) of a grid.

    Static hyper-parameters are passed as they are, by name: to ``setup`` those that it takes (it is
    a function then, called twice per combination, first for the checks), to ``factory`` the others
    and those that are parameters of both.  All other hyper-parameters are passed to ``factory`` as
    traced numbers.  A run that diverges is recorded with the round in which it did and disturbs no
    other.  With a directory, finished slices are kept and not repeated by a later call, also of a
    larger grid.  Ctrl-C ends after the segment in progress, with the finished slices in the
    result.

    Args:
        factory: function of the hyper-parameters that returns an algorithm, such as
            :func:`~fedjax_sim.fedavg`.
        setup: setup of all configurations, or a function of static hyper-parameters; ``params``
            has a leading axis n, ``timeline`` may have one.
        grid: ``{name: values}`` for the Cartesian product, or a list of configurations, which need
            not have the same names.
        keys: one per seed, ``[n]``.
        execution: execution strategy; default: chosen for the number of runs in a block.
        probes: diagnostics inside every round.
        static: names of the static hyper-parameters; default: the parameters of ``setup``.
        seeds: their names; default "0", "1", ...
        memory: bytes that a program may take on a device, of data, state and temporaries together;
            default :func:`~fedjax_sim.execution.devices.memory_limit`.
        devices: where to run, each taking its own configurations and seeds; default
            :func:`~fedjax_sim.execution.devices.workers`.
        directory: where finished slices are kept.
        config: JSON-able description; a directory with another one is refused.
        identity: JSON-able values that results depend on and that neither the configuration nor the
            arrays of the setup show, or a function of the static hyper-parameters that returns
            them; runs on disk with other values are refused.
        on_progress: called when a group's program is ready and after every segment.

    Raises:
        ValueError: a grid without configurations, a value that is not a number where one is
            needed, contradictory arguments, a budget that one run exceeds, a directory that holds
            another sweep.

    Example:
        >>> import fedjax_sim as fs
        >>> x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        >>> data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 41, 5))  # 8 clients
        >>> loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2
        >>> def setup(batch_size):
        ...     task = fs.empirical_task(loss, data, fs.epochs(2, batch_size))
        ...     timeline = fs.timelines.uniform(jax.random.key(0), 20, 8, 4, task.num_steps)
        ...     error = lambda w: {"error": abs(w - 1).max()}
        ...     params = np.zeros((2, 3), np.float32)  # of both seeds
        ...     return fs.Setup(task, timeline, params, eval_fn=error, eval_every=20)
        >>> keys = jax.random.split(jax.random.key(1), 2)
        >>> grid = {"batch_size": [1, 5], "lr": [1e-3, 1e-1, 10.0]}
        >>> result = sweep(fs.fedavg, setup, grid, keys)
        >>> best = min(result.runs, key=lambda run: run.history.metrics["error"][-1])
        >>> best.configuration["lr"], [run.diverged_at > 0 for run in result.runs[::2]]
        (0.1, [False, False, True, False, False, True])
    """
    if keys.ndim != 1 or not keys.shape[0]:
        raise ValueError(f"keys has shape {keys.shape}; expected [n], one per seed")
    names = list(seeds) if seeds is not None else [str(i) for i in range(keys.shape[0])]
    if len(names) != keys.shape[0] or len(set(names)) != len(names):
        raise ValueError(f"seeds is {names}; expected {keys.shape[0]} distinct names, one per key")
    if memory is not None and memory < 1:
        raise ValueError(f"memory is {memory}; expected a positive number of bytes")
    configurations = expand(grid)
    make, fixed = _maker(factory, setup, static, execution, probes)
    parts = groups(configurations, fixed)
    for group in parts:  # all of them, before the first runs for hours
        _check_trial(make(group.static), group, len(names))
    where = list(device_list.workers() if devices is None else devices)
    if not where:
        raise ValueError("devices is empty; expected at least one device")
    budget = memory or device_list.memory_limit(where[0])
    store = SweepStore(pathlib.Path(directory) if directory is not None else None, config)
    programs = Programs(where, budget)

    finished: dict[RunNumber, SweepRun] = {}
    num_runs = len(configurations) * len(names)
    resumed, run_seconds, stopped = 0, 0.0, False
    with deferred_interrupt() as interrupted:
        for group in parts:
            one = make(group.static)
            extra = identity(**group.static) if callable(identity) else identity
            # Without a directory nothing is looked up, and hashing the data would take time.
            identities = names if directory is None else _identities(one.setup, keys, extra)
            runs = _Runs(configurations, names, one, identities, store)
            found = runs.on_disk(group)
            finished |= found
            resumed += len(found)
            if len(found) == len(group.members) * len(names):
                continue
            if interrupted():
                stopped = True
                break
            program = programs.ready(one, group, keys)
            news = SweepProgress(
                group.static, program.plan, program.compiled.bytes_per_device, budget,
                0, 0, one.setup.timeline.num_rounds, len(finished), num_runs,
            )  # fmt: skip
            began = time.perf_counter()
            new = _run_slices(program, runs, found, news, on_progress, interrupted)
            run_seconds += time.perf_counter() - began
            finished |= new
            stopped = len(found | new) < len(group.members) * len(names)
            if stopped:
                break
    return Sweep(
        [finished[number] for number in sorted(finished)],
        stopped,
        resumed,
        programs.compilations,
        programs.compile_seconds,
        run_seconds,
    )


class _Runs(NamedTuple):
    """How a group's runs are named, kept and taken from a slice's arrays."""

    configurations: Sequence[Configuration]
    seeds: Sequence[str]
    trial: Trial
    identities: Sequence[str]  # per seed
    store: SweepStore

    def on_disk(self, group: Group) -> dict[RunNumber, SweepRun]:
        found = {
            (i, j): self.store.find(self.configurations[i], seed, self.identities[j])
            for i in group.members
            for j, seed in enumerate(self.seeds)
        }
        return {number: run for number, run in found.items() if run is not None}

    def take(
        self,
        history: History,
        diverged_at: np.ndarray,
        members: list[list[RunNumber]],
        found: Collection[RunNumber],
    ) -> dict[RunNumber, SweepRun]:
        """The runs of a slice that were not found on disk, from its arrays
        ``[D, width, seeds, ...]``; saved."""
        clock = history_file.Clock(self.trial.setup.timeline, len(self.seeds))
        taken: dict[RunNumber, SweepRun] = {}
        for device, block in enumerate(members):
            for place, (i, j) in enumerate(block):
                if (i, j) in found:
                    continue  # it keeps its bits, which may differ in another block
                at = (device, *divmod(place, diverged_at.shape[2]))
                one = jax.tree.map(lambda x, at=at: x[at][None], history)
                one = history_file.complete(one, clock, self.trial.probes.client.keys(), [j])
                one = jax.tree.map(lambda x: portable(x[0]), one)
                configuration = dict(self.configurations[i])
                taken[i, j] = SweepRun(configuration, self.seeds[j], one, int(diverged_at[at]))
        self.store.save((self.identities[j], run) for (_, j), run in taken.items())
        return taken


def _run_slices(
    program: Program,
    runs: _Runs,
    found: Mapping[RunNumber, SweepRun],
    news: SweepProgress,
    on_progress: Callable[[SweepProgress], None] | None,
    interrupted: Callable[[], bool],
) -> dict[RunNumber, SweepRun]:
    """The slices of a group that are not on disk."""

    def tell(slices: int, round: int) -> None:
        if on_progress is not None:
            done = news.runs_done + len(new)
            on_progress(news._replace(slices_done=slices, round=round, runs_done=done))

    new: dict[RunNumber, SweepRun] = {}
    tell(0, 0)
    for number, blocks in enumerate(program.plan.slices):
        members = [_members(program.plan, b, program.group, len(runs.seeds)) for b in blocks]
        if all(run in found for block in members for run in block):
            continue
        result = program.run(blocks, functools.partial(tell, number), interrupted)
        if result is None:
            break
        new |= runs.take(*result, members, found)
        tell(number + 1, news.num_rounds)
    return new


def _members(plan: Plan, block: Block, group: Group, num_seeds: int) -> list[RunNumber]:
    """The (configuration, seed) numbers of a block, ``[width * seeds]``, seeds innermost."""
    return [
        (group.members[row], seed)
        for row in plan.configurations(block, len(group.members))
        for seed in plan.seed_numbers(block, num_seeds)
    ]


def _maker(
    factory: Callable[..., FedAlgorithm],
    setup: Setup | Callable[..., Setup],
    static: Collection[str] | None,
    execution: Execution | None,
    probes: Probes,
) -> tuple[Callable[[Configuration], Trial], set[str]]:
    """A function of the static hyper-parameters, and their names."""
    taken = set() if isinstance(setup, Setup) else set(inspect.signature(setup).parameters)
    fixed = taken if static is None else set(static)
    named = set(inspect.signature(factory).parameters)

    def make(values: Configuration) -> Trial:
        own = {name: value for name, value in values.items() if name in taken}
        rest = {name: v for name, v in values.items() if name not in taken or name in named}
        if not isinstance(setup, Setup):
            check_names(setup, list(own))
        one = setup if isinstance(setup, Setup) else setup(**own)
        bound = functools.partial(factory, **rest) if rest else factory
        return Trial(bound, one, execution, probes)

    return make, fixed


def _check_trial(trial: Trial, group: Group, num_seeds: int) -> None:
    check_setup(trial.setup)
    check_batch(trial.setup, num_seeds)
    check_names(trial.factory, group.names)


def _identities(setup: Setup, keys: Array, extra: Mapping[str, Any] | None) -> list[str]:
    """Per seed what tells its runs from those of other data, schedules, models, keys or times of
    evaluation; functions cannot be told apart."""
    batched = setup.timeline.clients.ndim == 3
    words = np.asarray(jax.random.key_data(keys))
    leaves = jax.tree.leaves((setup.task, setup.eval_fn))
    data = digest(*(np.asarray(leaf) for leaf in leaves if not callable(leaf)))

    def of(seed: int) -> str:
        timeline = setup.timeline
        if batched:
            timeline = jax.tree.map(lambda x: np.asarray(x)[seed], timeline)
        model = jax.tree.map(lambda x: np.asarray(x)[seed], setup.params)
        own = map(np.asarray, jax.tree.leaves((model, timeline)))
        return digest(data, *own, words[seed], setup.eval_every, dict(extra or {}))

    return [of(seed) for seed in range(len(words))]
