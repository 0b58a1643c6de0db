"""Checks of an algorithm with its setup, and of what its functions take and return.

:func:`check_run` is the one door: everything that runs or compiles an algorithm calls it once,
before anything is compiled.  The checks of returned values compare shapes and dtypes while a run is
traced, so a compiled run does not contain them.
"""

import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import (
    called,
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
from fedjax_sim.engine.selection import as_chosen, check_selection, least_chosen
from fedjax_sim.tree import Selection, entries, leaves
from fedjax_sim.types import (
    Aggregation,
    ClientState,
    FedAlgorithm,
    Params,
    PyTree,
    Requires,
    Selector,
    ServerState,
    Setup,
    Task,
    Timeline,
    Upload,
    Weighting,
    Work,
    uniform_weights,
)

_MOST_LEAVES = 8  # in a message
_REAL = "real numbers, as an array"
_ARGUMENTS = {
    "init": ("params",),
    "local": ("message", "state", "oracle", "work"),
    "update": ("state", "mean", "round"),
    "broadcast": ("state", "round"),
    "init_client": ("params",),
    "requires.check": ("task", "timeline"),
    "personal": ("message", "state", "oracle", "work"),
}


def check_run(
    algorithms: FedAlgorithm | Mapping[str, FedAlgorithm] | Iterable[FedAlgorithm],
    setup: Setup,
    count: int | None,
    *,
    execution: Any = None,
    eval_initial: bool = False,
    compiled: bool = True,
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

    Raises:
        ValueError: a value of the setup; a function of an algorithm that does not take its
            arguments; a timeline with staleness for an algorithm that requires current broadcasts;
            weighted uploads for one that requires equal weights; a round with fewer uploads than an
            aggregation requires; running statistics that an algorithm does not update; a wrapper
            around one that must be applied last; or what the algorithm's own check refuses.
    """
    check_setup(setup)
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
        algorithm.aggregation.check(timeline)
    called_part(algorithm, "requires.check", setup.task, timeline)


def check_functions(algorithm: FedAlgorithm) -> None:
    """Refuses values that are no algorithm, and functions that do not take their arguments."""
    check_is_algorithm(algorithm)
    if not isinstance(algorithm.requires, Requires):
        raise ValueError(
            f"algorithm.requires is {algorithm.requires!r:.60}; expected fedjax_sim.Requires(...)"
        )
    for name, arguments in _ARGUMENTS.items():
        function = operator.attrgetter(name)(algorithm)
        if function is None and name == "personal":
            continue
        check_takes(f"algorithm.{name}", function, arguments)
    for name, kind in (("aggregation", Aggregation), ("selection", Selector)):
        value = getattr(algorithm, name)
        if not (value is None or isinstance(value, kind)):
            raise ValueError(
                f"algorithm.{name} is {value!r:.60}; expected a fedjax_sim.{kind.__name__}, or None"
            )


def called_part(algorithm: FedAlgorithm, name: str, *arguments: Any) -> Any:
    """Returns what a function of an algorithm returns; its mistakes have its name."""
    given = f"({', '.join(_ARGUMENTS[name])})"
    expected = "a function that JAX can trace, as fs.FedAlgorithm describes it"
    function = operator.attrgetter(name)(algorithm)
    return called(f"algorithm.{name}", given, expected, function, *arguments)


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


def _round_of_other_weights(task: Task, timeline: Timeline, weighting: Weighting) -> int:
    """Returns the first round with other shares of the clients than the first one's; 0: none.

    In all rounds of the timeline all clients report.  Traced weights are the same ones.
    """
    if not all(map(is_concrete, jax.tree.leaves((timeline, task.num_examples)))):
        return 0
    shape, (rounds, slots) = timeline.mask.shape, timeline.mask.shape[-2:]
    clients, arrived = (np.asarray(x) for x in (timeline.clients, timeline.arrived))
    max_steps = timeline.max_steps

    def weights_of(*fields: Array) -> Array:
        expected = f"a function that returns weights [{slots}]"
        works = Work(*fields, max_steps=max_steps)
        weights = called("weighting", "the round's visits", expected, weighting, works)
        return checked_weights(weights, slots)

    with jax.ensure_compile_time_eval():  # also while a run is traced
        number = jnp.broadcast_to(jnp.arange(rounds, dtype=jnp.int32)[:, None], shape)
        works = Work(
            round=number,
            client=jnp.asarray(clients),
            num_steps=jnp.where(jnp.asarray(timeline.mask), jnp.asarray(timeline.num_steps), 0),
            num_examples=entries(task.num_examples, jnp.asarray(clients)),
            staleness=number - jnp.asarray(timeline.version),
            key=jax.random.split(jax.random.key(0), shape),
            max_steps=max_steps,
        )
        weights = jax.vmap(weights_of)(*(x.reshape(-1, slots) for x in works[:-1]))
    if not is_concrete(weights):
        return 0
    by_client = np.zeros((*shape[:-1], task.num_clients))
    place = np.nonzero(arrived)
    by_client[*place[:-1], clients[place]] = np.asarray(weights).reshape(shape)[place]
    for of_run in by_client.reshape(-1, rounds, task.num_clients):
        used = np.nonzero(of_run.sum(1) > 0)[0]  # a round without weight changes nothing
        shares = of_run[used] / of_run[used].sum(1, keepdims=True)
        # The digits of single precision, in which weights are computed.
        other = ~np.isclose(shares, shares[:1], rtol=1e-5, atol=0).all(1)
        if other.any():
            return int(used[other][0])
    return 0


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


def checked_init(server: ServerState) -> ServerState:
    """Returns a first server state, which has the model as its attribute ``params``."""
    if not hasattr(server, "params"):
        raise ValueError(
            f"algorithm.init returns {_leaves(server)}; expected a server state whose attribute "
            "params is the model, for example a NamedTuple"
        )
    return checked_arrays("init", server)


def checked_arrays(function: str, state: PyTree) -> PyTree:
    """Returns a state if all of its leaves are arrays or numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        try:
            jax.typeof(leaf)
        except TypeError as error:
            raise ValueError(
                f"algorithm.{function} returns {_name(path, leaf)}; expected an array"
            ) from error
    return state


def checked_visit(result: Any, state: ClientState) -> tuple[Upload, ClientState]:
    """Returns the upload and the new state of a visit, if the state is as before."""
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(
            f"algorithm.local returns {_leaves(result)}; expected a pair (upload, client state)"
        )
    upload, new = result
    return checked_arrays("local", upload), checked_state("local", new, state)


def probed(kind: str, probes: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """Returns the values of probes by name, which are arrays of real numbers, or trees of them."""
    values = {}
    for name, probe in probes.items():
        place = f"probes.{kind}[{name!r}]"
        measured = called(place, f"a {type(value).__name__}", f"a function of it: {_REAL}",
                          probe, value)  # fmt: skip
        if measured is None or not all(map(_is_real, jax.tree.leaves(measured))):
            raise ValueError(f"{place} returns {_leaves(measured)}; expected {_REAL}")
        values[name] = measured
    return values


def _is_real(leaf: Any) -> bool:
    try:
        return not jnp.issubdtype(jax.typeof(leaf).dtype, jnp.complexfloating)
    except TypeError:
        return False


def check_recorded(probed: Mapping[str, Any]) -> None:
    """Refuses probes whose values are several arrays, which files of a run cannot hold."""
    for name, value in probed.items():
        if not hasattr(value, "dtype"):
            raise ValueError(
                f"probes has {name!r} that returns {_leaves(value)}; expected one array"
            )


def checked_weights(weights: Any, num_slots: int) -> Array:
    """Returns the weights ``[S]`` of a round's uploads as floats; one number is for all slots.

    Negative weights become NaN, so that their round is a divergence: no mean has them.
    """
    try:
        shape = jax.typeof(weights).shape
    except TypeError:
        shape = None
    if shape not in ((), (num_slots,)):
        raise ValueError(
            f"weighting returns {_leaves(weights)}; expected [{num_slots}], one weight per slot"
        )
    if jnp.iscomplexobj(weights):
        raise ValueError(f"weighting returns {_leaves(weights)}; expected real numbers")
    weights = jnp.asarray(weights, jnp.result_type(float))
    return jnp.broadcast_to(jnp.where(weights < 0, jnp.nan, weights), (num_slots,))


def checked_state(function: str, new: PyTree, old: PyTree) -> PyTree:
    """Returns a state if it has the structure, the shapes and the dtypes of the state before.

    Python numbers and weakly typed arrays pass if they adopt the dtype of the leaf before.
    """
    if jax.tree.structure(new) != jax.tree.structure(old):
        found, expected = _leaves(new), _leaves(old)
        if found == expected:  # containers of other types
            found, expected = str(jax.tree.structure(new)), str(jax.tree.structure(old))
        raise ValueError(
            f"algorithm.{function} returns the state {found}; expected {expected}, as before"
        )
    checked_arrays(function, new)
    leaves = jax.tree_util.tree_leaves_with_path(new)
    for (path, leaf), before in zip(leaves, jax.tree.leaves(old), strict=True):
        found, expected = jax.typeof(leaf), jax.typeof(before)
        adopts = found.weak_type and jnp.result_type(leaf, before) == expected.dtype
        if found.shape != expected.shape or not (adopts or found.dtype == expected.dtype):
            raise ValueError(
                f"algorithm.{function} returns a state with {_name(path, leaf)}; expected "
                f"{_name((), before)}, as before"
            )
    return new


def check_precision(function: str, new: PyTree, old: PyTree, params: Params) -> None:
    """Refuses to change a state in half precision, if the model has leaves in half precision.

    A leaf that a function passes on, such as a frozen one, is the same object as before.
    """
    if not any(map(_is_half, jax.tree.leaves(params))):
        return
    for (path, leaf), before in zip(
        jax.tree_util.tree_leaves_with_path(new), jax.tree.leaves(old), strict=True
    ):
        if leaf is not before and _is_half(leaf):
            raise ValueError(
                f"algorithm.{function} changes {_name(path, leaf)}; expected float32, since half "
                "precision rounds small steps to 0: use params = fedjax_sim.tree.wide(params) with "
                "the model models.in_precision(model, dtype), or freeze these leaves"
            )


def _is_half(leaf: Any) -> bool:
    dtype = jnp.result_type(leaf)
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _leaves(state: PyTree) -> str:
    """Returns the type of a state and its first leaves as text."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    names = [_name(path, leaf) for path, leaf in leaves[:_MOST_LEAVES]]
    if len(leaves) == 1 and not leaves[0][0]:
        return names[0]
    names += ["..."] * (len(leaves) > _MOST_LEAVES)
    return f"{type(state).__name__}({', '.join(names)})"


def _name(path: tuple, leaf: Any) -> str:
    """Returns the path of a leaf with its dtype and shape, or with its value, as text."""
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        text = f"{leaf!r:.60}"
    else:
        text = f"{aval.dtype}{list(aval.shape)}"
    return f"{jax.tree_util.keystr(path)} {text}".strip()
