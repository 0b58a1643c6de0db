"""Order of the two batch axes where runs are vmapped over a round that vmaps its clients."""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.core import eval_jaxpr
from jax.custom_batching import custom_vmap

from fedjax_sim.engine.execution.strategies import Execution, Local
from fedjax_sim.types import PyTree, Upload


def clients_outside(execution: Execution) -> Execution:
    """Returns the strategy with clients as the outer axis of arrays, and runs as the inner one.

    The runs of a sweep see the same minibatches, so a client's local step is one product of all
    their models, ``[runs, inputs] [inputs, batch]``.  A ``vmap`` over runs stores the models as
    ``[runs, clients, inputs]``, and XLA:CPU then transposes them before and after every product.
    Programs cannot be differentiated backwards.
    """

    def run(local: Local, shared: PyTree, slots: PyTree, weights: Array) -> tuple[Upload, PyTree]:
        # Rates of the runs are values that `local` closes over, and `custom_vmap` accepts only
        # arguments that are batched.
        first = jax.tree.map(lambda x: x[0], slots)
        program, shapes = jax.make_jaxpr(local, return_shape=True)(shared, first)

        def visit(constants: list, shared: PyTree, slot: PyTree) -> PyTree:
            leaves = jax.tree.leaves((shared, slot))
            results = eval_jaxpr(program.jaxpr, constants, *leaves)
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        exchanged = _exchanged(visit)
        return execution(
            lambda shared, slot: exchanged(program.consts, shared, slot), shared, slots, weights
        )

    return run


def _exchanged(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """``function`` whose first ``vmap`` becomes the outer one of two."""

    @custom_vmap
    def one(*arguments: PyTree) -> PyTree:
        return function(*arguments)

    @one.def_vmap
    def over_clients(clients: int, by_client: tuple, *arguments: PyTree) -> tuple[PyTree, PyTree]:
        @custom_vmap
        def each(*arguments: PyTree) -> PyTree:
            return jax.vmap(function, _axes(by_client), axis_size=clients)(*arguments)

        @each.def_vmap
        def over_runs(runs: int, by_run: tuple, *arguments: PyTree) -> tuple[PyTree, PyTree]:
            inner = jax.vmap(function, _axes(by_run), axis_size=runs)
            # Arguments with both axes are [runs, clients, ...].
            axes = jax.tree.map(
                lambda client, run: (1 if run else 0) if client else None, by_client, by_run
            )
            results = jax.vmap(inner, axes, out_axes=1, axis_size=clients)(*arguments)
            return results, _all(results)

        results = each(*arguments)
        return results, _all(results)

    return one


def _axes(batched: tuple) -> Any:
    """``in_axes`` of the arguments that are batched."""
    return jax.tree.map(lambda yes: 0 if yes else None, batched)


def _all(results: PyTree) -> PyTree:
    """Marks of results that are all batched."""
    return jax.tree.map(lambda _: True, results)
