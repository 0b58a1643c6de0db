"""Models of flax ``nnx`` modules with random streams or running statistics."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from fedjax_sim.models.mode import Evaluation
from fedjax_sim.models.padding import present, row_mask
from fedjax_sim.models.paths import lookup, nested, strings
from fedjax_sim.tree import fast
from fedjax_sim.types import Model, Params, PyTree

_ROWS: contextvars.ContextVar[Array] = contextvars.ContextVar("rows of the batch that count")


def stateful_nnx(
    constructor: Callable[[nnx.Rngs], nnx.Module],
    graphdef: Any,
    state: Any,
    statistics: Any,
    streams: Any,
) -> Model:
    """Returns the model of a module, of which the parts are abstract."""
    parts = _Parts(
        graphdef,
        dict(nnx.to_flat_state(state)),
        dict(nnx.to_flat_state(statistics)),
        dict(nnx.to_flat_state(streams)),
    )
    stored = parts.variables | parts.statistics

    @jax.jit
    def init(key: Array) -> Params:
        created = dict(nnx.to_flat_state(nnx.state(constructor(nnx.Rngs(fast(key))))))
        return nested({path: created[path][...] for path in stored})

    def apply(params: Params, x: Any) -> Any:
        module = parts.module(params, jax.random.key(0))
        module.set_attributes(
            deterministic=True, use_running_average=True, raise_if_not_found=False
        )
        return _called(module, x)

    where = nnx.filterlib.PathIn(*map(strings, parts.statistics)) if parts.statistics else None
    return Model(init, Evaluation(apply), NnxTraining(parts), where)


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts:
    graphdef: Any
    variables: dict[tuple, Any]  # abstract nnx.Param by path
    statistics: dict[tuple, Any]  # abstract nnx.BatchStat by path
    streams: dict[tuple, Any]  # abstract nnx.RngState by path

    def module(self, params: Params, key: Array) -> nnx.Module:
        """Returns the module with these parameters, and streams that derive from the key."""
        stored = self.variables | self.statistics
        filled = {path: stored[path].replace(lookup(params, path)) for path in stored}
        for number, (path, variable) in enumerate(self.streams.items()):
            shape, value = variable.get_value().shape, jnp.uint32(0)
            if isinstance(variable, nnx.RngKey):
                value = jax.random.fold_in(key, number)
                value = jax.random.split(value, shape) if shape else value
            filled[path] = variable.replace(jnp.broadcast_to(value, shape))
        return nnx.merge(self.graphdef, nnx.from_flat_state(filled))


@dataclasses.dataclass(frozen=True, eq=False)
class NnxTraining:
    """Function ``train`` of a model: the module in training mode."""

    parts: _Parts
    frozen: bool = False  # normalise by the running statistics, which stay as they are

    def __call__(self, params: Params, x: Any, key: Array, weights: Array) -> tuple[Any, PyTree]:
        module = self.parts.module(params, key)
        module.set_attributes(
            deterministic=False, use_running_average=self.frozen, raise_if_not_found=False
        )
        if self.frozen:
            outputs = _called(module, x)
        else:
            with _padding_excluded(module, weights):
                outputs = _called(module, x)
        new = dict(nnx.to_flat_state(nnx.state(module, nnx.BatchStat)))
        updated = dict.fromkeys(self.parts.variables)
        for path in self.parts.statistics:
            updated[path] = new[path][...].astype(lookup(params, path).dtype)
        return outputs, nested(updated)


def _called(module: nnx.Module, x: Any) -> Any:
    # flax's normalisations promote dtypes, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        return module(x)  # pyright: ignore[reportCallIssue]


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
