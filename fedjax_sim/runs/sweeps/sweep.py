"""Sweeps: hyper-parameters x seeds in as few compiled programs as their shapes allow.

Numbers vary inside one program.  Whatever changes shapes or data (batch size, local steps, cohort
size, the algorithm itself) makes a group with a program of its own.  A group's runs are cut into
blocks that fit a device.  All runs of a seed see the same cohorts and minibatches, so differences
between configurations are paired, and a block gathers each minibatch once for all configurations.

Phases: :func:`check` refuses what cannot run, :func:`open_store` opens the folder,
:func:`run_groups` compiles and runs what is missing, and :func:`result_of` returns all runs.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_split_keys
from fedjax_sim.engine import ClientNames, client_names
from fedjax_sim.engine import devices as device_list
from fedjax_sim.runs.events import Callback, notify
from fedjax_sim.runs.interrupt import deferred_interrupt
from fedjax_sim.runs.options import (
    DEFAULT_OPTIONS,
    Options,
    Storage,
    check_options_type,
    check_unused,
    storage_of,
)
from fedjax_sim.runs.seeds import Seed, seed_names
from fedjax_sim.runs.sweeps.grid import (
    Configuration,
    Grid,
    Group,
    Part,
    Plan,
    Share,
    divide,
    expand_all,
    shares_of,
)
from fedjax_sim.runs.sweeps.program import Program, Programs
from fedjax_sim.runs.sweeps.result import Sweep, SweepRun
from fedjax_sim.runs.sweeps.slices import Batch, RunNumber, run_slices, wait_for_others
from fedjax_sim.runs.sweeps.store import SweepStore, mark_finished, run_key
from fedjax_sim.runs.sweeps.trial import (
    ALGORITHM,
    Factory,
    MakeSetup,
    RunDigests,
    Trial,
    Trials,
    identities,
)
from fedjax_sim.runs.sweeps.watchers import Watchers, check_watchers
from fedjax_sim.types import FedAlgorithm, Rows, Setup, common_rows, rows_of


class SweepProgress(NamedTuple):
    """Argument of a callback's ``progress``: when a group is compiled, and after every segment."""

    static: Configuration  # the group's values that do not vary
    plan: Plan
    bytes_per_device: int  # that the program needs, by XLA's count
    budget: int  # that the program may need
    slices_done: int  # of the group
    round: int  # of the slice in progress
    num_rounds: int
    runs_done: int  # of the whole sweep, or of its part
    num_runs: int
    share: float | None = None  # of the work that is done; None: as runs and rounds say

    name = ""  # a sweep is one work, of all algorithms

    @property
    def fraction(self) -> float:
        """Share of the work that is done, in [0, 1]; the slice in progress counts by its rounds."""
        if self.share is not None:
            return self.share
        plan = self.plan
        runs = plan.width * plan.seeds * len(plan.slices[0]) if self.round < self.num_rounds else 0
        done = self.runs_done + runs * self.round / max(self.num_rounds, 1)
        return min(done / max(self.num_runs, 1), 1.0)

    @property
    def status(self) -> str:
        """Runs, slice and round as a text."""
        slices = len(self.plan.slices)
        return (
            f"{self.runs_done}/{self.num_runs} runs  slice "
            f"{min(self.slices_done + 1, slices)}/{slices}  round {self.round}/{self.num_rounds}"
        )


