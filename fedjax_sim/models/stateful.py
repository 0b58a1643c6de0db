"""Models of flax modules with random streams or running statistics.

Batch normalisation counts the examples of positive weight only: short batches are filled up.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import errors, linen, nnx
from flax.core.meta import unbox
from jax import Array

from fedjax_sim.models.paths import Shapes, check_params, lookup, nested, shapes_of, strings
from fedjax_sim.tree import Where, leaves, names
from fedjax_sim.types import Model, Params, PyTree

_ROWS: contextvars.ContextVar[Array] = contextvars.ContextVar("rows of the batch that count")


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """Function ``apply`` of a model with ``train``; objectives refuse it."""

    function: Callable[[Params, Any], Any]
    trains_otherwise = True

    @property
    def computes_in(self) -> str | None:
        """The dtype of the function, if it has one of its own."""
        return getattr(self.function, "computes_in", None)

    def __call__(self, params: Params, x: Any) -> Any:
        return self.function(params, x)


def frozen_statistics(model: Model) -> Model:
    """Model whose batch normalisations use the running statistics in training, too.

    The statistics never change; scales and biases are trained.  This is the usual way to fine-tune
    a pretrained model on small batches.  The gradient of a statistic is 0, so every algorithm runs
    on the model; :func:`fedjax_sim.freeze` with ``model.statistics`` of the given model keeps the
    statistics out of uploads, weight decay and optimiser states.

    Args:
        model: of :func:`~fedjax_sim.models.from_nnx` or :func:`~fedjax_sim.models.from_linen`.

    Raises:
        ValueError: the model has no running statistics, or its function ``train`` is not that of
            these two.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from fedjax_sim import models
        >>> model = models.from_nnx(lambda rngs: nnx.BatchNorm(1, epsilon=0.0, rngs=rngs))
        >>> params, x = model.init(jax.random.key(0)), jnp.array([[5.0], [7.0]])
        >>> train = frozen_statistics(model).train
        >>> train(params, x, jax.random.key(1), jnp.ones(2))[0].tolist()  # mean 0, variance 1
        [[5.0], [7.0]]
    """
    if model.statistics is None or not isinstance(model.train, (NnxTraining, LinenTraining)):
        raise ValueError(
            f"model has the statistics {model.statistics} and the function train {model.train}; "
            "expected a model of from_nnx or from_linen with batch normalisation"
        )
    train = dataclasses.replace(model.train, frozen=True)
    return model._replace(train=_Constant(train, model.statistics), statistics=None)


@dataclasses.dataclass(frozen=True)
class _Constant:
    train: Callable[..., tuple[Any, PyTree]]
    where: Where

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        statistics, rest = leaves.split(params, self.where)
        params = leaves.join(jax.lax.stop_gradient(statistics), rest)
        return self.train(params, x, key, weights)


def present(weights: Array) -> Array:
    """Returns True for examples of positive weight, or for all examples if there are none."""
    # A batch without examples (of an empty slot) then still has finite statistics.
    positive = weights.astype(bool)
    return positive | ~positive.any()


def row_mask(rows: Array, x: Array, axis: int = -1) -> Array:
    """Returns the mask of a layer's input ``[k B, ...]``, k entries per example of ``rows [B]``."""
    if x.ndim < 2 or x.shape[0] % rows.shape[0] or axis % x.ndim == 0:
        raise ValueError(
            f"a layer that reads its whole batch has an input of shape {x.shape} with features on "
            f"axis {axis}; expected the {rows.shape[0]} examples of the batch on the first axis, "
            "since short batches are filled up with examples that must not count"
        )
    repeated = jnp.repeat(rows, x.shape[0] // rows.shape[0])
    return repeated.reshape(-1, *[1] * (x.ndim - 1))


@dataclasses.dataclass(frozen=True, eq=False)
class NnxParts:
    """The abstract parts of an nnx module, by path."""

    graphdef: Any
    variables: dict[tuple, Any]  # nnx.Param
    statistics: dict[tuple, Any]  # nnx.BatchStat
    streams: dict[tuple, Any]  # nnx.RngState

    def module(self, params: Params, key: Any) -> Any:
        """Returns the module with these parameters, and streams that derive from the key."""
        stored = self.variables | self.statistics
        check_params(
            params, {strings(path): value.get_value().shape for path, value in stored.items()}
        )
        filled = {path: stored[path].replace(lookup(params, path)) for path in stored}
        for number, (path, variable) in enumerate(self.streams.items()):
            shape, value = variable.get_value().shape, jnp.uint32(0)
            if isinstance(variable, nnx.RngKey):
                value = jax.random.fold_in(key, number)
                value = jax.random.split(value, shape) if shape else value
            filled[path] = variable.replace(jnp.broadcast_to(value, shape))
        return nnx.merge(self.graphdef, nnx.from_flat_state(filled))


def stateful_nnx(init: Callable[[Array], Params], parts: NnxParts) -> Model:
    """Returns the model of a module with streams or statistics."""

    def apply(params: Params, x: Any) -> Any:
        module = parts.module(params, jax.random.key(0))
        module.set_attributes(
            deterministic=True, use_running_average=True, raise_if_not_found=False
        )
        return in_standard_promotion(module, x)

    where = nnx.filterlib.PathIn(*map(strings, parts.statistics)) if parts.statistics else None
    return Model(init, Evaluation(apply), NnxTraining(parts), where)


@dataclasses.dataclass(frozen=True, eq=False)
class NnxTraining:
    """Function ``train`` of a model: the module in training mode."""

    parts: NnxParts
    frozen: bool = False  # normalise by the running statistics, which stay as they are

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        module = self.parts.module(params, key)
        module.set_attributes(
            deterministic=False, use_running_average=self.frozen, raise_if_not_found=False
        )
        with contextlib.nullcontext() if self.frozen else _padding_excluded(module, weights):
            outputs = in_standard_promotion(module, x)
        new = dict(nnx.to_flat_state(nnx.state(module, nnx.BatchStat)))
        updated = dict.fromkeys(self.parts.variables)
        for path in self.parts.statistics:
            updated[path] = new[path][...].astype(lookup(params, path).dtype)
        return outputs, nested(updated)

    def momentum(self, params: Params, x: Any) -> float | None:
        """Returns the largest momentum of the module's batch normalisations; None without any."""
        del params, x
        parts = self.parts.variables | self.parts.statistics | self.parts.streams
        module = nnx.merge(self.parts.graphdef, nnx.from_flat_state(parts))
        layers = [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.BatchNorm)]
        return max((float(layer.momentum) for layer in layers), default=None)


