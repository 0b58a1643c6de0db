"""Digests of the user's own functions: a changed function is another run."""

import ast
import inspect
import pathlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_sim.cli.references import Reference
from fedjax_sim.simulation.files import digest
from fedjax_sim.simulation.identity import description


def code_digests(references: Iterable[Reference]) -> dict[str, str]:
    """Returns the digest of each reference's code by ``MODULE:FUNCTION``.

    The code is the source of the function's module and of the modules that it imports, as far as
    they lie outside of installed packages; comments and formatting do not count.  A function of an
    installed package counts by :func:`~fedjax_sim.simulation.identity.description`.

    Example:
        >>> from fedjax_sim.cli.references import load
        >>> digests = code_digests([load("loss", "optax:l2_loss")])
        >>> list(digests), len(digests["optax:l2_loss"])
        (['optax:l2_loss'], 16)
    """
    return {reference.text: _digest(reference.function) for reference in references}


def changed_code(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns a line per reference that is in both and whose code differs.

    Example:
        >>> changed_code({"mine:net": "12"}, {"mine:net": "34", "mine:loss": "56"})
        ['the code of mine:net has changed']
    """
    return [
        f"the code of {name} has changed" for name in old if new.get(name, old[name]) != old[name]
    ]


def _digest(function: Any) -> str:
    module = inspect.getmodule(function)
    sources = {} if module is None else _sources(module, {})
    name = getattr(function, "__qualname__", "")
    return digest(name, dict(sorted(sources.items()))) if sources else description(function)


def _sources(module: types.ModuleType, known: dict[str, str]) -> dict[str, str]:
    """Adds the sources of a module and of those that it imports to ``known``."""
    path = _own_file(module)
    if path is None or module.__name__ in known:
        return known
    known[module.__name__] = ast.unparse(ast.parse(path.read_text()))
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else _module_name(value)
        if name in sys.modules:
            _sources(sys.modules[name], known)
    return known


def _module_name(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _own_file(module: types.ModuleType) -> pathlib.Path | None:
    """Returns the source of a module that is neither installed nor part of this library."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or module.__name__.startswith("fedjax_sim."):
        return None
    path = pathlib.Path(file).resolve()
    folders = {
        pathlib.Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib", "stdlib")
    }
    return None if any(path.is_relative_to(folder) for folder in folders) else path