def sweep(
    factories: Factory | Mapping[str, Factory],
    setup: Setup | MakeSetup,
    grid: Grid | Mapping[str, Grid] | Part,
    keys: Array,
    *,
    callbacks: Sequence[Callback] = (),
    storage: Storage | str | pathlib.Path | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> Sweep:
    """Runs every (configuration, seed) of a grid, for one algorithm or for several.

    Static hyper-parameters are passed as Python values, by name: to ``setup`` those that it takes
    (``setup`` is then a function, called twice per combination, first for the checks), to the
    factory the others and those that are parameters of both.  All other hyper-parameters are
    passed to the factory as traced floating-point numbers.  Static are the parameters of ``setup``,
    texts, flags and None, and numbers for parameters whose annotation has no floating-point
    numbers, such as ``f: int`` of a robust rule (:mod:`fedjax_sim.runs.sweeps.trial`).  If the
    function ``setup`` takes ``seed``, it is called once per seed, and each seed has a setup of its
    own; seeds whose setups have equal shapes share a program.

    A run that diverges is recorded with the round of its divergence and does not affect other runs.
    With a folder, finished slices are kept and not repeated by a later call, also of a larger
    grid.  Several processes that make the same call with the same folder divide the slices, and
    each returns all runs.  Ctrl-C or SIGTERM ends the sweep after the segment in progress; the
    result has the finished slices.

    All devices of this process work (:func:`~fedjax_sim.engine.execution.devices.workers`), inside
    ``jax.default_device(device)`` that one alone; each runs configurations and seeds of its own.

    Args:
        factories: function of the hyper-parameters that returns an algorithm, such as
            :func:`~fedjax_sim.fedavg`; or a mapping of such functions by algorithm.  With several,
            every configuration has the name as ``algorithm``, which ``setup`` may take.
        setup: setup of all configurations, or a function of static hyper-parameters; ``params``
            has a leading axis n, ``timeline`` may have one.  A function of ``seed`` returns the
            setup of one seed, without that axis.
        grid: ``{name: values}`` for the Cartesian product, or a list of configurations, which need
            not have the same names.  With several factories, one grid for all, or a mapping of
            grids by algorithm.  :class:`Part(grid, i, n) <fedjax_sim.runs.sweeps.grid.Part>` runs
            the i-th of n parts of it only.
        keys: one per seed, ``[n]``.
        callbacks: functions of an :class:`~fedjax_sim.runs.events.Event`, called after every
            slice with each evaluation of its runs, whose ``name`` is the configuration, or objects
            with methods ``begin``, ``progress`` (a :class:`SweepProgress`, when a group's program
            is ready and after every segment) and ``poll``.  Runs of a slice end together, so "stop"
            has no effect; "interrupt" ends the sweep.  A
            :class:`~fedjax_sim.runs.callbacks.BestModel` is refused.
        storage: folder for finished slices, or a
            :class:`~fedjax_sim.runs.options.Storage` that may keep the final models, and
            whose ``config`` may be a function of the configuration.
        options: execution, probes, names of the seeds and the memory that a program may need
            (:class:`~fedjax_sim.runs.options.Options`).

    Raises:
        ValueError: a grid without configurations, a value that is not a number where one is
            needed, contradictory arguments, a budget that one run exceeds, a task with examples
            on the host, a folder that is a file or holds other results, also other seeds of a
            configuration with other settings, several processes connected by ``jax.distributed``.

    Example:
        >>> import jax
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
        'learning rate'
    """
    plan = check(factories, setup, grid, keys, callbacks, storage, options)
    notify(callbacks, "begin", "")
    store = open_store(plan)
    result = result_of(plan, run_groups(plan, store, programs_for(options)))
    if not result.missing:
        mark_finished(plan.storage.path)
    return result


def finished_runs(
    factories: Factory | Mapping[str, Factory],
    setup: Setup | MakeSetup,
    grid: Grid | Mapping[str, Grid] | Part,
    keys: Array,
    *,
    storage: Storage | str | pathlib.Path,
    options: Options = DEFAULT_OPTIONS,
) -> Sweep:
    """Returns the runs of a sweep that its folder has; starts none and writes nothing.

    Args:
        factories, setup, grid, keys, storage, options: as in :func:`sweep`.  The runs are verified
            to be those of these arguments.

    Raises:
        ValueError: as :func:`sweep`, or no folder.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((2, 1), np.float32)}, np.array([0, 1, 2]))
        >>> task = fs.empirical_task(lambda w, b, key: b["x"] @ w, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 2, task.num_steps), np.zeros((1, 1)))
        >>> keys = jax.random.split(jax.random.key(0), 1)
        >>> finished_runs(fs.fedavg, setup, {"lr": [0.1]}, keys, storage="no_such_folder").missing
        1
    """
    plan = check(factories, setup, grid, keys, (), storage, options)
    if plan.storage.path is None:
        raise ValueError("storage is None; expected the folder whose finished runs are read")
    store = open_store(plan, create=False)
    outcome = Outcome({}, {}, {}, False, False, 0.0, None)
    for batch in plan.batches(store, plan.shares, outcome.known):
        outcome.found.update(batch.on_disk(batch.every()))
    return result_of(plan, outcome)


class Known(NamedTuple):
    """Facts about a run's setup."""

    clients: ClientNames  # of the clients that are evaluated, by split
    about: Rows


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """Arguments of a sweep, checked."""

    configurations: Sequence[Configuration]
    trials: Trials
    algorithms: Mapping[int, FedAlgorithm]  # by configuration
    keys: Array
    seeds: Sequence[str]  # names
    values: Sequence[Seed]
    shares: Sequence[Share]  # of all parts
    part: Part | None
    callbacks: Sequence[Callback]
    storage: Storage
    options: Options

    @property
    def own(self) -> Sequence[Share]:
        """The shares that this call runs."""
        part = self.part
        return self.shares if part is None else divide(self.shares, (part.number, part.of))

    @property
    def num_runs(self) -> int:
        """Runs that this call runs or finds."""
        return sum(len(group.members) * len(numbers) for group, numbers in self.own)

    def batches(
        self, store: SweepStore, shares: Iterable[Share], known: dict[RunNumber, Known]
    ) -> Iterator[Batch]:
        """Yields the runs of these shares; adds what is known of their setups to ``known``."""
        for group, numbers in shares:
            seed = self.values[numbers[0]] if self.trials.per_seed else None
            trial = self.trials.make(group.static, seed)
            keys = self.keys[np.array(numbers)]
            batch = Batch(
                group,
                self.configurations,
                self.seeds,
                numbers,
                trial,
                self.algorithms,
                keys,
                self._identities(group, numbers, trial, keys),
                store,
                self.storage.keep_models,
            )
            about = Known(client_names(trial.setup.eval_fn), rows_of(trial.setup))
            known.update(dict.fromkeys(batch.every(), about))
            yield batch

    def _identities(
        self, group: Group, numbers: Sequence[int], trial: Trial, keys: Array
    ) -> dict[RunNumber, RunDigests]:
        """Returns the identities of runs, digests of the data once per further values."""
        known: dict[Any, Sequence[RunDigests]] = {}
        result = {}
        for i in group.members:
            extra = self.extra(self.configurations[i])
            name = run_key(extra, "")
            if name not in known:
                # Without a folder nothing is looked up, and hashing the data would take time.
                empty = [RunDigests(*[""] * len(RunDigests._fields))] * len(numbers)
                on_disk = self.storage.path is not None
                per_seed = self.trials.per_seed
                known[name] = (
                    identities(trial, group.names, keys, extra, per_seed=per_seed)
                    if on_disk
                    else empty
                )
            result |= {(i, j): one for j, one in zip(numbers, known[name], strict=True)}
        return result

    def extra(self, configuration: Configuration) -> Mapping[str, Any]:
        """Returns what a run's results depend on besides its configuration and its arrays."""
        storage = self.storage
        return storage.config_of(configuration) if callable(storage.config) else {}


class Outcome(NamedTuple):
    """Runs after the last slice."""

    new: dict[RunNumber, SweepRun]  # computed by this call
    found: dict[RunNumber, SweepRun]  # on disk
    known: dict[RunNumber, Known]
    stopped: bool  # before the last slice
    interrupted: bool  # perhaps after it
    run_seconds: float
    programs: Programs | None  # None: nothing could be compiled


def check(
    factories: Factory | Mapping[str, Factory],
    setup: Setup | MakeSetup,
    grid: Grid | Mapping[str, Grid] | Part,
    keys: Array,
    callbacks: Sequence[Callback],
    storage: Storage | str | pathlib.Path | None,
    options: Options,
) -> SweepPlan:
    """Returns the arguments of a sweep, checked before anything is compiled or written."""
    check_split_keys(keys)
    check_options_type(options)
    storage, part = storage_of(storage), grid if isinstance(grid, Part) else None
    check_unused("fs.sweep", options, "eval_initial", "segment_seconds")
    check_unused("fs.sweep", storage, "checkpoint_seconds")
    names = seed_names(options.seeds, keys.shape[0])
    values = list(range(keys.shape[0]) if options.seeds is None else options.seeds)
    check_watchers(callbacks)
    if part is not None and storage.path is None:
        raise ValueError("storage is None; expected the folder that the parts share")
    if jax.process_count() > 1:
        raise ValueError(
            # Runs of a sweep do not communicate, so a connection would only tie their failures
            # together.
            f"jax.distributed connects {jax.process_count()} processes; expected one: a sweep "
            "runs in one process. Divide it among separate jobs with fs.Part(grid, i, n), on the "
            "command line --part I --parts N"
        )
    several = list(factories) if isinstance(factories, Mapping) else None
    configurations = expand_all(grid if part is None else part.grid, several)
    trials = Trials(factories, setup, options.strategy, options.probes)
    every = trials.groups(configurations)
    shares = list(shares_of(every, len(names), trials.per_seed))
    algorithms: dict[int, FedAlgorithm] = {}
    for group in every:  # all of them, before the first runs for hours
        members = [
            {name: group.values[name][i] for name in group.names} for i in range(len(group.members))
        ]
        made = trials.check(group.static, members, values)
        algorithms |= zip(group.members, made, strict=True)
    plan = SweepPlan(
        configurations, trials, algorithms, keys, names, values, shares, part, callbacks, storage,
        options,
    )  # fmt: skip
    for configuration in configurations:
        plan.extra(configuration)
    return plan


def open_store(plan: SweepPlan, *, create: bool = True) -> SweepStore:
    """Returns the sweep's folder, with the runs that it has."""
    storage = plan.storage
    return SweepStore(
        storage.path,
        None if callable(storage.config) else storage.config,
        create=create,
        accept_changed_code=storage.accept_changed_code,
    )


def programs_for(
    options: Options, filled: Callable[[int], int] = int, rungs: Sequence[int] = ()
) -> Programs:
    """Returns an empty collection of programs for the devices of this process."""
    where = device_list.workers()
    # Independent of other processes, so that a resumed sweep has the same plan and the same bits.
    return Programs(where, options.memory or device_list.memory_limit(where[0]), filled, rungs)


def run_groups(plan: SweepPlan, store: SweepStore, programs: Programs) -> Outcome:
    """Compiles and runs the groups that the folder does not have, slice by slice."""
    new: dict[RunNumber, SweepRun] = {}
    found: dict[RunNumber, SweepRun] = {}
    known: dict[RunNumber, Known] = {}
    run_seconds, stopped, num_runs = 0.0, False, plan.num_runs

    def report_of(batch: Batch, program: Program) -> Callable[[int, int, int], None]:
        before = len((new.keys() | found.keys()) - set(batch.every()))
        progress = SweepProgress(
            batch.group.static, program.plan, program.compiled.bytes_per_device, programs.budget,
            0, 0, batch.trial.setup.timeline.num_rounds, before, num_runs,
        )  # fmt: skip

        def report(slices: int, round: int, runs: int) -> None:
            now = progress._replace(slices_done=slices, round=round, runs_done=before + runs)
            notify(plan.callbacks, "progress", now)

        return report

    with deferred_interrupt() as signalled:
        watchers = Watchers(plan.callbacks)

        def interrupted() -> bool:
            return signalled() or watchers.interrupted()

        pending: Iterable[Batch] = plan.batches(store, plan.own, known)
        while not stopped:
            later: list[Batch] = []  # with slices that other processes run
            claims: list[str] = []
            for batch in pending:
                on_disk = batch.on_disk(batch.every())
                if len(on_disk) == len(batch.every()):
                    found |= on_disk
                    continue
                if interrupted():
                    found |= on_disk
                    stopped = True
                    break
                program = programs.prepare(batch.trial, batch.group, batch.keys)
                began = time.perf_counter()
                done = run_slices(
                    program, batch, on_disk, report_of(batch, program), interrupted, watchers.runs
                )
                run_seconds += time.perf_counter() - began
                new |= done.new
                found |= done.found
                missing = len(done.new) + len(done.found) < len(batch.every())
                if missing and interrupted():
                    stopped = True
                    break
                if missing:
                    later.append(batch)
                    claims += done.claimed
            if not later:
                break
            wait_for_others(store, claims, interrupted)
            pending = later
        ended = interrupted()
    if plan.part is not None and not stopped:
        for batch in plan.batches(store, plan.shares, known):
            found |= batch.on_disk(set(batch.every()) - found.keys() - new.keys())
    return Outcome(new, found, known, stopped, ended, run_seconds, programs)


def result_of(plan: SweepPlan, outcome: Outcome) -> Sweep:
    """Returns all runs in the order of the grid."""
    runs, programs, known = outcome.found | outcome.new, outcome.programs, outcome.known
    return Sweep(
        [runs[number]._replace(client_names=known[number].clients) for number in sorted(runs)],
        outcome.stopped,
        len(runs) - len(outcome.new),
        0 if programs is None else programs.compilations,
        0.0 if programs is None else programs.compile_seconds,
        outcome.run_seconds,
        len(plan.configurations) * len(plan.seeds) - len(runs),
        common_rows(known[number].about for number in sorted(runs)),
        tuple(sorted(plan.trials.taken - {ALGORITHM})),
    )
