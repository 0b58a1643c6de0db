"""Local steps by an optax optimizer, whose state is reset, kept by the client or averaged."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._optimizers import check_optimizer, is_key, own_draws
from fedjax_sim.algorithms._shared import real
from fedjax_sim.local import optimizer_init, optimizer_steps
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    PyTree,
    Round,
    Scalar,
    ServerState,
    Upload,
    Work,
)

__all__ = ["LocalState", "check_local_state", "locally_optimized"]

LocalState: TypeAlias = Literal["reset", "keep", "mean"]


class SharedLocalState(NamedTuple):
    """State of a server that averages the states of the clients' optimizers."""

    inner: ServerState
    local: PyTree  # the optimizer's state without random keys

    @property
    def params(self) -> Params:
        """The model."""
        return self.inner.params


class _Start(NamedTuple):
    """Message to clients that start from the mean of all states."""

    params: Params
    local: PyTree


class _Visit(NamedTuple):
    upload: Upload
    local: PyTree  # floating leaves of the optimizer's state, and by how much its counts grew
    present: Array  # 1, or 0 after a visit without steps


def check_local_state(lr: Any, local_optimizer: Any, local_state: Any) -> None:
    """Refuses contradictory arguments of :func:`~fedjax_sim.algorithms.fedavg`."""
    if local_optimizer is None:
        if lr is None:
            raise ValueError("lr is None; expected a learning rate, or local_optimizer")
        if local_state is not None:
            raise ValueError(
                f"local_state is {local_state!r} without local_optimizer; expected both or neither"
            )
        return
    check_optimizer("local_optimizer", local_optimizer)
    if lr is not None:
        raise ValueError(
            f"lr is {lr} beside local_optimizer, which has its own rate; expected one of them"
        )
    if local_state not in (None, "reset", "keep", "mean"):
        raise ValueError(f"local_state is {local_state!r}; expected 'reset', 'keep' or 'mean'")


def locally_optimized(
    serve: Callable[[Callable], FedAlgorithm],  # its server receives the mean displacement
    optimizer: optax.GradientTransformation,
    local_state: LocalState,
    anchored: Callable[[Oracle, Params], Oracle] = lambda oracle, anchor: oracle,
    scale: Callable[[Work], Scalar] | None = None,  # factor of the updates in a visit
) -> FedAlgorithm:
    """Returns ``serve(local)`` whose clients take the steps of an optax optimizer."""

    def visit(
        x: Params, opt_state: optax.OptState, oracle: Oracle, work: Work
    ) -> tuple[Upload, optax.OptState]:
        factor = None if scale is None else scale(work)
        opt_state = own_draws(opt_state, work.key)
        grad = anchored(oracle, x).grad
        y, opt_state = optimizer_steps(optimizer, grad, (x, opt_state), work, factor)
        return tree.sub(x, y), opt_state

    served = serve(visit)

    def checked(params: Params) -> ServerState:
        if scale is None:  # a complete optimizer
            check_optimizer("local_optimizer", optimizer, params)
        return served.init(params)

    if local_state == "reset":

        def local_from_start(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple:
            return visit(x, optimizer_init(optimizer, x), oracle, work)[0], state

        return served._replace(init=checked, local=local_from_start)
    if local_state == "keep":
        return served._replace(
            init=checked, init_client=lambda params: optimizer_init(optimizer, params)
        )

    def init(params: Params) -> SharedLocalState:
        _, start = tree.leaves.split(optimizer_init(optimizer, params), is_key)
        for path, leaf in jax.tree_util.tree_leaves_with_path(start):
            if not (_floating(leaf) or jnp.issubdtype(leaf.dtype, jnp.integer)):
                raise ValueError(
                    f"local_optimizer has a state of type {leaf.dtype} at "
                    f"{jax.tree_util.keystr(path)}; expected numbers, of which a mean can be "
                    "taken, with local_state='mean'"
                )
        return SharedLocalState(checked(params), start)

    def local(message: _Start, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        x, start = message
        keys, _ = tree.leaves.split(optimizer_init(optimizer, x), is_key)
        delta, opt_state = visit(x, tree.leaves.join(keys, start), oracle, work)
        _, end = tree.leaves.split(opt_state, is_key)
        present = real(work.num_steps > 0)

        # The state itself and not its change: a convex combination of second moments cannot become
        # negative by rounding.
        def sent(end: Array, start: Array) -> Array:
            return (
                end * present.astype(end.dtype) if _floating(end) else (end - start).astype(float)
            )

        return _Visit(delta, jax.tree.map(sent, end, start), present), state

    def update(state: SharedLocalState, mean: _Visit, round: Round) -> SharedLocalState:
        some = mean.present > 0
        share = jnp.where(some, mean.present, 1)  # of the weight of visits with steps

        def next_value(old: Array, sent: Array) -> Array:
            value = sent / share.astype(sent.dtype)
            value = value if _floating(old) else old + jnp.round(value).astype(old.dtype)
            return jnp.where(some, value, old)

        return SharedLocalState(
            served.update(state.inner, mean.upload, round),
            jax.tree.map(next_value, state.local, mean.local),
        )

    wrapped = served.requiring(
        exact_mean="clients upload the states of their optimizers, not changes of them"
    )
    return wrapped._replace(
        init=init,
        local=local,
        update=update,
        broadcast=lambda state, round: _Start(state.inner.params, state.local),
    )


def _floating(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
