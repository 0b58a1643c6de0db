"""Checks of an algorithm with its setup, and of what its functions take.

:func:`check_run` is the one door: everything that runs or compiles an algorithm calls it once,
before anything is compiled.
"""

import dataclasses
import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import (
    being_traced,
    check_batch,
    check_compiles,
    check_is_algorithm,
    check_objective,
    check_setup,
    check_takes,
    is_concrete,
    last_wrapper,
    partial_rounds,
    shapes_of_one,
    takes,
)
from fedjax_sim.data import kept_per_step, running_statistics_of
from fedjax_sim.engine.evaluation.state import check_periods, takes_state
from fedjax_sim.engine.execution.broadcasts import num_buffers
from fedjax_sim.engine.execution.strategies import Gathered
from fedjax_sim.engine.returned import ARGUMENTS, OPTIONAL, called_part
from fedjax_sim.engine.rounds import weights_by_round, weights_of_clients
from fedjax_sim.engine.selection import as_chosen, check_selection, least_chosen
from fedjax_sim.tree import Selection, leaves
from fedjax_sim.types import (
    Aggregation,
    FedAlgorithm,
    Params,
    Requires,
    Selector,
    Setup,
    Task,
    Timeline,
    Weighting,
    uniform_weights,
)

# Visits whose weights are compared together, which bounds the memory of long timelines.
_SLOTS_AT_ONCE = 2**20
# The digits of single precision, in which weights are computed.
_WEIGHT_TOLERANCE = 1e-5


def check_run(
    algorithms: FedAlgorithm | Mapping[str, FedAlgorithm] | Iterable[FedAlgorithm],
    setup: Setup,
    count: int | None,
    *,
    execution: Any = None,
    eval_initial: bool = False,
    compiled: bool = True,
    continued: bool = False,
) -> None:
    """Refuses a setup that is invalid or that does not fit an algorithm: the one door of all calls.

    Traced values pass, since they cannot be checked, so every function that compiles runs calls
    this before.  Keys are checked where they are named, by
    :func:`~fedjax_sim.checks.setups.check_keys` and its neighbours.

    Args:
        algorithms: one, or all that shall run on this setup, or none; by name, if messages shall
            say which one does not fit.
        setup: of one run, or of several.
        count: runs together, one per key: models and perhaps timelines have a leading axis of this
            length; None: one run without that axis.
        execution: the strategy that was given, if any, or strategies by name.
        eval_initial: the run also evaluates the initial model, as round 0.
        compiled: rounds are compiled and recorded on the host, so that the call cannot be
            transformed; False: it can, as that of :func:`fedjax_sim.run`.
        continued: the timeline goes on after another one, whose broadcasts have negative numbers.
    """
    check_setup(setup, continued=continued)
    if compiled:
        check_compiles()
    check_batch(setup, count)
    check_objective(setup, batched=count is not None)
    check_periods(setup, eval_initial=eval_initial)
    if isinstance(algorithms, Mapping):
        for name, algorithm in algorithms.items():
            own = execution.get(name) if isinstance(execution, Mapping) else execution
            try:
                check_algorithm(algorithm, setup, own, count)
            except ValueError as error:
                raise ValueError(f"algorithms has {name!r}: {error}") from error
        return
    # An algorithm is a tuple; what is none has its message from the check.
    several = isinstance(algorithms, Iterable) and not isinstance(algorithms, FedAlgorithm)
    every: Any = algorithms if several else [algorithms]
    for algorithm in every:
        check_algorithm(algorithm, setup, execution, count)


def check_algorithm(
    algorithm: FedAlgorithm, setup: Setup, execution: Any, count: int | None
) -> None:
    """Refuses an algorithm that a valid setup does not fit; a part of :func:`check_run`."""
    check_functions(algorithm)
    check_staleness(algorithm, setup.timeline)
    check_own_models(algorithm, setup.timeline)
    check_statistics(algorithm, setup.task, setup.params)
    check_selection(algorithm, setup)
    last_wrapper(algorithm)
    selector = algorithm.selection
    timeline = least_chosen(selector, setup.timeline)
    try:
        check_rounds(algorithm, setup, timeline)
    except ValueError as error:
        if selector is None or selector.exact:
            raise
        check_rounds(algorithm, setup, as_chosen(selector, setup.timeline))
        raise ValueError(
            f"algorithm has a selection that may choose a single client: {error}; with "
            "selection.Selector(..., exact=True) it always chooses its size"
        ) from error
    check_execution(algorithm, execution)
    warn_of_initial_statistics(algorithm, setup, batched=count is not None)


