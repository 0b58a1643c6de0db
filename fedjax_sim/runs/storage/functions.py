"""One object for equal functions, so that setups which are built again share compiled programs."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable

import jax
from jax.tree_util import Partial

from fedjax_sim.runs.storage.fingerprint import fingerprint
from fedjax_sim.types import PyTree, Setup

# The latest functions by fingerprint; a setup has two, its oracle and its evaluation.
_functions: OrderedDict[Hashable, Callable] = OrderedDict()
_MOST_FUNCTIONS = 32


def share_functions(setup: Setup) -> Setup:
    """Returns the setup with its functions replaced by earlier ones that are equal.

    A compiled program takes a setup as an argument only if the functions in it are those that the
    program was compiled for.  JAX compares most functions by identity, and a function that builds a
    setup for a seed returns new objects each time.  Here functions are equal if their
    :func:`~fedjax_sim.runs.storage.fingerprint.fingerprint` is.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> def make_setup(seed):
        ...     data = fs.FederatedData({"x": np.full((4, 1), seed)}, np.array([0, 2, 4]))
        ...     loss = lambda w, batch, key: (batch["x"][:, 0] - w) ** 2
        ...     task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=2))
        ...     return fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), np.float32(0))
        >>> first, second = make_setup(1), make_setup(2)
        >>> jax.tree.structure(first) == jax.tree.structure(second)
        False
        >>> first, second = share_functions(first), share_functions(second)
        >>> jax.tree.structure(first) == jax.tree.structure(second)
        True
    """
    task = dataclasses.replace(setup.task, oracle=_shared(setup.task.oracle))
    return dataclasses.replace(setup, task=task, eval_fn=_shared(setup.eval_fn))


def _shared(tree: PyTree) -> PyTree:
    """Replaces the functions of the Partials in a pytree."""

    def replaced(part: PyTree) -> PyTree:
        if not isinstance(part, Partial):
            return part
        return Partial(_first_equal(part.func), *_shared(part.args), **_shared(part.keywords))

    return jax.tree.map(replaced, tree, is_leaf=lambda x: isinstance(x, Partial))


def _first_equal(function: Callable) -> Callable:
    key = fingerprint(function)
    first = _functions.setdefault(key, function)
    _functions.move_to_end(key)
    while len(_functions) > _MOST_FUNCTIONS:
        _functions.popitem(last=False)
    return first
