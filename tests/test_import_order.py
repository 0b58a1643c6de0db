"""Imports point downwards, by the source text of every module.

All import statements count: also those inside functions and those under TYPE_CHECKING.
"""

import ast
import graphlib
import importlib.util
import pathlib

import pytest

import fedjax_sim

_ROOT = pathlib.Path(fedjax_sim.__file__).parents[1]

# From the bottom. A room is a module or package directly below the library's, the library's own
# `__init__`, or a folder of programs. It may import the rooms of the rows below; those of one row
# may import each other if that makes no circle.
_ROWS = [
    "types theory",
    "checks tree",
    "local objectives prox timelines compression",
    "data models wrappers",
    "engine algorithms topologies datasets problems",
    "runs diagnostics",
    "reports",
    "fedjax_sim cli studies",
    "experiments benchmarks",
]
_ROW = {room: number for number, row in enumerate(_ROWS) for room in row.split()}
_TOPS = ("fedjax_sim", "experiments", "benchmarks")


def _modules() -> dict[str, pathlib.Path]:
    names = {}
    for path in sorted(path for top in _TOPS for path in (_ROOT / top).rglob("*.py")):
        parts = path.relative_to(_ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


_MODULES = _modules()


def _imports(name: str, path: pathlib.Path) -> set[str]:
    """Names of our modules in the import statements of one of them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            children = {f"{base}.{alias.name}" for alias in node.names}
            found |= {child if child in _MODULES else base for child in children}
    return {module for module in found if module.split(".")[0] in _TOPS}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules that each module imports; to parse all takes seconds of every collection."""
    return {name: _imports(name, path) for name, path in _MODULES.items()}


def _room(module: str) -> str:
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] or top if top == "fedjax_sim" else top


@pytest.fixture(scope="module")
def rooms(graph) -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {room: set() for room in _ROW}
    for module, targets in graph.items():
        found.setdefault(_room(module), set()).update(map(_room, targets))
    return found


def test_every_room_has_a_row(rooms):
    assert set(rooms) == set(_ROW)


@pytest.mark.parametrize("room", _ROW)
def test_imports_point_downwards(room, graph):
    upward = [
        f"{module} imports {target}"
        for module, targets in graph.items()
        if _room(module) == room
        for target in sorted(targets)
        if _ROW.get(_room(target), len(_ROWS)) > _ROW[room]
    ]
    assert upward == []


def test_no_module_imports_itself_in_a_circle(graph):
    sorted_modules = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(_MODULES) <= set(sorted_modules)


def test_no_room_imports_itself_in_a_circle(rooms):
    others = {room: targets - {room} for room, targets in rooms.items()}
    graphlib.TopologicalSorter(others).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fedjax_sim.tree", {"fedjax_sim.tree"}),
        ("from fedjax_sim import tree", {"fedjax_sim.tree"}),
        ("def f():\n    from fedjax_sim.prox import L1", {"fedjax_sim.prox"}),
        ("if TYPE_CHECKING:\n    from . import base", {"fedjax_sim.prox.base"}),
        ("from .base import like", {"fedjax_sim.prox.base"}),
        ("from fedjax_sim import run", {"fedjax_sim"}),
        ("import jax, optax.tree", set()),
    ],
)
def test_reads_every_form_of_import(tmp_path, source, expected):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert _imports("fedjax_sim.prox.module", path) == expected
