"""Sweeps: hyper-parameters x seeds in as few compiled programs as their shapes allow.

Numbers vary inside one program.  Whatever changes shapes or data (batch size, local steps, cohort
size, the algorithm itself) makes a group with a program of its own.  A group's runs are cut into
blocks that fit a device.  All runs of a seed see the same cohorts and minibatches, so differences
between configurations are paired, and a block gathers each minibatch once for all configurations.
"""

import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_bytes
from fedjax_sim.engine import NO_PROBES, Probes
from fedjax_sim.evaluation.names import ClientNames, client_names
from fedjax_sim.execution import devices as device_list
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.setup_checks import check_split_keys
from fedjax_sim.simulation.events import Callback
from fedjax_sim.simulation.identity import check_json
from fedjax_sim.simulation.interrupt import deferred_interrupt
from fedjax_sim.simulation.seeds import Seed, seed_names
from fedjax_sim.sweeps.grid import Configuration, Grid, Plan, expand, groups
from fedjax_sim.sweeps.parts import Share, divide, parse_part, shares_of
from fedjax_sim.sweeps.program import Program, Programs
from fedjax_sim.sweeps.result import Sweep, SweepRun
from fedjax_sim.sweeps.slices import Batch, RunNumber, run_slices, wait_for_others
from fedjax_sim.sweeps.store import SweepStore
from fedjax_sim.sweeps.trial import Factory, MakeSetup, RunIdentity, Trials, identities
from fedjax_sim.sweeps.watchers import Watchers, check_watchers
from fedjax_sim.types import Device, Setup


