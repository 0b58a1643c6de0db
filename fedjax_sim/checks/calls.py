"""Calls of functions that users write: the arguments that they take, the errors that they raise."""

import inspect
from collections.abc import Callable
from typing import Any

import jax

from fedjax_sim.types import PyTree

# Errors that callers tell apart: divergence, an absent package, files and devices. Every other one
# of a user's function, but for refusals, is a mistake in its arguments or in the function.
_MEANT = (FloatingPointError, ImportError, OSError, RuntimeError, MemoryError)
_PACKAGE = __name__.partition(".")[0]


def takes(function: Any, arguments: tuple[str, ...]) -> bool:
    """Returns True for a function that takes these arguments by position."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def check_takes(name: str, function: Any, arguments: tuple[str, ...], hint: str = "") -> None:
    """Raises ValueError for what is no function of these arguments; only their number counts."""
    expected = f"({', '.join(arguments)}){hint}"
    if not callable(function):
        raise ValueError(f"{name} is {function!r:.60}; expected a function of {expected}")
    if not takes(function, arguments):
        taken = ", ".join(inspect.signature(function).parameters)
        raise ValueError(f"{name} takes ({taken}); expected {expected}")


def called(
    name: str,  # of the function, as the user knows it
    given: str,  # its arguments in words
    expected: str,  # what it should be or return
    function: Callable,
    *arguments: Any,
    refuses: bool = False,  # it raises ValueError on purpose, with a message of its own
) -> Any:
    """Returns what a user's function returns; its mistakes become a ValueError with its name."""
    try:
        return function(*arguments)
    except _MEANT:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and (refuses or _is_refusal(error)):
            raise
        cause = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ValueError(f"{name} fails for {given} ({cause}); expected {expected}") from error


def _is_refusal(error: ValueError) -> bool:
    """Returns True for a user's own kind of error, or one that names an argument of the user.

    JAX, NumPy and optax raise ValueError itself, for example for trees of other structures, and the
    package's arithmetic of trees names its operands.
    """
    if type(error) is not ValueError:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    package, _, rest = module.partition(".")
    return package == _PACKAGE and not rest.startswith("tree")


def shapes_text(tree: PyTree) -> str:
    """Returns the paths and shapes of a pytree's arrays as text."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    texts = [f"{jax.tree_util.keystr(path) or '.'} {_shape(x)}" for path, x in leaves]
    return ", ".join(texts) or "without arrays"


def _shape(leaf: Any) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{leaf.dtype}{list(leaf.shape)}"
