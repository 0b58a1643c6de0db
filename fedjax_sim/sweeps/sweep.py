"""Sweeps: hyper-parameters x seeds in as few compiled programs as their shapes allow.

Numbers vary inside one program.  Whatever changes shapes or data (batch size, local steps, cohort
size, the algorithm itself) makes a group with a program of its own.  A group's runs are cut into
blocks that fit a device.  All runs of a seed see the same cohorts and minibatches, so differences
between configurations are paired, and a block gathers each minibatch once for all configurations.
"""

import functools
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_bytes
from fedjax_sim.engine import NO_PROBES, Probes
from fedjax_sim.execution import devices as device_list
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation import history as history_file
from fedjax_sim.simulation.interrupt import deferred_interrupt
from fedjax_sim.simulation.seeds import Seed, seed_names
from fedjax_sim.sweeps.grid import Block, Configuration, Grid, Group, Plan, expand, groups
from fedjax_sim.sweeps.program import Program, Programs, SliceResult
from fedjax_sim.sweeps.result import Sweep, SweepRun
from fedjax_sim.sweeps.store import SweepStore, portable
from fedjax_sim.sweeps.trial import Factory, MakeSetup, RunIdentity, Trial, Trials, identities
from fedjax_sim.types import Device, Setup

RunNumber = tuple[int, int]  # (configuration, seed)


class SweepProgress(NamedTuple):
    """Argument of a progress callback: when a group is compiled, and after every segment."""

    static: Configuration  # the group's values that do not vary
    plan: Plan
    bytes_per_device: int  # that the program needs, by XLA's count
    budget: int  # that the program may need
    slices_done: int  # of the group
    round: int  # of the slice in progress
    num_rounds: int
    runs_done: int  # of the whole sweep
    num_runs: int