class SweepProgress(NamedTuple):
    """Argument of a progress callback: when a group is compiled, and after every segment."""

    static: Configuration  # the group's values that do not vary
    plan: Plan
    bytes_per_device: int  # that the program needs, by XLA's count
    budget: int  # that the program may need
    slices_done: int  # of the group
    round: int  # of the slice in progress
    num_rounds: int
    runs_done: int  # of the whole sweep, or of its part
    num_runs: int

    @property
    def fraction(self) -> float:
        """Share of the work that is done, in [0, 1]; the slice in progress counts by its rounds."""
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
    part: tuple[int, int] | None = None,
    accept_changed_code: bool = False,
    callbacks: Sequence[Callback] = (),
    on_progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Runs every (configuration, seed) of a grid.

    Static hyper-parameters are passed as Python values, by name: to ``setup`` those that it takes
    (``setup`` is then a function, called twice per combination, first for the checks), to
    ``factory`` the others and those that are parameters of both.  All other hyper-parameters are
    passed to ``factory`` as traced floating-point numbers, so a number that the factory must know,
    such as the f of a robust rule, is static.  If the function takes ``seed``, it is called once
    per seed, and each seed has a setup of its own; seeds whose setups have equal shapes share a
    program.

    A run that diverges is recorded with the round of its divergence and does not affect other runs.
    With a directory, finished slices are kept and not repeated by a later call, also of a larger
    grid.  Several processes that make the same call with the same directory divide the slices, and
    each returns all runs.  Ctrl-C or SIGTERM ends the sweep after the segment in progress; the
    result has the finished slices.

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
        only_finished: return the runs that the directory has; start none, create no directory.
        part: ``(i, n)``: run the i-th of n parts of the grid only, for the jobs of an array that
            share the directory (:func:`~fedjax_sim.sweeps.parts.divide`).  The result also has
            those runs of other parts that are finished; ``missing`` counts the others.
        accept_changed_code: return runs of the directory although the functions compute something
            else now, for example after a change that does not matter or with another version of
            JAX; other runs have the present functions.
        callbacks: functions of an :class:`~fedjax_sim.simulation.events.Event`, called after every
            slice with each evaluation of its runs; ``event.name`` is the configuration.  Runs of a
            slice end together, so "stop" has no effect; "interrupt" ends the sweep.  A
            :class:`~fedjax_sim.callbacks.BestModel` is refused.
        on_progress: called when a group's program is ready and after every segment.

    Raises:
        ValueError: a grid without configurations, a value that is not a number where one is
            needed, contradictory arguments, a budget that one run exceeds, a task with examples
            on the host, a directory that is a file or holds other results, also other seeds of a
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
    check_split_keys(keys)
    values = list(range(keys.shape[0]) if seeds is None else seeds)
    names = seed_names(seeds, keys.shape[0])
    check_bytes(memory=memory)
    check_watchers(callbacks)
    check_json(config, "config")
    if only_finished and directory is None:
        raise ValueError("directory is None; expected the folder whose runs only_finished returns")
    if part is not None:
        parse_part(f"{part[0]}/{part[1]}")
        if directory is None:
            raise ValueError("directory is None; expected the folder that the parts share")
    if jax.process_count() > 1:
        raise ValueError(
            f"jax.distributed connects {jax.process_count()} processes; expected one: a sweep "
            "runs in one process. Divide it among separate jobs with part=(i, n), on the command "
            "line --part I/N"
        )
    configurations = expand(grid)
    if isinstance(static, str):
        raise ValueError(f"static is {static!r}; expected a list of names, such as [{static!r}]")
    trials = Trials(factory, setup, static, execution, probes)
    every = groups(configurations, trials.static)
    for group in every:  # all of them, before the first runs for hours
        members = [
            {name: group.values[name][i] for name in group.names} for i in range(len(group.members))
        ]
        trials.check(group.static, members, values)
        check_json(identity(**group.static) if callable(identity) else identity, "identity")
    where = list(device_list.workers() if devices is None else devices)
    if not where:
        raise ValueError("devices is empty; expected at least one device")
    budget = memory or device_list.memory_limit(where[0])
    root = None if directory is None else pathlib.Path(directory)
    store = SweepStore(
        root, config, create=not only_finished, accept_changed_code=accept_changed_code
    )
    programs = Programs(where, budget)

    new: dict[RunNumber, SweepRun] = {}
    found: dict[RunNumber, SweepRun] = {}
    clients: dict[RunNumber, ClientNames] = {}
    shares = list(shares_of(every, len(names), trials.per_seed))
    own = shares if part is None else divide(shares, part)
    num_runs = sum(len(group.members) * len(numbers) for group, numbers in own)
    run_seconds, stopped = 0.0, False

    def batches(shares: Iterable[Share]) -> Iterator[Batch]:
        for group, numbers in shares:
            trial = trials.make(group.static, values[numbers[0]] if trials.per_seed else None)
            group_keys = keys[np.array(numbers)]
            extra = identity(**group.static) if callable(identity) else identity
            # Without a directory nothing is looked up, and hashing the data would take time.
            known = [RunIdentity("", "", "", "")] * len(numbers)
            if directory is not None:
                known = identities(trial, group.names, group_keys, extra, per_seed=trials.per_seed)
            batch = Batch(
                group, configurations, names, numbers, trial, group_keys, known, store, keep_models
            )
            clients.update(dict.fromkeys(batch.every(), client_names(trial.setup.eval_fn)))
            yield batch

    def report_of(batch: Batch, program: Program) -> Callable[[int, int, int], None]:
        before = len((new.keys() | found.keys()) - set(batch.every()))
        progress = SweepProgress(
            batch.group.static, program.plan, program.compiled.bytes_per_device, budget,
            0, 0, batch.trial.setup.timeline.num_rounds, before, num_runs,
        )  # fmt: skip

        def report(slices: int, round: int, runs: int) -> None:
            if on_progress is not None:
                done = before + runs
                on_progress(progress._replace(slices_done=slices, round=round, runs_done=done))

        return report

    with deferred_interrupt() as signalled:
        watchers = Watchers(callbacks)

        def interrupted() -> bool:
            return signalled() or watchers.interrupted

        pending: Iterable[Batch] = batches(own)
        while not stopped:
            later: list[Batch] = []  # with slices that other processes run
            claims: list[str] = []
            for batch in pending:
                on_disk = batch.on_disk(batch.every())
                if only_finished or len(on_disk) == len(batch.every()):
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
    if part is not None and not stopped:
        for batch in batches(shares):
            found |= batch.on_disk(set(batch.every()) - found.keys() - new.keys())
    runs = found | new
    return Sweep(
        [runs[number]._replace(client_names=clients[number]) for number in sorted(runs)],
        stopped,
        len(runs) - len(new),
        programs.compilations,
        programs.compile_seconds,
        run_seconds,
        len(configurations) * len(names) - len(runs),
    )
