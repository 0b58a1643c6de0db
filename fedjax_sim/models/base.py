"""Models as pure functions: adapters for flax modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fedjax_sim.checks import called, shapes_text
from fedjax_sim.models.axes import LinenRoles, roles_of_nnx
from fedjax_sim.models.paths import nested
from fedjax_sim.models.stateful import (
    NnxParts,
    call,
    in_standard_promotion,
    is_stateful,
    linen_shapes,
    linen_variables,
    stateful_linen,
    stateful_nnx,
)
from fedjax_sim.tree import fast
from fedjax_sim.types import Model, Params

__all__ = ["Model", "from_linen", "from_nnx"]


def from_nnx(constructor: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Model of a flax ``nnx`` module.

    ``params`` are the module's ``nnx.Param`` and ``nnx.BatchStat`` variables as nested dicts with
    string keys: numbered children (of ``nnx.List``, ``nnx.Sequential``) get the keys "0", "1", ....

    ``apply`` runs the module in evaluation mode (``module.eval()``).  A module with random streams
    (``Dropout``) or running statistics (``BatchNorm``) also has ``train``, in training mode: the
    streams derive from the key, batch normalisation uses the mean and the variance of the examples
    of the batch with positive weight, and the next running statistics are those that flax computes.
    :func:`fedjax_sim.running_statistics` combines them over clients.

    ``apply`` and ``train`` raise ValueError for parameters of other names or shapes than those of
    ``init``: a module would broadcast a bias of one entry and ignore leaves that it does not know.

    Args:
        constructor: builds the module from random streams.  It is traced here for its structure,
            without allocating arrays, and again by ``init``.

    Raises:
        ValueError: the constructor is a module, or no function of random streams, or it fails, or
            the module has other variables, such as caches.

    Example:
        >>> model = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> params = model.init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, params)
        {'bias': (2,), 'kernel': (3, 2)}
        >>> model.apply(params, jnp.ones((4, 3))).shape
        (4, 2)

        With dropout; the objective passes the key of each step to the module:

        >>> from fedjax_sim.objectives import cross_entropy
        >>> model = from_nnx(lambda rngs: nnx.Sequential(
        ...     nnx.Dropout(0.5, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)))
        >>> examples = {"x": jnp.ones((1, 8)), "y": jnp.array([1])}
        >>> def loss(seed):
        ...     params = model.init(jax.random.key(0))
        ...     return float(cross_entropy(model)(params, examples, jax.random.key(seed))[0])
        >>> loss(1) == loss(1), loss(1) == loss(2)
        (True, False)
    """
    _check_constructor(constructor)

    def build() -> nnx.Module:
        expected = "a function that builds a flax.nnx module"
        module = called("constructor", "random streams", expected, constructor, nnx.Rngs(0))
        if not isinstance(module, nnx.Module):
            raise ValueError(
                f"constructor returns a {type(module).__name__}; expected a flax.nnx module"
            )
        return module

    abstract = nnx.eval_shape(build)
    graphdef, state, statistics, streams, rest = nnx.split(
        abstract, nnx.Param, nnx.BatchStat, nnx.RngState, ...
    )
    others = nnx.to_flat_state(rest)
    if len(others):
        shown = ", ".join(
            f"{'.'.join(map(str, path))} ({type(variable).__name__})" for path, variable in others
        )
        raise ValueError(
            f"constructor returns a module with the variables {shown}; expected nnx.Param, "
            "nnx.BatchStat and random streams only, since apply(params, x) cannot update others"
        )
    axis_roles = roles_of_nnx(abstract)
    parts = NnxParts(graphdef, *(dict(nnx.to_flat_state(x)) for x in (state, statistics, streams)))
    stored = parts.variables | parts.statistics

    @jax.jit  # one program, where every layer would have several
    def init(key: jax.Array) -> Params:
        created = dict(nnx.to_flat_state(nnx.state(constructor(nnx.Rngs(fast(key))))))
        return nested({path: created[path][...] for path in stored})

    if parts.statistics or parts.streams:
        return stateful_nnx(init, parts)._replace(axis_roles=axis_roles)

    def apply(params: Params, x: Any) -> Any:
        return in_standard_promotion(parts.module(params, None), x)

    return Model(init, apply, axis_roles=axis_roles)