def check_rounds(algorithm: FedAlgorithm, setup: Setup, timeline: Timeline) -> None:
    """Refuses rounds that an algorithm cannot use: their weights, or numbers of uploads."""
    check_weighting(algorithm, setup.task, timeline, setup.weighting)
    if algorithm.aggregation is not None:
        called_part(algorithm, "aggregation.check", timeline)
    if algorithm.requires.check is not None:
        called_part(algorithm, "requires.check", setup.task, timeline)


def check_functions(algorithm: FedAlgorithm) -> None:
    """Refuses values that are no algorithm, and functions that do not take their arguments."""
    check_is_algorithm(algorithm)
    if not isinstance(algorithm.requires, Requires):
        raise ValueError(
            f"algorithm.requires is {algorithm.requires!r:.60}; expected fedjax_sim.Requires(...)"
        )
    for name, kind in (("aggregation", Aggregation), ("selection", Selector)):
        value = getattr(algorithm, name)
        if not (value is None or isinstance(value, kind)):
            raise ValueError(
                f"algorithm.{name} is {value!r:.60}; expected a fedjax_sim.{kind.__name__}, or None"
            )
    for name, arguments in ARGUMENTS.items():
        part, _, _ = name.rpartition(".")
        if part and getattr(algorithm, part) is None:
            continue
        function = operator.attrgetter(name)(algorithm)
        if function is None and name in OPTIONAL:
            continue
        check_takes(f"algorithm.{name}", function, arguments)


def check_options(execution: Any, probes: Any, place: str = "") -> None:
    """Refuses values that are no execution strategy or no probes."""
    if not (execution is None or takes(execution, ("local", "shared", "slots", "weights"))):
        raise ValueError(
            f"{place}execution is {execution!r:.60}; expected a strategy, such as "
            "fs.execution.vmapped()"
        )
    kinds = {name: getattr(probes, name, None) for name in ("client", "server", "run")}
    for name, functions in kinds.items():
        if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
            raise ValueError(
                f"{place}probes is {probes!r:.60}; expected fs.Probes({name}={{...}}), functions "
                "by name"
            )


def check_staleness(algorithm: FedAlgorithm, timeline: Timeline) -> None:
    """Refuses a timeline with staleness for an algorithm that requires current broadcasts."""
    if algorithm.requires.synchronous and num_buffers(timeline):
        raise ValueError(
            f"timeline has a staleness of up to {timeline.max_staleness}; expected none: "
            f"{algorithm.requires.synchronous}"
        )


def check_own_models(algorithm: FedAlgorithm, timeline: Timeline) -> None:
    """Refuses a timeline whose clients start from their own models for any other algorithm."""
    if timeline.own_models and not algorithm.requires.own_models:
        raise ValueError(
            "timeline.own_models is True (contacts with receives='current', for QuAFL); expected "
            "False: clients start from the model that they received, as in contacts with "
            "receives='new', or an algorithm with requires.own_models"
        )


def check_weighting(
    algorithm: FedAlgorithm, task: Task, timeline: Timeline, weighting: Weighting
) -> None:
    """Refuses weights for an algorithm that requires equal ones; traced timelines are complete."""
    if weighting is uniform_weights:
        return
    reason, name = algorithm.requires.uniform_weights, getattr(weighting, "__name__", weighting)
    of_all = algorithm.requires.uniform_weights_if_partial
    if reason is None and of_all is not None and len(partial_rounds(task, timeline)) > 0:
        reason = of_all
    if reason is not None:
        raise ValueError(f"weighting is {name}; expected uniform_weights: {reason}")
    if of_all is not None and (number := _round_of_other_weights(task, timeline, weighting)):
        raise ValueError(
            f"weighting is {name}, which returns other weights in round {number} than before; "
            f"expected those of the first round in all rounds: {of_all}"
        )
    constant = algorithm.requires.mean_of_states
    if constant is not None and (found := _other_weight(task, timeline, weighting)):
        raise ValueError(
            f"weighting is {name}, which gives client {found.client} the weight "
            f"{found.weight:.6g} in round {found.round} and {found.usual:.6g} in a round of all "
            f"clients, with {found.steps} steps and no delay; expected a weight that depends on "
            f"the client alone: {constant}"
        )
    if constant is not None and algorithm.selection is not None:
        _check_weights_without_steps(task, timeline, weighting, constant)


