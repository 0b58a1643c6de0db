"""Functions of a run by what they trace to: objective, algorithm, weights, evaluation and others.

Every function is traced once, for one model and the clients of one round, whatever the number of
replicas and devices.  While the other functions are traced, a stand-in replaces the clients'
oracle.  So the objective is traced once for all of them, and no other part changes with it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec
from jax.tree_util import Partial

from fedjax_sim.checks import shapes_of_one
from fedjax_sim.engine import (
    NO_PROBES,
    WHOLE,
    BlockedData,
    ByClient,
    Execution,
    Gathered,
    Local,
    OnHost,
    Placement,
    PresentData,
    Probes,
    RunState,
    evaluate,
    evaluation_context,
    first_state,
    one_round,
    stacks,
)
from fedjax_sim.local import mean_over
from fedjax_sim.runs.storage.traces import Trace, combined, shapes, trace
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    PyTree,
    Setup,
    Task,
    Timeline,
    Work,
    uniform_weights,
)

_EVERY = PartitionSpec()


class RunTraces(NamedTuple):
    """Traces of a run's functions; None for a function that the run does not have."""

    objective: Trace  # and model and minibatches: as far as the other functions use the oracle
    algorithm: Trace
    weighting: Trace
    evaluation: Trace | None
    probes: Trace | None
    execution: Trace | None


def trace_run(
    algorithm: FedAlgorithm | Callable[[Any], FedAlgorithm],
    setup: Setup,
    *,
    batched: bool,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
    numbers: PyTree = None,
) -> RunTraces:
    """Returns the traces of all functions of a run.

    Args:
        algorithm: an algorithm, or a function of ``numbers`` that returns one.
        setup, execution, probes: those of the run.
        batched: the setup is of several replicas, with an axis of models.
        numbers: tree of hyper-parameters that are arguments of the program; their types count.
    """
    make: Any = (lambda _: algorithm) if isinstance(algorithm, FedAlgorithm) else algorithm
    task, timeline = setup.task, setup.timeline
    if np.ndim(timeline.clients) == 3:
        timeline = jax.tree.map(lambda x: x[0], timeline)
    one_timeline, eval_fn = shapes(timeline[:1]), shapes(setup.eval_fn)
    now = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), one_timeline)
    params, key = shapes_of_one(setup.params, batched=batched), _key()
    hyper = shapes(numbers)
    objective = _Objective(task)
    stand_in = dataclasses.replace(shapes(task), oracle=objective.oracle, placement=None)
    # Only these decide what the server receives.
    alone = execution if isinstance(execution, Gathered) else _one_visit

    def begin(hyper: PyTree, task: Task, params: PyTree) -> RunState:
        return first_state(make(hyper), Setup(task, timeline, params))

    def round_with(strategy: Execution, probes: Probes = NO_PROBES) -> Callable[..., PyTree]:
        def program(hyper, task: Task, now: Timeline, state: RunState, key: Array) -> PyTree:
            made = make(hyper)
            inner = stacks.strategy(made.aggregation, strategy)
            # Where the server receives neither them nor their share, weights are no part of the
            # algorithm.
            share = made.requires.mean_of_states is not None
            received = share or stacks.is_stacked(made.aggregation)
            weighting = setup.weighting if received else uniform_weights
            return one_round(made, task, now, state, key, inner, weighting, probes)

        return program

    def measure(hyper, task: Task, eval_fn: Any, part: Timeline, state, key) -> PyTree:
        context = evaluation_context(make(hyper), task, part, state, key)
        return jax.tree.map(jnp.asarray, evaluate(eval_fn, context))

    first, state = trace(begin, hyper, stand_in, params)
    arguments = hyper, stand_in, now, state, key
    rounds, _ = trace(round_with(alone), *arguments)
    weighting, _ = trace(setup.weighting, _works(now))
    evaluation = probed = given = None
    if setup.eval_fn is not None:
        evaluation, _ = trace(measure, hyper, stand_in, eval_fn, one_timeline, state, key)
        if evaluation.error is not None and task.placement is None:  # it may read the task's data
            evaluation, _ = trace(measure, hyper, shapes(task), eval_fn, one_timeline, state, key)
    if probes.client or probes.server or probes.run:
        probed, _ = trace(round_with(alone, probes), *arguments)
    if execution is not None:
        given, _ = trace(round_with(execution), *arguments)
    return RunTraces(
        combined(objective.traces),
        combined({"begin": first, "round": rounds}),
        weighting,
        evaluation,
        probed,
        given,
    )


