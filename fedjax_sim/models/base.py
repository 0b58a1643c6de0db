"""Models as pairs of pure functions, and adapters for flax modules."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen, nnx

from fedjax_sim.types import Params


class Model(NamedTuple):
    """A model: ``init(key) -> params`` and ``apply(params, x) -> outputs``.

    Both are pure.  ``params`` is any pytree of arrays, ``x`` a batch ``[B, ...]`` of floating
    inputs, ``outputs`` is ``[B, ...]`` (logits or predictions).  There are no other requirements,
    so any pair of such functions is a model:

    Example:
        >>> ridge = Model(
        ...     init=lambda key: {"w": jnp.zeros(3)},
        ...     apply=lambda params, x: x @ params["w"],
        ... )
        >>> ridge.apply(ridge.init(jax.random.key(0)), jnp.ones((2, 3))).shape
        (2,)
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, Any], Any]


def from_nnx(constructor: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Model of a flax ``nnx`` module.

    ``params`` are the module's ``nnx.Param`` variables as nested dicts with string keys: numbered
    children (of ``nnx.List``, ``nnx.Sequential``) get the keys "0", "1", ....

    Args:
        constructor: builds the module from random streams.  It is traced here for its structure,
            without allocating arrays, and again by ``init``.

    Raises:
        ValueError: the module has variables other than ``nnx.Param``: running statistics
            (``BatchNorm``) or random streams (``Dropout``).  A pure ``apply(params, x)`` could not
            update them; normalise with ``GroupNorm`` or ``LayerNorm``.

    Example:
        >>> model = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
        >>> params = model.init(jax.random.key(0))
        >>> jax.tree.map(jnp.shape, params)
        {'bias': (2,), 'kernel': (3, 2)}
        >>> model.apply(params, jnp.ones((4, 3))).shape
        (4, 2)
    """
    abstract = nnx.eval_shape(lambda: constructor(nnx.Rngs(0)))
    graphdef, state, rest = nnx.split(abstract, nnx.Param, ...)
    others = nnx.to_flat_state(rest)
    if len(others):
        names = ", ".join(
            f"{'.'.join(map(str, path))} ({type(variable).__name__})" for path, variable in others
        )
        raise ValueError(
            f"constructor returns a module with state besides nnx.Param: {names}; expected "
            "parameters only, since apply(params, x) has no way to update or draw it "
            "(use GroupNorm or LayerNorm for BatchNorm, and no Dropout)"
        )
    variables = dict(nnx.to_flat_state(state))

    def init(key: jax.Array) -> Params:
        created = nnx.state(constructor(nnx.Rngs(key)), nnx.Param)
        return _nested({path: variable[...] for path, variable in nnx.to_flat_state(created)})

    def apply(params: Params, x: Any) -> Any:
        filled = {
            path: variable.replace(_lookup(params, path)) for path, variable in variables.items()
        }
        module = nnx.merge(graphdef, nnx.from_flat_state(filled))
        return module(x)  # pyright: ignore[reportCallIssue]

    return Model(init, apply)


def from_linen(module: linen.Module, example_input: Any) -> Model:
    """Model of a flax ``linen`` module; ``params`` is its collection "params".

    Args:
        module: called as ``module(x)``.
        example_input: array or ``jax.ShapeDtypeStruct`` of one batch, for the shapes only.

    Raises:
        ValueError: the module has collections besides "params" (``BatchNorm`` has "batch_stats").

    Example:
        >>> model = from_linen(linen.Dense(2), jnp.ones((1, 3)))
        >>> params = model.init(jax.random.key(0))
        >>> model.apply(params, jnp.ones((4, 3))).shape
        (4, 2)
    """
    collections = jax.eval_shape(module.init, jax.random.key(0), example_input)
    others = sorted(set(collections) - {"params"})
    if others:
        raise ValueError(
            f"module has the collections {others} besides 'params'; expected parameters only, "
            "since apply(params, x) has no way to update them (use GroupNorm or LayerNorm for "
            "BatchNorm)"
        )

    def init(key: jax.Array) -> Params:
        # Values do not matter to `init`, so it allocates zeros of the example's shape.
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example_input)
        variables: Any = module.init(key, zeros)
        return variables.get("params", {})

    def apply(params: Params, x: Any) -> Any:
        return module.apply({"params": params}, x)

    return Model(init, apply)


def _nested(flat: dict[tuple, Any]) -> Params:
    # All keys are strings: integer and string keys in one dict cannot be sorted, and checkpoints do
    # not keep integer keys.
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = value
    return tree


def _lookup(params: Params, path: tuple) -> Any:
    for key in path:
        params = params[str(key)]
    return params