def _round_of_other_weights(task: Task, timeline: Timeline, weighting: Weighting) -> int:
    """Returns the first round with other shares of the clients than the first one's; 0: none.

    In all rounds of the timeline all clients report.  Traced weights are the same ones.
    """
    expected = None
    for first, part, weights in _concrete_weights(task, timeline, weighting):
        expected = None if first == 0 else expected
        by_client = np.zeros((part.num_rounds, task.num_clients))
        rows, slots = np.nonzero(part.arrived)
        by_client[rows, part.clients[rows, slots]] = weights[rows, slots]
        used = np.nonzero(by_client.sum(1) > 0)[0]  # a round without weight changes nothing
        shares = by_client[used] / by_client[used].sum(1, keepdims=True)
        expected = shares[:1] if expected is None or not len(expected) else expected
        other = ~np.isclose(shares, expected, rtol=_WEIGHT_TOLERANCE, atol=0).all(1)
        if other.any():
            return first + int(used[other][0])
    return 0


class _OtherWeight(NamedTuple):
    """A visit whose weight is not the one of its client."""

    round: int
    client: int
    weight: float
    usual: float
    steps: int


def _other_weight(task: Task, timeline: Timeline, weighting: Weighting) -> _OtherWeight | None:
    """Returns the first visit with another weight than its client's; traced weights have none."""
    every = None
    for first, part, weights in _concrete_weights(task, timeline, weighting):
        if every is None:
            every = np.asarray(_weights(weighting).of_clients(_numbers(task), timeline.max_steps))
        usual = every[part.clients]
        same = np.isclose(weights, usual, rtol=_WEIGHT_TOLERANCE, atol=0)
        rounds, slots = np.nonzero(part.arrived & ~same)
        if len(rounds):
            t, s = rounds[0], slots[0]
            client = int(part.clients[t, s])
            steps = int(np.asarray(task.num_steps)[client])
            return _OtherWeight(
                first + int(t), client, float(weights[t, s]), float(usual[t, s]), steps
            )
    return None


def _check_weights_without_steps(
    task: Task, timeline: Timeline, weighting: Weighting, constant: str
) -> None:
    """Refuses weights of numbers of steps, which a selection may change in a round (AdaComm)."""
    if not all(map(is_concrete, jax.tree.leaves((task.num_examples, task.num_steps)))):
        return
    steps = np.asarray(task.num_steps)
    weights = []
    for numbers in (steps, np.zeros_like(steps)):
        changed = dataclasses.replace(_numbers(task), num_steps=numbers)
        weights.append(_weights(weighting).of_clients(changed, timeline.max_steps))
    if not all(map(is_concrete, weights)):
        return
    usual, none = map(np.asarray, weights)
    other = ~np.isclose(usual, none, rtol=_WEIGHT_TOLERANCE, atol=0)
    if other.any():
        client = int(other.argmax())
        raise ValueError(
            f"weighting is {getattr(weighting, '__name__', weighting)}, which gives client "
            f"{client} the weight {usual[client]:.6g} with {steps[client]} steps and "
            f"{none[client]:.6g} without; expected a weight that depends on the client alone with "
            f"a selection, which may change numbers of steps: {constant}"
        )


