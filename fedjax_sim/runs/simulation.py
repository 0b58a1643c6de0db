"""``simulate``: ``run`` with progress reports, checkpoints and resuming.

Phases: :func:`check` refuses what cannot run, :func:`prepare` returns the compiled functions,
:func:`restore` the state to begin from, :func:`run_segments` the last state, and :func:`result_of`
the simulation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_keys, shapes_of_one
from fedjax_sim.data import largest_input
from fedjax_sim.engine import (
    ClientNames,
    Execution,
    History,
    RunState,
    Scorers,
    check_run,
    client_names,
    counted,
    distributed,
    everywhere,
    offload,
)
from fedjax_sim.runs.events import (
    Action,
    Callback,
    Divergence,
    DivergenceError,
    Listeners,
    every_evaluation,
    need_identity,
    notify,
    strongest,
    with_default,
)
from fedjax_sim.runs.executors import Resident, Streamed
from fedjax_sim.runs.history import Clock
from fedjax_sim.runs.interrupt import deferred_interrupt
from fedjax_sim.runs.options import (
    DEFAULT_OPTIONS,
    Config,
    Options,
    Storage,
    check_options_type,
    check_unused,
    storage_of,
)
from fedjax_sim.runs.pace import Pace, stride
from fedjax_sim.runs.programs import Ahead, Programs, programs_of, trace_first
from fedjax_sim.runs.recorder import Recorder
from fedjax_sim.runs.result import Progress, Record, Simulation
from fedjax_sim.runs.seeds import seed_names
from fedjax_sim.runs.storage import outcome
from fedjax_sim.runs.storage.folders import check_kind
from fedjax_sim.runs.storage.locks import locked
from fedjax_sim.runs.storage.run_identity import RunIdentity, identify
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import FedAlgorithm, Rows, Setup, rows_of


def simulate(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    *,
    callbacks: Sequence[Callback] = (),
    storage: Storage | str | pathlib.Path | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> Simulation:
    """Runs :func:`~fedjax_sim.engine.run` in compiled segments, with files and progress reports.

    With ``n`` keys, n replicas (seeds) run in one compiled program; ``setup.params`` then has a
    leading axis n, and ``setup.timeline`` may have one.  With a folder, the history is written
    to ``history.csv`` segment by segment and the state to ``checkpoints/``.  Calling again with the
    same arguments resumes the run and gives the same bits as an uninterrupted run; a longer
    timeline with the same beginning extends it, unless it has staleness, whose buffers are assigned
    for the whole run.  ``run.json`` holds digests of the data, of what all functions trace to and
    of everything else that identifies the run.  Ctrl-C or SIGTERM ends the run after the segment in
    progress; a second one ends it at once.  ``result.interrupted`` says that rounds are missing,
    and ``result.interrupt_requested`` also reports an interrupt in the last segment, for a loop
    over several runs.

    Functions are compared by what they trace to: calls with equal algorithms, shapes and static
    values compile once.  If the clients of the task are placed over the devices of several
    processes, all processes call this together, with one folder that all can reach; process 0
    writes.

    Args:
        algorithm, setup: as in :func:`~fedjax_sim.engine.run`.
        keys: one key, or n keys ``[n]``.
        callbacks: functions of an :class:`~fedjax_sim.runs.events.Event`, called after every
            segment with each of its evaluations, or objects with some of the methods that
            :mod:`fedjax_sim.runs.events` lists; see :mod:`fedjax_sim.runs.callbacks`.  Without
            another answer a divergence raises.
        storage: folder for history and checkpoints, or an
            :class:`~fedjax_sim.runs.options.Storage`; None keeps everything in memory.
        options: execution, probes, names of the seeds, evaluation of the initial model, length of
            segments (:class:`~fedjax_sim.runs.options.Options`).

    Raises:
        ValueError: contradictory arguments, a folder that is a file or holds other results, or
            damaged files.
        ~fedjax_sim.runs.storage.locks.FolderInUseError: another process works in the folder.
        OSError: the folder cannot be written; everything up to the last checkpoint is kept.
        ~fedjax_sim.runs.events.DivergenceError: a server state is no longer finite, and no
            callback answers otherwise (:class:`~fedjax_sim.runs.events.Divergence`).

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
        >>> objective = lambda w, batch, key: (batch["x"][:, 0] * w - 2) ** 2
        >>> task = fs.empirical_task(objective, data, fs.epochs(1, batch_size=2))
        >>> timeline = fs.timelines.full(30, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, np.float32(0))
        >>> result = simulate(fs.fedavg(0.1), setup, jax.random.key(0))
        >>> round(float(result.state.server.params), 3)
        2.0
        >>> figure = result.plot("local_steps")
        >>> figure.axes[0].get_ylabel()
        'local steps'
    """
    call = check(algorithm, setup, keys, callbacks, storage, options)
    notify(call.callbacks, "begin", "")
    result = execute(prepare(call, trace=call.storage.path is not None))
    notify(call.callbacks, "finished", "", result)
    return result


class Call(NamedTuple):
    """Arguments of one simulation, checked."""

    algorithm: FedAlgorithm
    setup: Setup
    keys: Array
    names: Sequence[str]  # of the seeds
    callbacks: Sequence[Callback]
    storage: Storage
    config: Config
    options: Options
    execution: Execution | None
    name: str = ""  # in a comparison
    seeds_done: int = 0  # of seeds that run one after the other
    num_seeds: int = 1

    @property
    def batched(self) -> bool:
        """True if the states have an axis of seeds."""
        return self.keys.ndim == 1


def check(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    callbacks: Sequence[Callback],
    storage: Storage | str | pathlib.Path | None,
    options: Options,
) -> Call:
    """Returns the arguments of a simulation, all of them checked, before anything is compiled."""
    check_keys(keys)
    check_options_type(options)
    storage, callbacks = storage_of(storage), with_default(callbacks, Divergence("raise"))
    check_unused("fs.simulate", options, "memory")
    count = keys.shape[0] if keys.ndim else None
    names = seed_names(options.seeds, count or 1)
    if callable(storage.config):
        raise ValueError(
            f"storage.config is {storage.config!r:.60}; expected a dict of values that JSON has: "
            "fs.simulate has one algorithm"
        )
    execution = options.strategy
    check_run(algorithm, setup, count, execution=execution, eval_initial=options.eval_initial)
    if storage.path is not None:
        check_kind(storage.path, "a run")
    config = storage.config or {}
    return Call(algorithm, setup, keys, names, callbacks, storage, config, options, execution)


def check_stored(
    algorithm: FedAlgorithm, setup: Setup, keys: Array, storage: Storage, options: Options
) -> None:
    """Refuses a folder with another run than the one that :func:`simulate` would continue."""
    call = check(algorithm, setup, keys, (), storage, options)
    if storage.path is not None and (folder := RunFolder(storage.path)).exists:
        run = identity_of(prepare(call, trace=False))
        assert run is not None
        folder.check(run)


class Prepared(NamedTuple):
    """A simulation that can start."""

    call: Call
    setup: Setup  # with its timeline on the host
    clients: ClientNames  # names of the clients that are evaluated
    scorers: Scorers
    compiled: Programs
    step: int  # most rounds of a segment
    about: Rows  # algorithm and setup as texts
    ahead: Ahead | None = None  # begins to compile the first segment, if it was traced


def prepare(call: Call, *, trace: bool) -> Prepared:
    """Returns the compiled functions of a simulation; ``trace``: errors come before the folder."""
    options, setup = call.options, call.setup
    clients = client_names(setup.eval_fn)
    compiled = programs_of(
        call.algorithm, setup, batched=call.batched, execution=call.execution, probes=options.probes
    )
    scorers, rounds = Scorers(setup.eval_fn), setup.timeline.num_rounds
    step = stride(rounds, setup.eval_every)
    params = shapes_of_one(setup.params, batched=call.batched)
    if every_evaluation(call.callbacks) or scorers.are_large(
        params, step // setup.eval_every * len(call.names)
    ):
        step = stride(rounds, setup.eval_every, single=True)
    ahead = None
    if trace:
        ahead = trace_first(compiled, setup, call.keys, step, call.storage.path)
    setup = dataclasses.replace(setup, timeline=jax.tree.map(np.asarray, setup.timeline))
    about = {"algorithm": repr(call.algorithm).partition("\n")[0]} | rows_of(setup)
    return Prepared(call, setup, clients, scorers, compiled, step, about, ahead)


class Begun(NamedTuple):
    """A simulation whose folder is locked and read."""

    state: RunState  # after ``done`` rounds
    done: int
    clock: Clock
    store: RunFolder | None
    listeners: Listeners
    recorder: Recorder
    action: Action = None  # of the callbacks, for what earlier calls recorded
    local_steps: Any = 0  # [n] int    before, of a run that selects clients


class Ended(NamedTuple):
    """A simulation after its last segment."""

    state: RunState
    done: int
    action: Action
    interrupt_requested: bool
    run_seconds: float


def execute(prepared: Prepared) -> Simulation:
    """Runs the rest of a simulation, in its folder if it has one."""
    with contextlib.ExitStack() as stack:
        folder = prepared.call.storage.path
        if folder is not None:
            stack.enter_context(locked(folder))
        begun = restore(prepared)
        ended = run_segments(prepared, begun, stack)
    return result_of(prepared, begun, ended)


def restore(prepared: Prepared) -> Begun:
    """Returns the state to begin from: the first one, or that of the newest checkpoint.

    Raises:
        ValueError: the folder holds another run, or its files are damaged.
        DivergenceError: the run diverged in an earlier call.
    """
    call, setup, compiled = prepared.call, prepared.setup, prepared.compiled
    clock, num_rounds = Clock(setup.timeline, len(call.names)), setup.timeline.num_rounds
    state = _first_state(prepared)
    run, store, folder = identity_of(prepared), None, call.storage.path
    values = None if run is None else run.values
    listeners = Listeners(call.callbacks, call.name, call.names, num_rounds, folder, values)
    if folder is not None and run is not None:
        store = RunFolder(folder)
        store.claim(
            run,
            lambda: outcome.describe(
                call.algorithm, setup, call.names, clock, batched=call.batched
            ),
            -(-num_rounds // setup.eval_every),
            prepared.clients,
        )
        state = store.restore(state)
    probes = list(call.options.probes.client)
    recorder = Recorder(call.names, clock, probes, listeners, store)
    done = int(np.asarray(state.round).max())
    before = np.array(counted(state).get("local_steps", 0))
    begun = Begun(state, done, clock, store, listeners, recorder, local_steps=before)
    action = _after_divergence(prepared, begun, state, restored=True)
    if done < num_rounds:
        action = strongest([action, recorder.resume(done, compiled.functions.parts.execution)])
    return begun._replace(action=action)


def run_segments(prepared: Prepared, begun: Begun, stack: contextlib.ExitStack) -> Ended:
    """Runs segment after segment until the last round, a callback's action or a signal."""
    call, setup, compiled = prepared.call, prepared.setup, prepared.compiled
    recorder, state, done = begun.recorder, begun.state, begun.done
    num_rounds, action = setup.timeline.num_rounds, begun.action
    pace = Pace(prepared.step, setup.eval_every, call.options.segment_seconds)
    execution = _executor(prepared, done)
    signalled = stack.enter_context(deferred_interrupt())
    stack.enter_context(execution.context)
    run_seconds = 0.0

    def interrupted() -> bool:
        return distributed.any_of(signalled())

    def report(done: int, metrics: Mapping[str, float]) -> None:
        turn = call.seeds_done, call.num_seeds, call.name
        begun.listeners.progress(Progress(done, num_rounds, metrics, *turn))

    def record(history: History) -> Action:
        part = history if call.batched else jax.tree.map(lambda x: x[None], history)
        metrics = prepared.scorers(part.metrics, np.shape(part.round))
        return recorder.add(part._replace(metrics=metrics), state)

    # A run that was interrupted before its first round has a checkpoint with the evaluation.
    begins = not done and (begun.store is None or begun.store.checkpoints.newest is None)
    if begins and call.options.eval_initial and setup.eval_fn is not None:
        put = everywhere(setup.task)
        initial = compiled.evaluation(
            setup.task, put(setup.eval_fn), put(setup.timeline[:1]), state, put(call.keys)
        )
        action = strongest([action, record(jax.tree.map(np.asarray, initial))])
    while done < num_rounds and action is None and not interrupted():
        last = execution.end(pace.after(done, num_rounds))
        began = time.perf_counter()
        before = compiled.functions.waited
        state, history = execution(done, last, state)
        seconds = time.perf_counter() - began - (compiled.functions.waited - before)
        run_seconds += seconds
        pace.took(last - done, float(distributed.gathered(seconds).max()))
        done = last
        action = strongest([record(history), _after_divergence(prepared, begun, state)])
        if begun.store is not None:
            begun.store.save(state, call.storage.checkpoint_seconds)
        report(done, recorder.latest)
    if done == begun.done:  # nothing was left to run, or to run now
        report(done, {})
    recorder.finish(state)
    requested = action == "interrupt" or interrupted()
    return Ended(state, done, action, requested, run_seconds)


