"""Figures and tables as methods of results, which stand below the reports that draw them.

The package's ``__init__`` registers the functions of the reports.
"""

from collections.abc import Callable
from typing import Any

_registered: dict[str, Callable[..., Any]] = {}


def register(**functions: Callable[..., Any]) -> None:
    """Sets the functions behind :func:`plot` and :func:`table`."""
    _registered.update(functions)


def plot(result: Any, *arguments: Any, **options: Any) -> Any:
    """Returns a figure of the result, that of :func:`fedjax_sim.plot` with the same arguments."""
    return _registered["plot"](result, *arguments, **options)


def table(result: Any, form: str) -> str:
    """Returns the table of a result, as "text" or as "html"."""
    return _registered["table"](result, form)
