"""The local loop, one masked scan over the steps of a visit, and learning rates."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.extend.core import get_opaque_trace_state

from fedjax_sim import tree
from fedjax_sim.checks import called, check_one_number
from fedjax_sim.local.transforms import (
    add_decayed_weights,
    asam,
    clip_by_global_norm,
    corrected,
    mean_over,
    perturbed,
    proximal,
    sam,
    transform_oracle,
    unchanged,
    with_term,
)
from fedjax_sim.types import Params, PyTree, Round, Scalar, Work, specified

ScalarOrSchedule = Scalar | Callable[[Array], Scalar]  # a number, or a schedule over rounds


class Carried:
    """Value that an oracle's functions read and replace while a visit is traced.

    An algorithm's ``local`` has no argument for it: :func:`local_steps` and :func:`local_path`
    carry it through their loops beside the algorithm's own values.
    """

    def __init__(self, value: PyTree):
        self._value, self._trace = value, get_opaque_trace_state()

    @property
    def value(self) -> PyTree:
        """The current value.

        Raises:
            ValueError: the loop or the function that is traced does not carry the value.
        """
        if get_opaque_trace_state() != self._trace:
            raise ValueError(
                "the gradient of a client with running statistics or private leaves is taken "
                "inside a loop or a transformed function of the algorithm; expected calls in the "
                "steps of fedjax_sim.local.local_steps or local_path, or outside of loops"
            )
        return self._value

    @value.setter
    def value(self, value: PyTree) -> None:
        self._value, self._trace = value, get_opaque_trace_state()


# All values that loops carry, those of outer contexts first.
_CARRIED: contextvars.ContextVar[tuple[Carried, ...]] = contextvars.ContextVar(
    "carried", default=()
)


@contextlib.contextmanager
def carrying(value: PyTree) -> Iterator[Carried]:
    """Context in which local loops carry a value, beside those of the contexts around it.

    Example:
        >>> work = Work(0, 0, jnp.array(3), 1, 0, None, max_steps=5)
        >>> with carrying(jnp.array(1)) as count:
        ...     def step(x, k):
        ...         count.value = 2 * count.value
        ...         return x + k
        ...     result = local_steps(step, jnp.array(0), work)
        >>> int(result), int(count.value)
        (3, 8)
    """
    carried = Carried(value)
    token = _CARRIED.set((*_CARRIED.get(), carried))
    try:
        yield carried
    finally:
        _CARRIED.reset(token)


@contextlib.contextmanager
def carried_unchanged() -> Iterator[None]:
    """Context after which carried values are what they were before, for a visit that only compares.

    Example:
        >>> with carrying(jnp.array(1)) as count:
        ...     with carried_unchanged():
        ...         count.value = 2 * count.value
        ...     result = count.value
        >>> int(result)
        1
    """
    carried = _CARRIED.get()
    values = _values(carried)
    yield
    _set(carried, values)


def local_steps(step: Callable[[PyTree, Array], PyTree], carry: PyTree, work: Work) -> PyTree:
    """Applies ``carry <- step(carry, k)`` for ``k = 0 .. work.num_steps - 1``.

    The scan has the static length ``work.max_steps``; steps beyond ``num_steps`` do not change the
    carry, so clients with different numbers of steps share one program.  On a CPU these steps cost
    nothing if clients run one after the other; clients that run together wait for the longest.

    Args:
        step: one step, from the carry and the number of the step.
        carry: tree of arrays, usually the local model.
        work: the visit.

    Example:
        >>> work = Work(0, 0, jnp.array(3), 1, 0, None, max_steps=5)
        >>> int(local_steps(lambda carry, k: carry + k, jnp.array(0), work))
        3
    """
    carried = _CARRIED.get()
    if not carried:
        return _masked_scan(step, carry, work)
    start = carry, _values(carried)
    carry, values = _masked_scan(_with(carried, step), start, work)
    _set(carried, values)
    return carry


def _masked_scan(step: Callable[[PyTree, Array], PyTree], carry: PyTree, work: Work) -> PyTree:
    def body(carry: PyTree, k: Array) -> tuple[PyTree, None]:
        branch, mask = _branch_and_mask(k < work.num_steps)

        def masked(carry: PyTree, k: Array) -> PyTree:
            return tree.where(mask, step(carry, k), carry)

        return jax.lax.cond(branch, masked, lambda carry, k: carry, carry, k), None

    return jax.lax.scan(body, carry, jnp.arange(work.max_steps, dtype=jnp.int32))[0]


def _branch_and_mask(active: Array) -> tuple[Array, Array]:
    """Returns the predicate of a branch around a step, and the mask of the step's results.

    A client that runs alone on a CPU branches around the steps that it does not take, and its mask
    is True.  In all other cases every step is computed, so the branch is True, and the mask selects
    its results: accelerators would read the predicate of every step back, and if clients are
    vmapped, a branch becomes a selection, and everything that it reads, the data set included,
    becomes a batch of copies.  The predicate of the branch is therefore never batched.  XLA removes
    branches and selections whose predicate is constant.
    """
    return jax.lax.platform_dependent(active, cpu=_branch_if_alone, default=_select)


def _select(active: Array) -> tuple[Array, Array]:
    return jnp.array(True), active


@jax.custom_batching.custom_vmap
def _branch_if_alone(active: Array) -> tuple[Array, Array]:
    return active, jnp.array(True)


@_branch_if_alone.def_vmap
def _select_if_batched(
    axis_size: int, in_batched: list[bool], active: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    del axis_size, in_batched  # the only argument is batched
    return _select(active), (False, True)


def local_path(step: Callable[[PyTree, Array], PyTree], start: PyTree, work: Work) -> PyTree:
    """All carries of :func:`local_steps`: leaves ``[max_steps + 1, ...]``, the start first.

    From index ``work.num_steps`` on they are equal.

    Example:
        >>> work = Work(0, 0, jnp.array(2), 1, 0, None, max_steps=3)
        >>> local_path(lambda carry, k: carry + 1 + k, jnp.array(0), work).tolist()
        [0, 1, 3, 3]
    """
    carried = _CARRIED.get()
    if not carried:
        return _masked_path(step, start, work)
    path, values = _masked_path(_with(carried, step), (start, _values(carried)), work)
    _set(carried, jax.tree.map(lambda x: x[-1], values))
    return path


def _masked_path(step: Callable[[PyTree, Array], PyTree], start: PyTree, work: Work) -> PyTree:
    def one(carry: PyTree, k: Array) -> tuple[PyTree, PyTree]:
        carry = tree.where(k < work.num_steps, step(carry, k), carry)
        return carry, carry

    _, rest = jax.lax.scan(one, start, jnp.arange(work.max_steps, dtype=jnp.int32))
    return jax.tree.map(lambda first, later: jnp.concatenate([first[None], later]), start, rest)


def _values(carried: tuple[Carried, ...]) -> tuple[PyTree, ...]:
    return tuple(one.value for one in carried)


def _set(carried: tuple[Carried, ...], values: tuple[PyTree, ...]) -> None:
    for one, value in zip(carried, values, strict=True):
        one.value = value


def _with(
    carried: tuple[Carried, ...], step: Callable[[PyTree, Array], PyTree]
) -> Callable[[PyTree, Array], PyTree]:
    """Returns the step of a loop whose carry is ``(carry, carried values)``."""

    def step_of_both(pair: PyTree, k: Array) -> PyTree:
        carry, values = pair
        _set(carried, values)
        carry = step(carry, k)
        return carry, _values(carried)

    return step_of_both


def sgd(
    lr: Scalar | Callable[[Array], Scalar], grad: Callable[[Params, Array], Params]
) -> Callable[[Params, Array], Params]:
    """Returns the step ``x <- x - lr * grad(x, k)``; ``lr`` may be a schedule over the steps.

    Example:
        >>> float(sgd(0.5, lambda x, k: 2 * x)(jnp.array(1.0), 0))
        0.0
    """
    return lambda x, k: tree.add_scale(x, -(lr(k) if callable(lr) else lr), grad(x, k))


def optimizer_steps(
    optimizer: optax.GradientTransformation,
    grad: Callable[[Params, Array], Params],
    start: tuple[Params, optax.OptState],
    work: Work,
    scale: Scalar | None = None,
) -> tuple[Params, optax.OptState]:
    """Returns model and optimizer state after the steps of a visit by an optax optimizer.

    Args:
        optimizer: any optax optimizer.
        grad: ``(y, k) -> gradient`` of step k.
        start: the model and the state of the optimizer before the first step, as that of
            :func:`optimizer_init`.
        work: the visit.
        scale: factor of the optimizer's updates, for example ``-lr`` for a transform that returns
            directions, such as ``optax.scale_by_adam()``.

    Example:
        >>> work = Work(0, 0, jnp.array(2), 1, 0, None, max_steps=3)
        >>> heavy_ball, x = optax.sgd(0.5, momentum=0.5), jnp.array(1.0)
        >>> start = x, optimizer_init(heavy_ball, x)
        >>> y, _ = optimizer_steps(heavy_ball, lambda y, k: y, start, work)
        >>> float(y)  # 1 - 0.5, then 0.5 - 0.5 (0.5 + 0.5 * 1)
        0.0
    """

    def step(carry: tuple[Params, optax.OptState], k: Array) -> tuple[Params, optax.OptState]:
        y, opt_state = carry
        updates, opt_state = optimizer_update(optimizer, grad(y, k), opt_state, y)
        updates = updates if scale is None else tree.scale(scale, updates)
        return optax.apply_updates(y, updates), opt_state

    return local_steps(step, start, work)


def optimizer_init(optimizer: optax.GradientTransformation, params: Params) -> optax.OptState:
    """Returns the initial state of an optax optimizer, in single precision at least.

    In half precision squares of small gradients are 0, and decays near 1 are rounded to 1.

    Example:
        >>> optimizer_init(optax.scale_by_adam(), jnp.ones(2, jnp.bfloat16)).nu.dtype
        dtype('float32')
    """
    return jax.tree.map(jnp.asarray, optimizer.init(_wide(params)))


def _wide(x: PyTree) -> PyTree:
    return tree.wide(jax.tree.map(jnp.asarray, x))


def optimizer_update(
    optimizer: optax.GradientTransformation,
    gradient: Params,
    opt_state: optax.OptState,
    params: Params | None = None,
) -> tuple[Params, optax.OptState]:
    """Returns the updates of an optax optimizer and its new state, in the dtypes of before.

    Updates have the dtypes of the gradient, and are computed in single precision at least.

    Raises:
        ValueError: a gradient of another shape than the parameters, or updates of another shape
            than the gradient, which would be broadcast to the parameters.

    Example:
        >>> heavy_ball, g = optax.sgd(0.5, momentum=jnp.float32(0.9)), jnp.ones(2, jnp.bfloat16)
        >>> updates, _ = optimizer_update(heavy_ball, g, optimizer_init(heavy_ball, g))
        >>> updates.tolist(), str(updates.dtype)
        ([-0.5, -0.5], 'bfloat16')
    """
    # optax raises float decays to integer step counts, which strict promotion refuses.
    if params is not None:
        tree.check_alike("the optimizer's gradient", gradient, params, "the parameters")
    with jax.numpy_dtype_promotion("standard"):
        updates, new = optimizer.update(_wide(gradient), opt_state, _wide(params))
    tree.check_alike("the optimizer's update", updates, gradient, "the gradient")
    return _as_before(updates, gradient), _as_before(new, opt_state)


def _as_before(new: PyTree, old: PyTree) -> PyTree:
    """Returns floating leaves in the dtypes of the tree before; another structure stays."""
    if jax.tree.structure(new) != jax.tree.structure(old):
        return new

    def cast(leaf: Array, before: Array) -> Array:
        kinds = jnp.result_type(leaf), jnp.result_type(before)
        floating = all(jnp.issubdtype(kind, jnp.floating) for kind in kinds)
        return jnp.asarray(leaf, kinds[1]) if floating else leaf

    return jax.tree.map(cast, new, old)


def rate(lr: ScalarOrSchedule, work: Work, name: str = "lr") -> Scalar:
    """Returns the learning rate of a visit: ``lr`` itself, or ``lr(round)`` if it is a schedule.

    The round is the one whose broadcast the client started from.

    Args:
        lr: number or schedule.
        work: the visit.
        name: of the rate, for messages.

    Raises:
        ValueError: a rate with axes, which would be multiplied entry by entry with the model.

    Example:
        >>> work = Work(jnp.array(3), 0, 1, 1, jnp.array(1), None, 1)
        >>> float(rate(lambda round: 0.5**round, work)), rate(0.1, work)
        (0.25, 0.1)
    """
    return _at(name, lr, work.round - work.staleness)


def server_rate(lr: ScalarOrSchedule, round: Round, name: str = "lr") -> Scalar:
    """Returns the rate of a server update: ``lr`` itself, or ``lr(round)`` if it is a schedule.

    Args:
        lr: number or schedule.
        round: the server update.
        name: of the rate, for messages.

    Raises:
        ValueError: a rate with axes, as for :func:`rate`.

    Example:
        >>> round = Round(jnp.array(2), jnp.array(1), num_clients=1, key=jax.random.key(0))
        >>> float(server_rate(lambda round: 0.5**round, round)), server_rate(0.1, round)
        (0.25, 0.1)
    """
    return _at(name, lr, round.number)


def _at(name: str, lr: ScalarOrSchedule, round: Array) -> Scalar:
    if not callable(lr):
        check_one_number(**{name: lr})
        return lr
    expected = "a schedule: a function of the round that JAX can trace and that returns one number"
    value = called(name, "a traced round", expected, lr, round)
    if value is None:
        raise ValueError(f"{name}(round) is None; expected one number")
    check_one_number(**{f"{name}(round)": value})
    return value


def inverse_rate(lr: Scalar) -> Scalar:
    """Returns ``1 / lr``, or 0 for a rate of exactly 0, at which the client's model does not move.

    The mean gradient along the path of a visit, ``(x - y) / (K lr)``, is then 0, as after a visit
    without steps, and not 0 / 0.

    Example:
        >>> inverse_rate(0.5), float(inverse_rate(jnp.array(0.0)))
        (2.0, 0.0)
    """
    if isinstance(lr, (int, float)):
        return 1 / lr if lr else 0.0
    moves = lr != 0
    return jnp.where(moves, 1 / jnp.where(moves, lr, 1), 0)


@specified
def exponential_decay(lr: Scalar, decay: Scalar) -> ScalarOrSchedule:
    """Returns the schedule ``lr * decay**t`` over rounds t = 0, 1, ...

    Example:
        >>> round(float(exponential_decay(0.5, 0.9)(2)), 4)
        0.405
    """
    return lambda round: (
        lr * jnp.asarray(decay) ** jnp.asarray(round).astype(jnp.result_type(decay, float))
    )


def per_step(total: PyTree, work: Work) -> PyTree:
    """Returns ``total / work.num_steps``, or ``total`` (which must be 0) after a visit of 0 steps.

    Empty slots are visits without steps: dividing by their number would be 0 / 0.

    Example:
        >>> work = Work(0, 0, jnp.array(4), 1, 0, None, max_steps=5)
        >>> float(per_step(jnp.array(2.0), work))
        0.5
    """
    return tree.divide(total, jnp.maximum(work.num_steps, 1))