def result_of(prepared: Prepared, begun: Begun, ended: Ended) -> Simulation:
    """Returns the result of a simulation."""
    call, clock, done, resumed = prepared.call, begun.clock, ended.done, begun.done
    history = begun.recorder.history()
    if history is not None and not call.batched:
        history = jax.tree.map(lambda x: x[0], history)
    steps = clock.local_steps[:, done - 1] - (clock.local_steps[:, resumed - 1] if resumed else 0)
    if ended.state.selection != ():
        steps = np.asarray(ended.state.selection.local_steps) - begun.local_steps
    missing = done < prepared.setup.timeline.num_rounds
    return Simulation(
        ended.state,
        history,
        done,
        ended.interrupt_requested and missing,
        prepared.compiled.functions.take_seconds(),
        ended.run_seconds,
        int(steps.sum()) if done else 0,
        Record(
            call.names,
            clock,
            list(call.options.probes.client),
            None if begun.store is None else RunFolder(begun.store.path),  # keeps no setup alive
            prepared.clients,
            prepared.about,
            call.algorithm.requires.partial_model,
        ),
        stopped=ended.action == "stop" and missing,
        interrupt_requested=ended.interrupt_requested,
    )


def _first_state(prepared: Prepared) -> RunState:
    """Returns the state before the first round, with the clients' table where the task has it."""
    call, setup = prepared.call, prepared.setup
    task, put, probes = setup.task, everywhere(setup.task), call.options.probes
    state = prepared.compiled.initial(task, put(setup.params), put(setup.timeline))
    if isinstance(task.placement, offload.OnHost) and task.placement.states:
        if probes.run and jax.tree.leaves(state.clients):
            raise ValueError(
                f"probes.run is {sorted(probes.run)}; expected none, since the clients' states are "
                "on the host and a round has those of its clients only"
            )
        clients = offload.table(state.clients, task.num_clients, call.keys.ndim)
        state = state._replace(clients=clients)
    return state


