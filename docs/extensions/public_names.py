"""The public names of the package, by the page of the reference that documents each."""

import ast
import functools
import importlib
import inspect
import types
from typing import Any, NamedTuple

ROOT = "fedjax_sim"
# Modules for those who write their own methods; they are public beside what `__all__` lists.
BUILDING_BLOCKS = ("local", "tree", "tree.leaves")


class PublicName(NamedTuple):
    """One public name."""

    path: str  # under which the reference documents it, such as "fedjax_sim.run"
    value: Any

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        """The module of the path."""
        return self.path.rpartition(".")[0]

    @property
    def is_class(self) -> bool:
        """True for classes, not for aliases of types."""
        return inspect.isclass(self.value) and self.value.__module__.startswith(ROOT)

    @property
    def is_function(self) -> bool:
        """True for functions and for functions that are wrapped, for example by `jax.jit`."""
        value = inspect.unwrap(self.value)
        return inspect.isfunction(value) and "<locals>" not in value.__qualname__

    @property
    def source(self) -> str:
        """Module and qualified name of the definition."""
        value = inspect.unwrap(self.value)
        return f"{value.__module__}.{value.__qualname__}"


def modules() -> dict[str, list[str]]:
    """Returns all public modules with their public names that are no modules.

    A package's names are those of its `__all__`.  A module without `__all__` that a package lists
    has the names that it defines and that do not start with an underscore.
    """
    result: dict[str, list[str]] = {}

    def visit(path: str) -> None:
        module = importlib.import_module(path)
        if path in result:
            return
        result[path] = []
        for name in _names(module):
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                visit(value.__name__)
            else:
                result[path].append(name)

    visit(ROOT)
    for path in BUILDING_BLOCKS:
        visit(f"{ROOT}.{path}")
    return result


@functools.cache
def by_module() -> dict[str, list[PublicName]]:
    """Returns the names that the reference documents in each public module.

    A name of several modules is documented once: in the module with the shortest path, and
    algorithms in `fedjax_sim.algorithms`.
    """
    listed = modules()
    first = f"{ROOT}.algorithms"
    order = sorted(listed, key=lambda path: (path != first, path.count("."), path))
    seen: set[tuple[str, Any]] = set()
    result: dict[str, list[PublicName]] = {}
    for path in order:
        module = importlib.import_module(path)
        names = [PublicName(f"{path}.{name}", getattr(module, name)) for name in listed[path]]
        result[path] = [name for name in names if _key(name) not in seen]
        seen |= {_key(name) for name in names}
    return {path: result[path] for path in listed}


def everything() -> list[PublicName]:
    """Returns all public names, each once."""
    return [name for names in by_module().values() for name in names]


def is_package(path: str) -> bool:
    """Returns whether a module is a folder, which has a page of its own."""
    return hasattr(importlib.import_module(path), "__path__")


@functools.cache
def definition(value: Any) -> ast.FunctionDef | ast.ClassDef | None:
    """Returns the syntax tree of a function's or class's definition, None for other values."""
    value = inspect.unwrap(value)
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return None
    node = _module_tree(value.__module__)
    for part in value.__qualname__.split("."):
        body = reversed(getattr(node, "body", []))  # the last one, after overloads
        node = next((item for item in body if getattr(item, "name", None) == part), None)
    return node if isinstance(node, ast.FunctionDef | ast.ClassDef) else None


def constant(name: PublicName) -> tuple[str, str]:
    """Returns the source of a constant's or alias's value, and the text that describes it.

    The text is the docstring below the assignment or the comment beside it.
    """
    module, tree = name.module, _module_tree(name.module)
    while True:  # follow imports to the definition
        origin = [
            node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and name.name in [a.name for a in node.names]
        ]
        if not origin or origin[0] is None:
            break
        module, tree = origin[0], _module_tree(origin[0])
    lines = inspect.getsource(importlib.import_module(module)).splitlines()
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if name.name not in [getattr(target, "id", None) for target in targets]:
            continue
        value = ast.unparse(node.value)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            return value, inspect.cleandoc(str(following.value.value))
        comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("#")[2].strip()
        above = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.startswith("#"):
                break
            above.insert(0, line.removeprefix("#").strip())
        return value, comment or " ".join(above)
    raise ValueError(f"{name.path} is not assigned in {module}; expected a constant or an alias")


@functools.cache
def _module_tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _key(name: PublicName) -> tuple[str, Any]:
    if name.is_class or name.is_function:
        return name.source, None
    return name.name, id(name.value)


def _names(module: types.ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