def from_linen(module: linen.Module, example_input: Any) -> Model:
    """Model of a flax ``linen`` module; ``params`` is its collection "params".

    If the module has running statistics, ``params`` is ``{"params": ..., "batch_stats": ...}``.
    Modules with random streams or running statistics have ``train`` as in :func:`from_nnx`.
    Arguments ``train``, ``training``, ``is_training``, ``deterministic`` and
    ``use_running_average`` of the module's ``__call__`` are passed according to the mode; layers
    that leave ``deterministic`` or ``use_running_average`` open get them, too.  Other parameters
    than those of ``init`` are refused as in :func:`from_nnx`.

    Args:
        module: called as ``module(x)``.
        example_input: array or ``jax.ShapeDtypeStruct`` of one batch, for the shapes only.

    Raises:
        ValueError: another kind of module, a class of modules, an example without a shape, a module
            that fails for the example, or collections besides "params" and "batch_stats".

    Example:
        >>> model = from_linen(linen.Dense(2), jnp.ones((1, 3)))
        >>> params = model.init(jax.random.key(0))
        >>> model.apply(params, jnp.ones((4, 3))).shape
        (4, 2)
        >>> norm = from_linen(linen.BatchNorm(), jnp.ones((1, 3)))
        >>> sorted(norm.init(jax.random.key(0))["batch_stats"])
        ['mean', 'var']
    """
    if not isinstance(module, linen.Module):
        shown = module.__name__ if isinstance(module, type) else f"a {type(module).__name__}"
        raise ValueError(
            f"module is {shown}; expected an instance of a flax.linen module, such as "
            "linen.Dense(2) (nnx modules: from_nnx)"
        )
    leaves = jax.tree.leaves(example_input)
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        raise ValueError(
            f"example_input is {example_input!r:.60}; expected an array or a jax.ShapeDtypeStruct"
        )

    def start(key: jax.Array, x: Any) -> Any:
        return call(module, module.init, key, x, training=False)

    noted = LinenRoles()
    with linen.intercept_methods(noted):
        collections = called(
            "module",
            f"an example_input {shapes_text(example_input)}",
            "a flax.linen module that JAX can trace when it is called as module(x)",
            lambda: jax.eval_shape(lambda x: start(jax.random.key(0), x), example_input),
        )
    others = sorted(set(collections) - {"params", "batch_stats"})
    if others:
        raise ValueError(
            f"module has the collections {others}; expected 'params' and 'batch_stats' only, "
            "since apply(params, x) cannot update others"
        )

    def initial(key: jax.Array) -> Any:
        # Values do not matter to `init`, so it allocates zeros of the example's shape.
        return start(key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example_input))

    if is_stateful(module, collections, example_input):
        model = stateful_linen(module, collections, initial)
        bare = "batch_stats" not in collections
        return model._replace(axis_roles=noted.roles(() if bare else ("params",)))

    shapes = linen_shapes(collections)

    def init(key: jax.Array) -> Params:
        return initial(key).get("params", {})

    def apply(params: Params, x: Any) -> Any:
        variables = linen_variables(params, shapes, bare=True)
        return in_standard_promotion(module.apply, variables, x)

    return Model(init, apply, axis_roles=noted.roles(()))


def _check_constructor(constructor: Any) -> None:
    if isinstance(constructor, (nnx.Module, linen.Module)) or not callable(constructor):
        raise ValueError(
            f"constructor is a {type(constructor).__name__}; expected a function that builds a "
            "flax.nnx module from random streams, such as lambda rngs: nnx.Linear(3, 2, rngs=rngs)"
        )
    # The metaclass of flax hides the arguments of a class.
    is_class = isinstance(constructor, type)
    called = functools.partial(constructor.__init__, None) if is_class else constructor
    taken = inspect.signature(called)
    try:
        taken.bind(None)
    except TypeError as error:
        names = ", ".join(taken.parameters)
        raise ValueError(f"constructor takes ({names}); expected one argument, the rngs") from error