def identity_of(prepared: Prepared) -> RunIdentity | None:
    """Returns what makes two calls the same run; None if nobody asks, since it takes digests."""
    call = prepared.call
    if call.storage.path is None and not need_identity(call.callbacks):
        return None
    folder = call.storage.path
    found = None if folder is None else RunFolder(folder)
    return identify(
        prepared.compiled.traces,
        call.algorithm.spec,
        call.config,
        prepared.setup,
        call.keys,
        call.names,
        eval_initial=call.options.eval_initial,
        folder=folder,
        known=found.identity() if found is not None and found.exists else {},
        accept_changed_code=call.storage.accept_changed_code,
    )


def _executor(prepared: Prepared, done: int) -> Resident | Streamed:
    """Returns what runs the rounds from ``done`` on."""
    call, setup = prepared.call, prepared.setup
    task, timeline = setup.task, setup.timeline
    if isinstance(task.placement, offload.OnHost):
        loads = offload.plan(task, timeline, done, setup.eval_every, prepared.step)
        model = shapes_of_one(setup.params, batched=call.batched)
        arguments = task, setup.eval_fn, timeline, call.keys, loads, model
        return Streamed(prepared.compiled, *arguments)
    arguments = task, setup.eval_fn, timeline, call.keys, everywhere(task)
    return Resident(prepared.compiled, *arguments, most=prepared.step)