def _concrete_weights(
    task: Task, timeline: Timeline, weighting: Weighting
) -> Iterator[tuple[int, Timeline, np.ndarray]]:
    """Yields first rounds, parts of runs and their weights; nothing if any of them is traced."""
    known = timeline, task.num_examples, task.num_steps
    if not all(map(is_concrete, jax.tree.leaves(known))):
        return
    on_host = jax.tree.map(np.asarray, timeline)
    batch = on_host if on_host.mask.ndim == 3 else jax.tree.map(lambda x: x[None], on_host)
    at_once = max(1, _SLOTS_AT_ONCE // timeline.cohort_size)
    for number in range(len(batch.mask)):
        run: Timeline = jax.tree.map(lambda x, number=number: x[number], batch)
        for first in range(0, run.num_rounds, at_once):
            part = run[first : first + at_once]
            weights = _weights(weighting).by_round(_numbers(task), part, first)
            if not is_concrete(weights):
                return
            yield first, part, np.asarray(weights)


def _numbers(task: Task) -> Task:
    """Returns a task without its data."""
    return dataclasses.replace(task, oracle=None, placement=None)  # pyright: ignore


class _Weights(NamedTuple):
    """The weights of rounds and of all clients, as functions of a task's numbers."""

    by_round: Callable[[Task, Timeline, int], Array]  # (task, part of a run, its first round)
    of_clients: Callable[[Task, int], Array]  # (task, most steps of a visit)


def _weights(weighting: Weighting) -> _Weights:
    """Returns the functions of a weighting, compiled where nothing is being traced.

    Their operations take seconds to compile one by one.  While a run is traced they are computed so
    all the same, since JAX folds what has no traced arguments.
    """
    if being_traced():
        return _folded(weighting)
    try:
        return _compiled(weighting)
    except TypeError:  # not hashable
        return _compiled.__wrapped__(weighting)


def _folded(weighting: Weighting) -> _Weights:
    def by_round(task: Task, part: Timeline, first: int) -> Array:
        with jax.ensure_compile_time_eval():
            return weights_by_round(task, part, weighting, first)

    def of_clients(task: Task, max_steps: int) -> Array:
        with jax.ensure_compile_time_eval():
            return weights_of_clients(task, weighting, max_steps)

    return _Weights(by_round, of_clients)


# A few, since weightings may have large arrays.
@functools.lru_cache(maxsize=8)
def _compiled(weighting: Weighting) -> _Weights:
    def by_round(task: Task, part: Timeline, first: int) -> Array:
        return weights_by_round(task, part, weighting, first)

    def of_clients(task: Task, max_steps: int) -> Array:
        return weights_of_clients(task, weighting, max_steps)

    return _Weights(jax.jit(by_round), jax.jit(of_clients, static_argnums=1))


def check_execution(algorithm: FedAlgorithm, execution: Any) -> None:
    """Refuses strategies that do not return the mean, for a private server."""
    last = last_wrapper(algorithm)
    if last is None or last.mechanism is None:
        return  # a local randomiser: the server may do anything with what it receives
    if isinstance(execution, Gathered):
        raise ValueError(
            f"execution is gathered(...); expected the mean of the uploads with {last.name}"
        )


def check_statistics(algorithm: FedAlgorithm, task: Task, params: Params) -> None:
    """Refuses a model with running statistics for an algorithm that does not update just these."""
    statistics = running_statistics_of(task)
    if statistics is None:
        return
    updated_by = algorithm.requires.statistics
    if updated_by is None:
        raise ValueError(
            "task has a model with running statistics (batch normalisation), which the algorithm "
            "does not update; expected fs.running_statistics(algorithm, model.statistics), or the "
            "objective of fs.models.frozen_statistics(model) with fs.freeze"
        )
    expected, updated = (_paths(params, where) for where in (statistics, updated_by.where))
    if expected != updated:
        different = ", ".join(sorted(expected ^ updated))
        raise ValueError(
            f"running_statistics has where with another answer than model.statistics for "
            f"{different}; expected fs.running_statistics(algorithm, model.statistics)"
        )


def warn_of_initial_statistics(algorithm: FedAlgorithm, setup: Setup, *, batched: bool) -> None:
    """Warns of evaluated running statistics that end less than half-way from their start.

    Every local step keeps the part given by the layers' momentum; methods with several gradients
    per step keep less.  Traced values and data that are not on the device are not known.
    """
    statistics, task, timeline = algorithm.requires.statistics, setup.task, setup.timeline
    arrays = jax.tree.leaves((task, timeline, setup.params))
    if statistics is None or setup.eval_fn is None or running_statistics_of(task) is None:
        return
    if not statistics.uploaded and task.placement is not None and not takes_state(setup.eval_fn):
        warnings.warn(
            "setup.eval_fn evaluates the server's model, whose running statistics stay initial, "
            "since the clients keep theirs and the task has a placement; expected a task without "
            "one, whose clients' own models are evaluated",
            UserWarning,
            stacklevel=2,
        )
    if not all(map(is_concrete, arrays)):
        return
    kept = kept_per_step(task, shapes_of_one(setup.params, batched=batched))
    if kept is None:
        return
    clients, steps, mask = (
        np.asarray(x) for x in (timeline.clients, timeline.num_steps, timeline.mask)
    )
    steps = np.where(mask, steps, 0)
    if steps.ndim == 3:  # the seeds' timelines are alike
        clients, steps = clients[0], steps[0]
    if statistics.uploaded:
        visits = (steps > 0).sum(1)
        means = np.where(steps > 0, kept**steps, 0.0).sum(1) / np.maximum(visits, 1)
        rounds = np.where(visits > 0, 1 - statistics.server_rate * (1 - means), 1.0)
        left = float(np.prod(rounds))
    else:
        total = np.bincount(clients.ravel(), steps.ravel(), task.num_clients)
        left = float((kept**total).mean())
    if left > 0.5:
        warnings.warn(
            f"setup.timeline leaves {left:.0%} of the running statistics at their start in the "
            f"last evaluation, since a local step keeps {kept:.3g} of them (the momentum of batch "
            "normalisation); expected less than half: a smaller momentum, such as "
            "nnx.BatchNorm(..., momentum=0.9), more local steps or more rounds",
            UserWarning,
            stacklevel=2,
        )


def _paths(params: Params, where: Selection) -> set[str]:
    part, _ = leaves.split(params, where)
    return {"/".join(leaves.names(path)) for path, _ in jax.tree_util.tree_leaves_with_path(part)}