def in_standard_promotion(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a module returns; flax's normalisations promote dtypes, also of half precision.

    JAX's strict promotion refuses that.
    """
    with jax.numpy_dtype_promotion("standard"):
        return function(*arguments)


@contextlib.contextmanager
def _padding_excluded(module: nnx.Module, weights: Array) -> Iterator[None]:
    """Makes the batch normalisations of a module ignore examples of weight 0."""
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.BatchNorm):
            node.__class__ = _masked(type(node))
    token = _ROWS.set(present(weights))
    try:
        yield
    finally:
        _ROWS.reset(token)


@functools.cache
def _masked(layer: type[nnx.BatchNorm]) -> type[nnx.BatchNorm]:
    """Returns a subclass whose calls pass the mask of the rows; flax's layer has the argument."""

    def masked_call(self: Any, x: Array, *args: Any, mask: Any = None, **options: Any) -> Array:
        rows = row_mask(_ROWS.get(), x, self.axis)
        mask = rows if mask is None else rows & mask
        return layer.__call__(self, x, *args, mask=mask, **options)

    return type(layer.__name__, (layer,), {"__call__": masked_call})


def stateful_linen(module: linen.Module, collections: Any, initial: Callable) -> Model:
    """Returns the model of a module of abstract collections and ``key -> variables``."""
    bare = "batch_stats" not in collections  # then params are the collection "params" alone
    training = LinenTraining(module, linen_shapes(collections), bare)

    def init(key: Array) -> Params:
        variables = initial(key)
        return variables.get("params", {}) if bare else {"params": {}} | dict(variables)

    def apply(params: Params, x: Any) -> Any:
        return call(module, module.apply, training.variables(params), x, training=False)

    return Model(init, Evaluation(apply), training, None if bare else is_batch_statistic)


def linen_shapes(collections: Any) -> Shapes:
    """Returns the shapes of a module's collections by path, without flax's boxes of metadata."""
    return shapes_of(unbox({"params": {}} | dict(collections)))


def linen_variables(params: Params, expected: Shapes, bare: bool) -> dict[str, Any]:
    """Returns the collections of a module, from the parameters of its model."""
    variables: Any = {"params": params} if bare else params
    check_params(unbox(params), {path[bare:]: shape for path, shape in expected.items()})
    return variables


def is_stateful(module: linen.Module, collections: Any, example_input: Any) -> bool:
    """Returns True if training differs from evaluation: statistics, random streams or a mode."""
    if "batch_stats" in collections or _mode(type(module), False, False):
        return True

    def run(variables: Any, x: Any) -> Any:
        return call(module, module.apply, variables, x, training=True)

    try:
        jax.eval_shape(run, collections, example_input)
    except errors.InvalidRngError:
        return True
    return False


def is_batch_statistic(path: tuple[str, ...], leaf: Any) -> bool:
    """Returns True for leaves of the collection "batch_stats"."""
    del leaf
    return path[0] == "batch_stats"


@dataclasses.dataclass(frozen=True, eq=False)
class LinenTraining:
    """Function ``train`` of a model: the module in training mode."""

    module: linen.Module
    shapes: Shapes  # of the collections, by path
    bare: bool  # params are the collection "params" alone
    frozen: bool = False  # normalise by the running statistics, which stay as they are

    def variables(self, params: Params) -> dict[str, Any]:
        """Returns the collections of the module."""
        return linen_variables(params, self.shapes, self.bare)

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        variables = self.variables(params)
        outputs, new = call(
            self.module,
            self.module.apply,
            variables,
            x,
            training=True,
            rows=None if self.frozen else present(weights),
            rngs={"params": key},  # streams of all other names fall back to this one
            mutable=["batch_stats"],
        )

        def updated(path: tuple, leaf: Array) -> Array | None:
            if not is_batch_statistic(names(path), leaf):
                return None
            value: Any = new
            for key in path:
                value = value[key.key]
            return value.astype(leaf.dtype)

        if self.bare or self.frozen:
            new = variables
        statistics = jax.tree_util.tree_map_with_path(updated, variables)
        return outputs, statistics["params"] if self.bare else statistics

    def momentum(self, params: Params, x: Any) -> float | None:
        """Returns the largest momentum of batch normalisations, from shapes; None without any."""
        momenta: list[float] = []

        def note(next_call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
            if isinstance(context.module, linen.BatchNorm):
                momenta.append(float(context.module.momentum))
            return next_call(*args, **kwargs)

        with linen.intercept_methods(note):
            # A function of its own, since JAX would not trace a known one again.
            key, weights = jax.random.key(0), jnp.ones(x.shape[0], bool)
            jax.eval_shape(lambda params, x: self(params, x, key, weights), params, x)
        return max(momenta, default=None)


def call(
    module: linen.Module,
    method: Callable[..., Any],
    *args: Any,
    training: bool,
    rows: Array | None = None,
    **options: Any,
) -> Any:
    """Calls ``module.init`` or ``module.apply`` in training or evaluation mode.

    The examples ``rows`` ``[B]`` count in batch statistics; None: batch normalisation uses the
    running statistics, in training, too.
    """
    by_batch = training and rows is not None

    def fill_in(next_call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        layer = context.module
        if context.method_name != "__call__":
            return next_call(*args, **kwargs)
        given = _given(type(layer), args, kwargs)
        for name, value in (("deterministic", not training), ("use_running_average", not by_batch)):
            if name in _parameters(type(layer)) and getattr(layer, name, value) is None:
                kwargs = {name: value} | kwargs if name not in given else kwargs
        if isinstance(layer, linen.BatchNorm):
            if training and not by_batch:
                # Attributes of a bound layer, which exists for this call only, are frozen.
                object.__setattr__(layer, "use_running_average", None)
                args, kwargs = args[:1], kwargs | {"use_running_average": True}
            if by_batch:
                mask = row_mask(rows, args[0], layer.axis)  # pyright: ignore
                other = kwargs.get("mask")
                kwargs = kwargs | {"mask": mask if other is None else mask & other}
        return next_call(*args, **kwargs)

    mode = {
        name: value
        for name, value in _mode(type(module), training, by_batch).items()
        if getattr(module, name, None) is None
    }
    # flax's normalisations promote dtypes, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"), linen.intercept_methods(fill_in):
        return method(*args, **mode, **options)


def _mode(module: type, training: bool, by_batch: bool) -> dict[str, bool]:
    """Returns the arguments of a module's ``__call__`` that state the mode."""
    values = {
        "train": training,
        "training": training,
        "is_training": training,
        "deterministic": not training,
        "use_running_average": not by_batch,
    }
    return {name: value for name, value in values.items() if name in _parameters(module)}


def _parameters(module: type) -> Any:
    return inspect.signature(module.__call__).parameters


def _given(module: type, args: tuple, kwargs: dict) -> Any:
    return inspect.signature(module.__call__).bind_partial(None, *args, **kwargs).arguments