def _after_divergence(
    prepared: Prepared, begun: Begun, state: RunState, *, restored: bool = False
) -> Action:
    """Asks the callbacks what follows if a server state is no longer finite."""
    diverged_at = np.atleast_1d(np.asarray(state.diverged_at))
    if not diverged_at.any():
        return None
    store, names = begun.store, prepared.call.names
    error = _divergence(diverged_at, names, store, prepared.setup, restored=restored)
    try:
        return begun.listeners.diverged(diverged_at, error)
    except DivergenceError:
        if store is not None and not restored:
            store.write_outcome(state)
        raise


def _divergence(
    diverged_at: np.ndarray,
    names: Sequence[str],
    store: RunFolder | None,
    setup: Setup,
    *,
    restored: bool,
) -> DivergenceError:
    which = ", ".join(f"{n} in round {r}" for n, r in zip(names, diverged_at, strict=True) if r)
    kept = "no checkpoint was kept (no storage given)"
    if store is not None:
        last, folder = store.checkpoints.newest, store.checkpoints.folder
        if last is None:
            kept = f"no checkpoint precedes it in {folder}"
        elif restored:
            kept = f"an earlier call recorded it in the checkpoint of round {last} in {folder}"
        else:
            kept = f"the last good checkpoint is round {last} in {folder}"
    hint = _first_round_hint(diverged_at, setup)
    return DivergenceError(f"server state is not finite: replica {which}; {kept}{hint}")


def _first_round_hint(diverged_at: np.ndarray, setup: Setup) -> str:
    """Returns where to look if a run diverged in its first round."""
    if 1 not in np.atleast_1d(diverged_at):
        return ""
    data = next(iter(getattr(setup.task.oracle, "args", ())), None)
    largest = largest_input(getattr(data, "examples", ()))
    scale = f"the scale of the inputs ({largest})" if largest else "the scale of the inputs"
    return (
        f". For a divergence in round 1 check the learning rate, {scale} and the loss of the "
        "initial model (eval_initial=True)"
    )