def sweep(
    factory: Factory,
    setup: Setup | MakeSetup,
    grid: Grid,
    keys: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
    static: Collection[str] | None = None,
    seeds: Sequence[Seed] | None = None,
    memory: int | None = None,
    devices: Sequence[Device] | None = None,
    directory: str | pathlib.Path | None = None,
    config: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None = None,
    keep_models: bool = False,
    only_finished: bool = False,
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Runs every (configuration, seed) of a grid.

    Static hyper-parameters are passed as Python values, by name: to ``setup`` those that it takes
    (``setup`` is then a function, called twice per combination, first for the checks), to
    ``factory`` the others and those that are parameters of both.  All other hyper-parameters are
    passed to ``factory`` as traced numbers.  If the function takes ``seed``, it is called once per
    seed, and each seed has a setup of its own; seeds whose setups have equal shapes share a
    program.

    A run that diverges is recorded with the round of its divergence and does not affect other runs.
    With a directory, finished slices are kept and not repeated by a later call, also of a larger
    grid.  Ctrl-C ends the sweep after the segment in progress; the result has the finished slices.

    Args:
        factory: function of the hyper-parameters that returns an algorithm, such as
            :func:`~fedjax_sim.fedavg`.
        setup: setup of all configurations, or a function of static hyper-parameters; ``params``
            has a leading axis n, ``timeline`` may have one.  A function of ``seed`` returns the
            setup of one seed, without that axis.
        grid: ``{name: values}`` for the Cartesian product, or a list of configurations, which need
            not have the same names.
        keys: one per seed, ``[n]``.
        execution: execution strategy; default: chosen for the number of runs in a block.
        probes: diagnostics inside every round.
        static: names of the static hyper-parameters; default: the parameters of ``setup``.
        seeds: names of the seeds, also the values of ``seed``; default 0, 1, ...
        memory: bytes that a program may need on a device for data, state and temporaries;
            default :func:`~fedjax_sim.execution.devices.memory_limit`.
        devices: each runs configurations and seeds of its own; default
            :func:`~fedjax_sim.execution.devices.workers`.
        directory: folder for finished slices.
        config: JSON-able description; a directory with another one is refused.
        identity: JSON-able values that results depend on and that are neither in the configuration
            nor in the arrays of the setup, or a function of the static hyper-parameters that
            returns them; runs on disk with other values are refused.
        keep_models: keep the final model of every run in memory and in the directory.
        only_finished: return the runs that the directory has, and start none.
        on_progress: called when a group's program is ready and after every segment.

    Raises:
        ValueError: a grid without configurations, a value that is not a number where one is
            needed, contradictory arguments, a budget that one run exceeds, a task with examples
            on the host, a directory that holds another sweep.

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
        >>> figure = result.plot("error", x="lr")  # of the better batch size
        >>> figure.axes[0].get_xlabel()
        'lr'
    """
    if keys.ndim != 1 or not keys.shape[0]:
        raise ValueError(f"keys has shape {keys.shape}; expected [n], one per seed")
    values = list(range(keys.shape[0]) if seeds is None else seeds)
    names = seed_names(seeds, keys.shape[0])
    check_bytes(memory=memory)
    if only_finished and directory is None:
        raise ValueError("directory is None; expected the folder whose runs only_finished returns")
    configurations = expand(grid)
    trials = Trials(factory, setup, static, execution, probes)
    parts = groups(configurations, trials.static)
    for group in parts:  # all of them, before the first runs for hours
        trials.check(group.static, group.names, values)
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
        for group, numbers in _batches(parts, len(names), trials.per_seed):
            trial = trials.make(group.static, values[numbers[0]] if trials.per_seed else None)
            group_keys = keys[np.array(numbers)]
            extra = identity(**group.static) if callable(identity) else identity
            # Without a directory nothing is looked up, and hashing the data would take time.
            none = [RunIdentity("", "")] * len(numbers)
            known = none if directory is None else identities(trial, group_keys, extra)
            runs = _Runs(configurations, names, numbers, trial, known, store, keep_models)
            on_disk = runs.on_disk(group)
            finished |= on_disk
            resumed += len(on_disk)
            if only_finished or len(on_disk) == len(group.members) * len(numbers):
                continue
            if interrupted():
                stopped = True
                break
            program = programs.prepare(trial, group, group_keys)
            progress = SweepProgress(
                group.static, program.plan, program.compiled.bytes_per_device, budget,
                0, 0, trial.setup.timeline.num_rounds, len(finished), num_runs,
            )  # fmt: skip
            began = time.perf_counter()
            new = _run_slices(program, runs, on_disk, progress, on_progress, interrupted)
            run_seconds += time.perf_counter() - began
            finished |= new
            stopped = len(on_disk | new) < len(group.members) * len(numbers)
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


def _batches(
    parts: Sequence[Group], num_seeds: int, per_seed: bool
) -> Iterator[tuple[Group, list[int]]]:
    """Yields the groups with the numbers of the seeds that run together."""
    for group in parts:
        if per_seed:
            yield from ((group, [seed]) for seed in range(num_seeds))
        else:
            yield group, list(range(num_seeds))


class _Runs(NamedTuple):
    """Runs of a group: their names, and how they are found, kept and cut from slices."""

    configurations: Sequence[Configuration]
    seeds: Sequence[str]  # names of all seeds
    numbers: Sequence[int]  # of the seeds that the trial is for
    trial: Trial
    identities: Sequence[RunIdentity]  # per seed of the trial
    store: SweepStore
    keep_models: bool

    def on_disk(self, group: Group) -> dict[RunNumber, SweepRun]:
        params = self.trial.setup.params
        model = jax.tree.map(lambda x: x[0], params) if self.keep_models else None
        runs = {
            (i, j): self.store.find(self.configurations[i], self.seeds[j], identity, model)
            for i in group.members
            for j, identity in zip(self.numbers, self.identities, strict=True)
        }
        return {number: run for number, run in runs.items() if run is not None}

    def members(self, plan: Plan, block: Block, group: Group) -> list[RunNumber]:
        """Returns the (configuration, seed) numbers of a block, ``[width * seeds]``."""
        return [
            (group.members[row], self.numbers[seed])
            for row in plan.configurations(block, len(group.members))
            for seed in plan.seed_numbers(block, len(self.numbers))
        ]

    def take(
        self,
        result: SliceResult,
        members: list[list[RunNumber]],
        on_disk: Collection[RunNumber],
    ) -> dict[RunNumber, SweepRun]:
        """Cuts the runs that are not on disk from a slice's arrays, and saves them."""
        clock = history_file.Clock(self.trial.setup.timeline, len(self.numbers))
        probes = self.trial.probes.client.keys()
        taken: dict[RunNumber, SweepRun] = {}
        for device, block in enumerate(members):
            for place, (i, j) in enumerate(block):
                if (i, j) in on_disk:
                    continue  # it keeps its bits, which may differ in another block
                at = (device, *divmod(place, result.diverged_at.shape[2]))
                history = jax.tree.map(lambda x, at=at: x[at][None], result.history)
                history = history_file.complete(history, clock, probes, [self.numbers.index(j)])
                taken[i, j] = SweepRun(
                    dict(self.configurations[i]),
                    self.seeds[j],
                    jax.tree.map(lambda x: portable(x[0]), history),
                    int(result.diverged_at[at]),
                    jax.tree.map(lambda x, at=at: x[at], result.models),
                )
        identity = dict(zip(self.numbers, self.identities, strict=True))
        self.store.save((identity[j], run) for (_, j), run in taken.items())
        return taken


def _run_slices(
    program: Program,
    runs: _Runs,
    on_disk: Mapping[RunNumber, SweepRun],
    progress: SweepProgress,
    on_progress: Callable[[SweepProgress], None] | None,
    interrupted: Callable[[], bool],
) -> dict[RunNumber, SweepRun]:
    """Runs the slices of a group that are not on disk."""

    def report(slices: int, round: int) -> None:
        if on_progress is not None:
            done = progress.runs_done + len(new)
            on_progress(progress._replace(slices_done=slices, round=round, runs_done=done))

    new: dict[RunNumber, SweepRun] = {}
    report(0, 0)
    for number, blocks in enumerate(program.plan.slices):
        members = [runs.members(program.plan, block, program.group) for block in blocks]
        if all(run in on_disk for block in members for run in block):
            continue
        on_segment = functools.partial(report, number)
        result = program.run(blocks, on_segment, interrupted, keep_models=runs.keep_models)
        if result is None:
            break
        new |= runs.take(result, members, on_disk)
        report(number + 1, progress.num_rounds)
    return new
