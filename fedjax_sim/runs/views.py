"""Figures and tables as methods of results, which stand below the reports that draw them.

The package's ``__init__`` registers the functions of the reports.
"""

from collections.abc import Callable
from typing import Any

_registered: dict[str, Callable[..., Any]] = {}


def register(**functions: Callable[..., Any]) -> None:
    """Sets the functions behind :func:`plot` and :func:`html`."""
    _registered.update(functions)


def plot(result: Any, *arguments: Any, **options: Any) -> Any:
    """Returns a figure of the result, that of :func:`fedjax_sim.plot` with the same arguments."""
    return _registered["plot"](result, *arguments, **options)


def html(result: Any) -> str:
    """Returns the table that Jupyter shows for the result."""
    return _registered["html"](result)
