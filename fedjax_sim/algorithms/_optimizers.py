"""Optax transformations that users pass: what is refused, and whose random numbers they draw."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedjax_sim.checks import check_generator, is_concrete
from fedjax_sim.local import optimizer_init, optimizer_update
from fedjax_sim.tree import leaves
from fedjax_sim.types import Params

_DRAWS = 2**31 + 12  # branch of the key of a visit or of a round
_KEY_NAME = re.compile(r"(^|_)(p?rngs?|keys?)($|_)")
# Primitives of programs that draw random numbers.
_PRIMITIVES = ("random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform")


def check_optimizer(name: str, optimizer: Any, params: Params | None = None) -> None:
    """Refuses values that are no optax optimizer, or one that climbs or draws for itself.

    The probe takes five steps from parameters 0, of the structure of ``params`` if given, along
    gradients of 1.  A sum of 0 passes, as in a warm-up, and so do random transformations, traced
    hyper-parameters, and, without ``params``, transformations for the structure of one model.
    """
    if not all(callable(getattr(optimizer, part, None)) for part in ("init", "update")):
        raise ValueError(
            f"{name} is {optimizer!r}; expected an optax.GradientTransformation, "
            "for example optax.sgd(0.1) or optax.adam(1e-3)"
        )
    if params is None:
        tried = [[_zeros((1,)), _zeros((1, 1))]]
    else:
        # One entry per leaf suffices, unless the optimizer was made for the shapes.
        tried = [jax.tree.map(lambda x, of=of: _zeros(of(x)), params) for of in (_ones, jnp.shape)]
    for start in tried:
        try:
            opt_state, moved = _five_steps(optimizer, start)
            program = jax.make_jaxpr(functools.partial(optimizer_update, optimizer))
            program = str(program(start, opt_state, start))
        except Exception:  # any error of the user's functions: made for other trees or arguments
            continue
        break
    else:
        return
    if _check_keys(name, opt_state):
        return
    if any(primitive in program for primitive in _PRIMITIVES):
        raise ValueError(
            f"{name} draws random numbers that do not come from a key in its state, so all clients "
            "and rounds would have the same; expected a key in the state, as that of "
            "optax.add_noise"
        )
    for leaf in jax.tree.leaves(moved):
        if is_concrete(leaf) and (total := float(np.sum(np.asarray(leaf)))) > 0:
            raise ValueError(
                f"{name} climbs: five steps along gradients of 1 move parameters from 0 to "
                f"{total:.3g}; expected an optimizer that descends, with its learning rate, such "
                "as optax.sgd(0.1) or optax.adam(1e-3), not optax.scale_by_adam()"
            )


def own_draws(opt_state: optax.OptState, key: Array) -> optax.OptState:
    """Returns an optimizer's state whose random keys depend on the key of a visit or a round, too.

    Otherwise all clients would draw the same numbers, and after a reset in every visit.
    """
    keys, others = leaves.split(opt_state, is_key)

    def folded(leaf: Array) -> Array:
        typed = _is_typed(leaf)
        words = jax.random.key_data(leaf) if typed else leaf

        def one(pair: Array) -> Array:
            branch = jax.random.fold_in(key, np.uint32(_DRAWS))
            return jax.random.key_data(
                jax.random.fold_in(jax.random.fold_in(branch, pair[0]), pair[1])
            )

        words = jax.vmap(one)(words.reshape(-1, 2)).reshape(words.shape)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf)) if typed else words

    return leaves.join(jax.tree.map(folded, keys), others)


def is_key(path: leaves.Path, leaf: Any) -> bool:
    """Predicate of typed keys, and of raw ones, which are leaves ``[..., 2]`` named as keys."""
    if _is_typed(leaf):
        return True
    named = any(_KEY_NAME.search(part) for part in path)
    return named and leaf.dtype == jnp.uint32 and leaf.shape[-1:] == (2,)


def _is_typed(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _check_keys(name: str, opt_state: optax.OptState) -> bool:
    """Returns whether a state has random keys, after the check that all of them are known."""
    keys, others = leaves.split(opt_state, is_key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(others):
        if leaf.dtype == jnp.uint32 and leaf.shape[-1:] in ((2,), (4,)):
            raise ValueError(
                f"{name} has a state of type uint32 and shape {leaf.shape} at "
                f"{jax.tree_util.keystr(path)}, which may be a random key that all clients would "
                "share; expected a typed key, such as jax.random.key(0), or two entries in a leaf "
                "named key or rng"
            )
    for leaf in jax.tree.leaves(keys):
        if _is_typed(leaf):
            check_generator(f"a key in the state of {name}", leaf)
    return bool(jax.tree.leaves(keys))


@jax.ensure_compile_time_eval()
def _five_steps(optimizer: Any, start: Params) -> tuple[optax.OptState, Params]:
    """Returns the optimizer's initial state, and where five steps end, also inside of jit."""
    opt_state = first = optimizer_init(optimizer, start)
    gradient, moved = jax.tree.map(np.ones_like, start), start
    for _ in range(5):  # by operations, whose programs serve all numbers: sweeps probe every rate
        updates, opt_state = optimizer_update(optimizer, gradient, opt_state, moved)
        moved = optax.apply_updates(moved, updates)
    return first, moved


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32)  # of NumPy, which jit does not trace


def _ones(leaf: Any) -> tuple[int, ...]:
    return (1,) * jnp.ndim(leaf)
