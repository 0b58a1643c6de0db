"""``fork``: a run continues from one state under several alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import called, check_is_algorithm, check_keys, check_takes
from fedjax_sim.engine import (
    NO_PROBES,
    Execution,
    History,
    OnHost,
    RunState,
    Scorers,
    check_options,
    check_run,
    everywhere,
    num_buffers,
)
from fedjax_sim.runs import (
    Programs,
    Resident,
    Seed,
    Simulation,
    programs_of,
    seed_column,
    seed_names,
)
from fedjax_sim.studies.forks.result import Fork
from fedjax_sim.types import FedAlgorithm, PyTree, Setup, Timeline, shown


@shown
class Alternative(NamedTuple):
    """One way to continue a run.

    Example:
        >>> import fedjax_sim as fs
        >>> without_3 = lambda timeline: fs.timelines.remove_clients(timeline, 3)
        >>> alternative = fs.Alternative(fs.fedavg(0.1), without_3)
    """

    algorithm: FedAlgorithm  # that continues the run
    # Intervention: a function of the timeline of the remaining rounds. None: it stays as it is.
    change: Callable[[Timeline], Timeline] | None = None
    # True: server and clients get new states of the algorithm, with the server's model of round t;
    # what clients kept, such as controls and personal models, is lost. Required where the
    # algorithm's state is not of the same form as the run's.
    restart: bool = False


class _Continuation(NamedTuple):
    """An alternative that may start."""

    compiled: Programs
    setup: Setup  # of the remaining rounds
    state: RunState
    last: Timeline  # the round before


def fork(
    start: RunState | Simulation,
    alternatives: Mapping[str, FedAlgorithm | Alternative],
    setup: Setup,
    keys: Array,
    *,
    execution: Execution | None = None,
    seeds: Sequence[Seed] | None = None,
) -> Fork:
    r"""Continues a run from its state at round t under several alternatives, "what if, from t".

    All alternatives have the same seeds: round, client and key decide every draw, so cohorts,
    minibatches and noise are the same (common random numbers).  With metric values
    :math:`X_s` of an alternative and :math:`Y_s` of the reference, the paired difference
    :math:`D_s = X_s - Y_s` is unbiased and has the variance
    :math:`\mathrm{Var} X + \mathrm{Var} Y - 2\,\mathrm{Cov}(X, Y)`; the covariance is usually
    large.  Other batch sizes or numbers of local steps keep it unbiased, but lower the covariance.

    The alternative that changes nothing gives the same bits as the uninterrupted run of
    :func:`~fedjax_sim.simulate` with the same execution.  Alternatives whose algorithms differ in
    numbers only, with timelines of equal shapes, share one compiled program.

    Args:
        start: the state at round t, of all seeds ``[n, ...]``: a simulation of the first t rounds,
            ``fs.simulate(algorithm, dataclasses.replace(setup, timeline=setup.timeline[:t]),
            keys)``, or its ``state``.
        alternatives: algorithms or :class:`Alternative` by name; the others are compared with the
            first one, the reference.
        setup: of the whole run; rounds t, t + 1, ... of its timeline follow.
        keys: the run's keys ``[n]``; or its only key, for a state without the axis of seeds.
        execution: execution strategy; default :func:`~fedjax_sim.engine.execution.auto`.
        seeds: names of the seeds; default 0, 1, ...

    Returns:
        Histories with the metrics at round t and after the later rounds that the whole run
        evaluates, final states, paired differences and a figure.

    Raises:
        ValueError: contradictory arguments; a changed timeline that is not valid; a state that does
            not fit an alternative, where ``restart`` helps; an alternative whose clients start from
            a broadcast before round t that the run has not kept, or not in the buffer they read.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.array([0.0, 8.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["y"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> timeline = fs.timelines.full(4, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, np.zeros(1, np.float32), lambda w: {"w": w})
        >>> begin = dataclasses.replace(setup, timeline=timeline[:3])
        >>> keys, same = jax.random.split(jax.random.key(0), 1), fs.fedavg(0.5)
        >>> first = fs.simulate(same, begin, keys)  # w = 2, 3, 3.5
        >>> alone = fs.Alternative(same, lambda rest: fs.timelines.remove_clients(rest, 0))
        >>> result = fork(first, {"as it was": same, "without client 0": alone}, setup, keys)
        >>> result.differences("w")[["alternative", "round", "mean"]].values.tolist()
        [['without client 0', 3, 0.0], ['without client 0', 4, 2.0]]
    """
    check_keys(keys)
    batched = keys.ndim == 1
    names = seed_names(seeds, keys.shape[0] if batched else 1, "seeds")
    count = len(names) if batched else None
    check_options(execution, NO_PROBES)
    check_run((), setup, count)
    if isinstance(setup.task.placement, OnHost):
        raise ValueError("setup.task has its examples on the host; expected them on the device")
    state = start.state if isinstance(start, Simulation) else start
    if not isinstance(state, RunState):
        raise ValueError(
            f"start is a {type(start).__name__}; expected a simulation or its state: of a "
            "comparison, simulations[name][0]"
        )
    done = _round_of(state, keys, setup)
    if not isinstance(alternatives, Mapping):
        raise ValueError(
            f"alternatives is a {type(alternatives).__name__}; expected a dict of alternatives by "
            "name"
        )
    if not alternatives:
        raise ValueError("alternatives is empty; expected at least one")

    timeline = jax.tree.map(np.asarray, setup.timeline)
    rest = dataclasses.replace(setup, timeline=timeline[done:])
    histories, states = {}, {}
    prepared = {
        name: _prepared(name, alternative, rest, timeline[:done], state, count, execution)
        for name, alternative in alternatives.items()
    }
    for name, continuation in prepared.items():
        history, states[name] = _continued(continuation, keys)
        histories[name] = history if batched else jax.tree.map(lambda x: x[None], history)
    return Fork(done, next(iter(alternatives)), histories, states, seed_column(names))


def _round_of(state: RunState, keys: Array, setup: Setup) -> int:
    """Returns the round of a state, and refuses one that does not belong to the keys."""
    rounds = np.asarray(state.round)
    if rounds.shape != keys.shape:
        raise ValueError(
            f"start has states of shape {rounds.shape}; expected {keys.shape}, one per key"
        )
    done, last = int(rounds.max()), setup.timeline.num_rounds
    if rounds.min() != done or not 0 <= done < last:
        raise ValueError(
            f"start is the state after {rounds.min()} to {done} rounds; expected one number below "
            f"the {last} rounds of setup.timeline, which is the whole run's"
        )
    return done


def _prepared(
    name: str,
    alternative: FedAlgorithm | Alternative,
    rest: Setup,
    before: Timeline,
    state: RunState,
    count: int | None,
    execution: Execution | None,
) -> _Continuation:
    """Returns an alternative with its program and its first state; refuses what does not fit."""
    if not isinstance(alternative, Alternative):
        alternative = Alternative(alternative)
    algorithm, change, restart = alternative
    check_is_algorithm(algorithm, f"alternatives[{name!r}]")
    setup, done = rest, before.num_rounds
    if change is not None:
        timeline = _changed(name, change, rest, before, count)
        setup, before = dataclasses.replace(rest, timeline=timeline), _per_seed(before, timeline)
    # A check may depend on the first round, or on the parity of a round, of the whole run.
    checked = _as_from_0(setup.timeline, done) if restart else _joined(before, setup.timeline)
    whole = dataclasses.replace(setup, timeline=checked, eval_fn=None)
    check_run(algorithm, whole, count, execution=execution, continued=restart)
    compiled = programs_of(
        algorithm, setup, batched=count is not None, execution=execution, probes=NO_PROBES
    )
    first, kept = _first_state(name, compiled, setup, state, restart=restart)
    if not kept:
        oldest = np.where(setup.timeline.mask, setup.timeline.version, done).min()
        if oldest < done:
            raise ValueError(
                f"alternatives[{name!r}] has clients that start from broadcast {oldest}; expected "
                f"{done} or later, since the run kept no earlier ones of the algorithm's form"
            )
    if change is not None:
        _check_reads(name, setup.timeline, before, kept)
    last = before[-1:] if done else _per_seed(rest.timeline, setup.timeline)[:1]
    return _Continuation(compiled, setup, first, last)


def _changed(
    name: str,
    change: Callable[[Timeline], Timeline],
    rest: Setup,
    before: Timeline,
    num_seeds: int | None,
) -> Timeline:
    """Returns a changed timeline of the remaining rounds; refuses one that is not valid."""
    argument, expected = f"alternatives[{name!r}].change", "a function that returns a Timeline"
    check_takes(argument, change, ("timeline",), " -> Timeline")
    given = "the timeline of the remaining rounds"
    timeline = called(argument, given, expected, change, rest.timeline)
    if not isinstance(timeline, Timeline) or timeline.num_rounds != rest.timeline.num_rounds:
        raise ValueError(
            f"alternatives[{name!r}] changes the timeline to {type(timeline).__name__} of "
            f"{getattr(timeline, 'num_rounds', 'no')} rounds; expected a Timeline of "
            f"{rest.timeline.num_rounds}"
        )
    # One timeline of all seeds may become one per seed, and the reverse.
    timeline = _per_seed(jax.tree.map(np.asarray, timeline), before)
    as_from_0 = _as_from_0(timeline, before.num_rounds)
    changed = dataclasses.replace(rest, timeline=as_from_0, eval_fn=None)
    try:
        check_run((), changed, num_seeds, continued=True)
    except ValueError as error:
        raise ValueError(f"alternatives[{name!r}] changes the timeline: {error}") from error
    return timeline


def _first_state(
    name: str, compiled: Programs, setup: Setup, state: RunState, *, restart: bool
) -> tuple[RunState, bool]:
    """Returns the state that an alternative begins with, and True if it has the run's broadcasts.

    Raises:
        ValueError: it is of another form than the algorithm's states.
    """
    put = everywhere(setup.task)
    arguments = setup.task, put(setup.params), put(setup.timeline)
    shapes = jax.eval_shape(compiled.initial, *arguments)
    first = state
    if restart and jax.tree.leaves(shapes.selection):
        raise ValueError(
            f"alternatives[{name!r}] restarts with a selection; expected restart=False, since the "
            "selection has counted the visits of the run"
        )
    if restart:
        first = compiled.initial(setup.task, state.server.params, arguments[2])
        first = first._replace(round=state.round, diverged_at=state.diverged_at)
    # Clients that started before round t have what the run sent them, also after a restart.
    kept = bool(jax.tree.leaves(state.past)) and _form(state.past) == _form(shapes.past)
    if kept:
        first = first._replace(past=state.past)
    elif not jax.tree.leaves(first.past) and jax.tree.leaves(shapes.past):
        first = first._replace(past=compiled.initial(*arguments).past)
    for part in ("server", "clients", "past", "selection"):
        if _form(getattr(first, part)) != _form(getattr(shapes, part)):
            raise ValueError(
                f"alternatives[{name!r}] has a state ({part}) of another form than the run's; "
                "expected an algorithm with the same state, or restart=True (on the command line "
                f"--alternatives.{name}.restart), which starts from the model"
            )
    return first, kept


def _per_seed(timeline: Timeline, other: Timeline) -> Timeline:
    """Returns a timeline with the axis of seeds if another one has it."""
    if timeline.clients.ndim >= other.clients.ndim:
        return timeline
    return jax.tree.map(lambda x: np.broadcast_to(x, (len(other.clients), *x.shape)), timeline)


def _as_from_0(timeline: Timeline, done: int) -> Timeline:
    """Returns the timeline of rounds ``done``, ``done + 1``, ... as one of rounds 0, 1, ..."""
    return dataclasses.replace(
        timeline,
        version=timeline.version - done,
        num_buffers=0,  # those are checked with the run's
        write_buffer=None,
        read_buffer=None,
    )


def _check_reads(name: str, rest: Timeline, before: Timeline, kept: bool) -> None:
    """Refuses clients that would read another broadcast than the one that they start from."""
    count, done = num_buffers(rest), before.num_rounds
    if not count:
        return
    written, read = _buffers(rest, done)
    stored = _buffers(before, 0)[0] if kept else None
    for i in np.ndindex(written.shape[:-1]):
        content = np.full(count + 1, -1)
        if stored is not None:
            np.maximum.at(content, stored[i], np.arange(done))
        mask, version = rest.mask[i], rest.version[i]
        for k in range(rest.num_rounds):
            content[written[i][k]] = done + k
            wrong = mask[k] & (content[read[i][k]] != version[k])
            if wrong.any():
                raise ValueError(
                    f"alternatives[{name!r}] has clients that start from broadcast "
                    f"{version[k][wrong][0]} in round {done + k} and read a buffer that the run "
                    "has used for another one; expected the run's buffers, as interventions such "
                    "as timelines.remove_clients keep them, or for both timelines a ring "
                    "(num_buffers=0) of one max_staleness"
                )


def _buffers(timeline: Timeline, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the buffers that rounds from ``first`` on write to and read from."""
    if timeline.num_buffers:
        return np.asarray(timeline.write_buffer), np.asarray(timeline.read_buffer)
    count, version = num_buffers(timeline), np.asarray(timeline.version)
    rounds = np.broadcast_to(first + np.arange(timeline.num_rounds), version.shape[:-1])
    return rounds % count, version % count


def _joined(before: Timeline, rest: Timeline) -> Timeline:
    """Returns both parts of a run as one timeline for checks, without buffers."""
    slots = max(before.cohort_size, rest.cohort_size)

    def both(name: str) -> np.ndarray:
        parts = []
        for part in (before, rest):
            value = getattr(part, name)
            value = np.zeros(part.clients.shape, bool) if value is None else np.asarray(value)
            padding = [(0, 0)] * (value.ndim - 1) + [(0, slots - value.shape[-1])]
            parts.append(np.pad(value, padding))
        return np.concatenate(parts, axis=-2)

    fields = ("clients", "version", "num_steps", "mask", "lost")
    time = np.concatenate([before.time, rest.time], axis=-1)
    absent = dict.fromkeys(("first_step", "idle", "write_buffer", "read_buffer"))
    joined = {name: both(name) for name in fields}
    return dataclasses.replace(rest, **joined, **absent, time=time, num_buffers=0)


def _form(tree: PyTree) -> tuple:
    """Returns the structure, shapes and types of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.shape(x), str(jax.dtypes.result_type(x))) for x in leaves]


def _continued(continuation: _Continuation, keys: Array) -> tuple[History, RunState]:
    """Returns the history, with the metrics of the first state, and the final state."""
    compiled, setup, state, last_round = continuation
    put = everywhere(setup.task)
    state = jax.tree.map(jnp.copy, state)  # the program overwrites its argument
    axis = keys.ndim
    evaluated = []
    if setup.eval_fn is not None:
        initial = compiled.evaluation(
            setup.task, put(setup.eval_fn), put(last_round), state, put(keys)
        )
        evaluated = [jax.tree.map(np.asarray, initial)]
    last, done = setup.timeline.num_rounds, int(np.max(state.round))
    execute = Resident(
        compiled, setup.task, setup.eval_fn, setup.timeline, keys, put, most=last, before=done
    )
    state, history = execute(0, last, state)
    evaluated.append(history)
    together = jax.tree.map(lambda *x: np.concatenate(x, axis), *evaluated)
    metrics = Scorers(setup.eval_fn)(together.metrics, together.round.shape)
    return together._replace(metrics=metrics), state