def identified(traces: RunTraces) -> dict[str, str | None]:
    """Returns the digests of a run's functions by name; None for those that it does not have."""
    for name, part in traces._asdict().items():
        if part is not None and part.error is not None:
            raise ValueError(
                f"{name} cannot be traced for one client of one round, so nothing tells this run "
                f"from another in its folder: {part.error}"
            ) from part.error
    return {name: part and part.digest for name, part in traces._asdict().items()}


def _one_visit(
    local: Local, shared: PyTree, slots: PyTree, weights: Array
) -> tuple[PyTree, PyTree]:
    """Execution of the first slot, in which one visit is traced once."""
    slot = jax.tree.map(lambda x: lax.index_in_dim(x, 0, keepdims=False), slots)
    upload, outputs = local(shared, slot)
    mean = jax.tree.map(lambda x: x * weights[0].astype(x.dtype), upload)
    size = weights.shape[0]
    return mean, jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), outputs)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _works(now: Timeline) -> Work:
    """Returns the shapes of the visits of one round."""
    slots = jax.ShapeDtypeStruct(now.clients.shape, np.int32)
    keys = jax.ShapeDtypeStruct(now.clients.shape, _key().dtype)
    return Work(slots, slots, slots, slots, slots, keys, now.max_steps)  # pyright: ignore


class _Objective:
    """Stand-in for a task's oracle, which traces what is called of the real one.

    The results of the stand-in depend on all arguments in a way that no two uses share, also after
    differentiation: they are sums of sines.
    """

    def __init__(self, task: Task):
        self.traces: dict[str, Trace] = {}
        self._results: dict[str, PyTree] = {}
        self._functions: list[Callable] = []  # those of `oracle.mean`
        # Shapes only: JAX keeps this object with what it traced, and so would keep the data.
        task, self._where = _on_one_device(task)
        self._task = shapes(task)

    def oracle(self, client: Array, key: Array, max_steps: int, *start: Array) -> Oracle:
        visit = (client, key, *start)

        def stand_in(number: int, name: str) -> Callable[..., PyTree]:
            def call(oracle: Oracle, *x: Any) -> PyTree:
                return getattr(oracle, name)(*x)

            return lambda *x: self._called(number, name, call, visit, max_steps, x)

        def mean(function: Callable, *step: Array) -> Callable[..., PyTree]:
            function = function if isinstance(function, Partial) else Partial(function)
            if function.func not in self._functions:
                self._functions.append(function.func)
            number = self._functions.index(function.func)
            name = f"mean {number}"

            def call(oracle: Oracle, function: Partial, step: tuple, models: tuple) -> PyTree:
                return mean_over(oracle)(function, *step)(*models)

            return lambda *models: self._called(
                len(Oracle._fields) + number, name, call, visit, max_steps, (function, step, models)
            )

        fields = [stand_in(i, name) for i, name in enumerate(Oracle._fields)]
        return Oracle(*fields)._replace(mean=mean)

    def _called(
        self,
        number: int,
        name: str,
        call: Callable[..., PyTree],
        visit: tuple,
        max_steps: int,
        arguments: tuple,
    ) -> PyTree:
        arrays, rebuilt = _arrays_in(arguments)

        def real(oracle: Oracle, arrays: list[Array]) -> PyTree:
            return call(oracle, *rebuilt(arrays))

        def derivative(oracle: Oracle, arrays: list[Array], tangents: list[Array]) -> PyTree:
            return jax.jvp(lambda *x: real(oracle, list(x)), arrays, tangents)

        @jax.custom_jvp
        def called(*arrays: Array) -> PyTree:
            shape = self._traced(name, real, visit, max_steps, list(arrays))
            return _sines(number, (visit, rebuilt(list(arrays))), shape)

        @called.defjvp
        def _(primals: tuple, tangents: tuple) -> PyTree:
            shape, _ = self._traced(
                f"derivative of {name}", derivative, visit, max_steps, list(primals), list(tangents)
            )
            return jax.jvp(lambda *x: _sines(number, (visit, x), shape), primals, tangents)

        return called(*arrays)

    def _traced(
        self, name: str, function: Callable, visit: tuple, max_steps: int, *arguments: PyTree
    ) -> PyTree:
        """Traces ``function(oracle, *arguments)`` and returns the shapes of its results."""

        def program(task: Task, visit: tuple, *arguments: PyTree) -> PyTree:
            client, key, *start = visit
            return function(task.oracle(client, key, max_steps, *start), *arguments)

        given = shapes((visit, *arguments))
        name = f"{name} {max_steps} {given}"
        if name not in self.traces:
            whole = self._where.spread(program, (_EVERY,) * len(given), _EVERY)
            self.traces[name], self._results[name] = trace(whole, self._task, *given)
        if (error := self.traces[name].error) is not None:
            raise error
        return self._results[name]


