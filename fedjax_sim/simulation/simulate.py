"""``simulate``: ``run`` with progress reports, checkpoints and resuming."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, is_concrete
from fedjax_sim.data.inspection import largest_input
from fedjax_sim.engine import NO_PROBES, History, Probes, check_algorithm
from fedjax_sim.evaluation.names import client_names
from fedjax_sim.evaluation.state import check_periods
from fedjax_sim.execution import distributed, offload
from fedjax_sim.execution.placement import everywhere
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.setup_checks import check_batch, check_keys, check_setup, shapes_of_one
from fedjax_sim.simulation import outcome
from fedjax_sim.simulation.events import (
    Action,
    Callback,
    Listeners,
    check_callbacks,
    every_evaluation,
    need_identity,
)
from fedjax_sim.simulation.folders import check_kind
from fedjax_sim.simulation.functions import share_functions
from fedjax_sim.simulation.history import Clock
from fedjax_sim.simulation.identity import check_json
from fedjax_sim.simulation.interrupt import deferred_interrupt
from fedjax_sim.simulation.locks import locked
from fedjax_sim.simulation.programs import (
    Pace,
    Resident,
    Streamed,
    programs,
    stride,
    trace_first,
)
from fedjax_sim.simulation.recorder import Recorder
from fedjax_sim.simulation.result import Progress, Record, Simulation
from fedjax_sim.simulation.seeds import Seed, seed_names
from fedjax_sim.simulation.store import Store, identify
from fedjax_sim.types import FedAlgorithm, Setup

SEGMENT_SECONDS = 30.0


class DivergenceError(FloatingPointError):
    """The server state of a run became infinite or NaN."""


def simulate(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
    eval_initial: bool = False,
    evals_per_segment: int | None = None,
    callbacks: Sequence[Callback] = (),
    directory: str | pathlib.Path | None = None,
    replicas: Sequence[Seed] | None = None,
    config: Mapping[str, Any] | None = None,
    checkpoint_seconds: float = 5.0,
    segment_seconds: float = SEGMENT_SECONDS,
    on_divergence: Literal["raise", "stop", "record"] = "raise",
    on_progress: Callable[[Progress], None] | None = None,
) -> Simulation:
    """Runs :func:`~fedjax_sim.engine.run` in compiled segments, with files and progress reports.

    With ``n`` keys, n replicas (seeds) run in one compiled program; ``setup.params`` then has a
    leading axis n, and ``setup.timeline`` may have one.  With a directory, the history is written
    to ``history.csv`` segment by segment and the state to ``checkpoints/``.  Calling again with the
    same arguments resumes the run and gives the same bits as an uninterrupted run; a longer
    timeline with the same beginning extends it, unless it has staleness, whose buffers are assigned
    for the whole run.  ``run.json`` holds digests of the algorithm, the functions, the data and
    everything else that identifies the run.  Ctrl-C or SIGTERM ends the run after the segment in
    progress; a second one ends it at once.  ``result.interrupted`` says that rounds are missing,
    and ``result.interrupt_requested`` also reports an interrupt in the last segment, for a loop
    over several runs.

    Algorithms are compared by value: calls with equal algorithms, shapes and static values compile
    once.  If the clients of the task are placed over the devices of several processes, all
    processes call this together, with one directory that all can reach; process 0 writes.

    Args:
        algorithm, setup, execution, probes: as in :func:`~fedjax_sim.engine.run`.
        keys: one key, or n keys ``[n]``.
        eval_initial: also evaluate the initial model, as round 0.
        evals_per_segment: evaluations per dispatch, whatever time they take; default: at most a
            twentieth of the run, or one if a callback needs every model, within
            ``segment_seconds``.
        callbacks: functions of an :class:`~fedjax_sim.simulation.events.Event`, called after every
            segment with each of its evaluations; see :mod:`fedjax_sim.callbacks`.
        directory: folder for history and checkpoints; None keeps everything in memory.
        replicas: names of the replicas in the history; default "0", "1", ...
        config: JSON-able description of the run; resuming with another one is refused.
        checkpoint_seconds: least time between two checkpoints, which are written after segments.
        segment_seconds: most seconds of a segment, after which signals act and checkpoints are
            written; at least one round.  Lengths follow from the time of the segments before,
            planned for a third of this time.  Results do not depend on them.
        on_divergence: when a server state is no longer finite, "raise" a DivergenceError, "stop"
            (when all replicas have diverged) or "record" and continue.  A run that diverged in an
            earlier call is not continued under "raise" and "stop".
        on_progress: called after every segment.

    Raises:
        ValueError: contradictory arguments, a directory that is a file or holds other results, or
            damaged files.
        ~fedjax_sim.simulation.locks.FolderInUseError: another process works in the directory.
        OSError: the directory cannot be written; everything up to the last checkpoint is kept.
        DivergenceError: see ``on_divergence``.

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
    check_keys(keys)
    if evals_per_segment is not None:
        check_count(1, evals_per_segment=evals_per_segment)
    batched = keys.ndim == 1
    names = seed_names(replicas, keys.shape[0] if batched else 1, "replicas")
    check_setup(setup)
    check_batch(setup, len(names) if batched else None)
    check_periods(setup, eval_initial=eval_initial)
    check_algorithm(algorithm, setup)
    check_json(config, "config")
    if not is_concrete(checkpoint_seconds) or not checkpoint_seconds >= 0:
        raise ValueError(
            f"checkpoint_seconds is {checkpoint_seconds!r}; expected a number of at least 0"
        )
    if not is_concrete(segment_seconds) or not segment_seconds > 0:
        raise ValueError(f"segment_seconds is {segment_seconds!r}; expected a positive number")
    if on_divergence not in ("raise", "stop", "record"):
        raise ValueError(
            f"on_divergence is {on_divergence!r}; expected 'raise', 'stop' or 'record'"
        )
    folder = None if directory is None else pathlib.Path(directory)
    if folder is not None:
        check_kind(folder, "a run")

    clients = client_names(setup.eval_fn)  # equal functions may have other names
    setup = share_functions(setup)
    compiled = programs(algorithm, setup, batched=batched, execution=execution, probes=probes)
    compiled_before = compiled.seconds
    task, eval_every = setup.task, setup.eval_every
    put = everywhere(task)

    clock = Clock(setup.timeline, len(names))
    num_rounds = setup.timeline.num_rounds
    check_callbacks(callbacks)
    step = stride(num_rounds, eval_every, 1 if every_evaluation(callbacks) else evals_per_segment)
    pace = Pace(step, eval_every, segment_seconds if evals_per_segment is None else None)
    if folder is not None:
        trace_first(compiled, setup, keys, step, folder)
    timeline = jax.tree.map(np.asarray, setup.timeline)  # cut on the host
    state = compiled.initial(task, put(setup.params), put(timeline))
    on_host = isinstance(task.placement, offload.OnHost)
    if on_host and task.placement.states:
        if probes.run and jax.tree.leaves(state.clients):
            raise ValueError(
                f"probes.run is {sorted(probes.run)}; expected none, since the clients' states are "
                "on the host and a round has those of its clients only"
            )
        state = state._replace(clients=offload.table(state.clients, task.num_clients, keys.ndim))
    store, run = None, None
    with contextlib.ExitStack() as stack:
        if folder is not None:
            stack.enter_context(locked(folder))
        if folder is not None or need_identity(callbacks):
            run = identify(algorithm, config, setup, keys, names, probes, execution, eval_initial)
        values = None if run is None else run.values
        listeners = Listeners(callbacks, names, num_rounds, folder, values)
        if folder is not None and run is not None:
            store = Store(
                folder,
                run,
                checkpoint_seconds,
                lambda: outcome.describe(algorithm, setup, names, clock, batched=batched),
            )
            state = store.restore(state)
        done = resumed = int(np.asarray(state.round).max())

        def after_divergence(*, restored: bool = False) -> Action:
            diverged_at = np.atleast_1d(np.asarray(state.diverged_at))
            if on_divergence == "raise" and diverged_at.any():
                if store is not None and not restored:
                    store.write_outcome(state)
                raise _divergence(diverged_at, names, store, setup, restored=restored)
            return "stop" if on_divergence == "stop" and diverged_at.all() else None

        recorder = Recorder(names, clock, list(probes.client), listeners, store, clients)
        run_seconds, action = 0.0, after_divergence(restored=True)
        if done < num_rounds:
            resume = recorder.resume(done, compiled.execution, -(-num_rounds // eval_every))
            action = resume or action
        if on_host:
            loads = offload.plan(task, timeline, done, eval_every, step)
            model = shapes_of_one(setup.params, batched=batched)
            execute = Streamed(compiled, task, setup.eval_fn, timeline, keys, loads, model)
        else:
            execute = Resident(compiled, task, setup.eval_fn, timeline, keys, put, most=step)
        signalled = stack.enter_context(deferred_interrupt())
        stack.enter_context(execute)

        def interrupted() -> bool:
            return distributed.any_of(signalled())

        def record(history: History) -> Action:
            part = history if batched else jax.tree.map(lambda x: x[None], history)
            return recorder.add(part, state)

        # A run that was interrupted before its first round has a checkpoint with the evaluation.
        first = store is None or store.checkpoints.newest is None
        if eval_initial and first and setup.eval_fn is not None:
            initial = compiled.evaluation(
                task, put(setup.eval_fn), put(timeline[:1]), state, put(keys)
            )
            action = record(jax.tree.map(np.asarray, initial)) or action
        while done < num_rounds and action is None and not interrupted():
            last = execute.end(pace.after(done, num_rounds))
            began = time.perf_counter()
            before = compiled.seconds
            state, history = execute(done, last, state)
            seconds = time.perf_counter() - began - (compiled.seconds - before)
            run_seconds += seconds
            pace.took(last - done, float(distributed.gathered(seconds).max()))
            done = last
            action, halt = record(history), after_divergence()
            action = action or halt
            if store is not None:
                store.save_if_due(state)
            if on_progress is not None:
                on_progress(Progress(done, num_rounds, recorder.latest))
        recorder.finish(state)
        interrupt_requested = action == "interrupt" or interrupted()

    history = recorder.history()
    if history is not None and not batched:
        history = jax.tree.map(lambda x: x[0], history)
    steps = clock.local_steps[:, done - 1] - (clock.local_steps[:, resumed - 1] if resumed else 0)
    return Simulation(
        state,
        history,
        done,
        interrupt_requested and done < num_rounds,
        compiled.seconds - compiled_before,
        run_seconds,
        int(steps.sum()) if done else 0,
        Record(
            names,
            clock,
            list(probes.client),
            None if store is None else store.history.path,
            clients,
        ),
        stopped=action == "stop" and done < num_rounds,
        interrupt_requested=interrupt_requested,
    )


def _divergence(
    diverged_at: np.ndarray,
    names: Sequence[str],
    store: Store | None,
    setup: Setup,
    *,
    restored: bool,
) -> DivergenceError:
    which = ", ".join(f"{n} in round {r}" for n, r in zip(names, diverged_at, strict=True) if r)
    kept = "no checkpoint was kept (no directory given)"
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
