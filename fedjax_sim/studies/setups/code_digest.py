"""Digests of the user's own functions: a changed function is another run."""

import ast
import inspect
import pathlib
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedjax_sim.runs import digest
from fedjax_sim.studies.setups.references import Reference


def code_digests(references: Iterable[Reference]) -> dict[str, str]:
    """Returns the digest of each reference's code by ``MODULE:FUNCTION``.

    The code is the source of the function, of everything in its module that it names, directly or
    through another function, and of the modules that it imports, as far as they lie outside of
    installed packages.  Comments, docstrings and formatting do not count.  A function of an
    installed package counts by its name.

    Example:
        >>> from fedjax_sim.studies.setups.references import load
        >>> digests = code_digests([load("loss", "optax:l2_loss")])
        >>> list(digests), len(digests["optax:l2_loss"])
        (['optax:l2_loss'], 16)
    """
    return {reference.text: _digest(reference.function) for reference in references}


def changed_code(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns a text per reference that is in both and whose code differs.

    Example:
        >>> changed_code({"mine:net": "12"}, {"mine:net": "34", "mine:loss": "56"})
        ['the code of mine:net has changed']
    """
    changed = [name for name in old if new.get(name, old[name]) != old[name]]
    return [f"the code of {name} has changed" for name in changed]


def _digest(function: Any) -> str:
    function = inspect.unwrap(function)
    module = inspect.getmodule(function)
    path = None if module is None else _own_file(module)
    name = getattr(function, "__qualname__", "")
    if module is None or path is None:
        return digest(getattr(module, "__name__", ""), name)
    sources: dict[str, str] = {}
    texts = []
    for statement in _needed(ast.parse(path.read_text()), name.partition(".")[0]):
        texts.append(_text(statement))
        for used in _names(statement):
            _add_imported(vars(module).get(used), module, sources)
    return digest(name, "\n".join(texts), dict(sorted(sources.items())))


def _needed(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Returns the statements of a module that a name depends on, in their order.

    Statements that bind no name, such as settings of JAX, count always.  If nothing binds the name,
    all statements count.
    """
    binding: dict[str, list[ast.stmt]] = {}
    needed: set[int] = set()
    waiting: list[str] = [name]
    for statement in tree.body:
        bound = list(_bound(statement))
        for target in bound:
            binding.setdefault(target, []).append(statement)
        if not bound:
            needed.add(id(statement))
            waiting += _names(statement)
    if name not in binding:
        return tree.body
    while waiting:
        for statement in binding.pop(waiting.pop(), []):
            needed.add(id(statement))
            waiting += _names(statement)
    return [statement for statement in tree.body if id(statement) in needed]


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _names(statement: ast.stmt) -> set[str]:
    """Returns the names that a statement uses."""
    imported = (
        set(_bound(statement)) if isinstance(statement, ast.Import | ast.ImportFrom) else set()
    )
    return imported | {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _text(statement: ast.AST) -> str:
    """Returns the source of a statement without comments and docstrings."""
    for node in ast.walk(statement):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            setattr(node, "body", body[1:] or [ast.Pass()])  # noqa: B010
    return ast.unparse(statement)


def _add_imported(value: Any, importing: types.ModuleType, known: dict[str, str]) -> None:
    """Adds the source of the module that a value is from, and of those that it imports."""
    name = value.__name__ if isinstance(value, types.ModuleType) else _module_name(value)
    module = sys.modules.get(name)
    path = None if module is None or module is importing else _own_file(module)
    if module is None or path is None or name in known:
        return
    known[name] = _text(ast.parse(path.read_text()))
    for inner in list(vars(module).values()):
        _add_imported(inner, importing, known)


def _module_name(value: Any) -> str:
    name = getattr(value, "__module__", None)
    return name if isinstance(name, str) else ""


def _own_file(module: types.ModuleType) -> pathlib.Path | None:
    """Returns the source of a module that is neither installed nor part of this library."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py") or module.__name__.startswith("fedjax_sim"):
        return None
    path = pathlib.Path(file).resolve()
    keys = ("purelib", "platlib", "stdlib")
    folders = [pathlib.Path(sysconfig.get_path(key)).resolve() for key in keys]
    return None if any(path.is_relative_to(folder) for folder in folders) else path