def _arrays_in(arguments: PyTree) -> tuple[list[Array], Callable[[list[Array]], PyTree]]:
    """Returns the arrays in a tree, and the function that returns the tree with other arrays.

    Python's numbers stay, since a function may decide by them.
    """
    leaves, structure = jax.tree.flatten(arguments)
    places = [i for i, x in enumerate(leaves) if not isinstance(x, bool | int | float | complex)]

    def rebuilt(arrays: list[Array]) -> PyTree:
        changed = dict(zip(places, arrays, strict=True))
        return jax.tree.unflatten(structure, [changed.get(i, x) for i, x in enumerate(leaves)])

    return [leaves[i] for i in places], rebuilt


def _sines(number: int, arguments: PyTree, results: PyTree) -> PyTree:
    """Returns values of the shapes ``results``, another one per leaf, number and argument."""
    total = np.float32(number)
    for i, x in enumerate(jax.tree.leaves(arguments)):
        if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        x = lax.convert_element_type(jnp.real(x), np.float32)
        total += lax.reduce_sum(lax.sin(x + np.float32(i)), tuple(range(x.ndim)))
    leaves, structure = jax.tree.flatten(results)
    values = [jnp.broadcast_to(total + i, x.shape).astype(x.dtype) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, values)


def _on_one_device(task: Task) -> tuple[Task, Placement]:
    """Returns a task with its real oracle, and where on one device the oracle can be called."""
    where = task.placement
    if isinstance(where, ByClient):
        alone = where.alone()
        task = jax.tree.map(
            lambda x: dataclasses.replace(x, placement=alone) if isinstance(x, BlockedData) else x,
            shapes(task),
            is_leaf=lambda x: isinstance(x, BlockedData),
        )
        return dataclasses.replace(task, placement=alone), alone
    if isinstance(where, OnHost):
        assert where.source is not None
        assert where.build is not None
        rows = max(int(np.max(where.source.sizes)), 1)
        examples = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype),
            shapes(jax.tree.map(np.asarray, where.source.load(0, 0))),
        )
        offsets, ids = (cast(Array, jax.ShapeDtypeStruct((n,), np.int32)) for n in (2, 1))
        return where.build(PresentData.place, PresentData(examples, offsets, ids)), WHOLE
    return task, WHOLE
