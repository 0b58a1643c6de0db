"""Models of flax ``linen`` modules with random streams or running statistics."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
from flax import errors, linen
from jax import Array

from fedjax_sim.models.mode import Evaluation
from fedjax_sim.models.padding import present, row_mask
from fedjax_sim.tree import names
from fedjax_sim.types import Model, Params, PyTree


def stateful_linen(module: linen.Module, collections: Any, initial: Callable) -> Model:
    """Returns the model of a module of abstract collections and ``key -> variables``."""
    bare = "batch_stats" not in collections  # then params are the collection "params" alone
    training = LinenTraining(module, bare)

    def init(key: Array) -> Params:
        variables = initial(key)
        return variables.get("params", {}) if bare else {"params": {}} | dict(variables)

    def apply(params: Params, x: Any) -> Any:
        return call(module, module.apply, training.variables(params), x, training=False)

    return Model(init, Evaluation(apply), training, None if bare else is_batch_statistic)


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
    bare: bool  # params are the collection "params" alone
    frozen: bool = False  # normalise by the running statistics, which stay as they are

    def variables(self, params: Params) -> dict[str, Any]:
        """Returns the collections of the module."""
        return {"params": params} if self.bare else params

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
