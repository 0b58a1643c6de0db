"""Imports inside the library point downwards, by the source text of every module.

All import statements count: also those inside functions and those under TYPE_CHECKING.
"""

import ast
import graphlib
import importlib.util
import pathlib

import pytest

import fedjax_sim

_ROOT = pathlib.Path(fedjax_sim.__file__).parent

# From the bottom. A package may import the packages below it; those of one row may import each
# other if that makes no cycle.
_LAYERS = [
    "specs",
    "types",
    "tree checks setup_checks",
    "theory",
    "prox timelines compression",
    "objectives",
    "data",
    "datasets execution",
    "local transforms models",
    "wrappers",
    "robust",
    "algorithms",
    "engine contract evaluation",
    "privacy",
    "simulation",
    "sweeps callbacks hypergradients",
    "analysis",
    "problems diagnostics",
    "plotting",
    "valuation advice forks",
    "cli",
]
_LEVEL = {package: level for level, row in enumerate(_LAYERS) for package in row.split()}

# What a package may import of the library besides itself, where that is less than all below it.
_ONLY = {"theory": set()}
# Packages that only these packages import (and users).
_IMPORTED_BY = {"datasets": {"cli", "presets"}}


# The results in these modules have methods ``plot`` and ``_repr_html_``, which import figures and
# tables when they are called.
_VIEWS = {"fedjax_sim.plotting.results", "fedjax_sim.analysis.views"}
_HAVE_VIEWS = {
    "fedjax_sim.simulation.compare",
    "fedjax_sim.simulation.result",
    "fedjax_sim.sweeps.result",
}


def _modules() -> dict[str, pathlib.Path]:
    names = {}
    for path in sorted(_ROOT.rglob("*.py")):
        parts = path.relative_to(_ROOT.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


_MODULES = _modules()


def _imports(name: str, path: pathlib.Path) -> set[str]:
    """Names of the library's modules in the import statements of one of them."""
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
    return {module for module in found if module.split(".")[0] == fedjax_sim.__name__}


_GRAPH = {
    name: _imports(name, path) - (_VIEWS if name in _HAVE_VIEWS else set())
    for name, path in _MODULES.items()
}


def _package(module: str) -> str:
    """The top-level package or module below the root; empty for the root itself."""
    return (module + ".").split(".")[1]


def test_every_package_has_a_layer():
    assert {_package(name) for name in _MODULES} - {""} == set(_LEVEL)


@pytest.mark.parametrize("package", _LEVEL)
def test_imports_point_downwards(package):
    upward = [
        f"{module} imports {target}"
        for module, targets in _GRAPH.items()
        if _package(module) == package
        for target in sorted(targets)
        if _package(target) != package
        and (
            _LEVEL.get(_package(target), len(_LAYERS)) > _LEVEL[package]
            or _package(target) not in _ONLY.get(package, {_package(target)})
            or package not in _IMPORTED_BY.get(_package(target), {package})
        )
    ]
    assert upward == []


def test_no_module_imports_itself_in_a_circle():
    sorted_modules = list(graphlib.TopologicalSorter(_GRAPH).static_order())  # raises CycleError
    assert set(_MODULES) <= set(sorted_modules)


def test_no_package_imports_itself_in_a_circle():
    packages: dict[str, set[str]] = {package: set() for package in _LEVEL}
    for module, targets in _GRAPH.items():
        if _package(module):
            packages[_package(module)] |= {_package(target) for target in targets}
    for package, targets in packages.items():
        targets.discard(package)
    graphlib.TopologicalSorter(packages).prepare()  # raises CycleError


@pytest.mark.parametrize("module", sorted(_HAVE_VIEWS))
def test_views_of_results_are_imported_when_they_are_shown(module):
    body = ast.parse(_MODULES[module].read_text()).body
    outside = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.If)]
    assert _imports(module, _MODULES[module]) >= _VIEWS
    text = "".join(map(ast.unparse, outside))
    assert "plotting" not in text
    assert "analysis" not in text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fedjax_sim.tree", {"fedjax_sim.tree"}),
        ("from fedjax_sim import tree", {"fedjax_sim.tree"}),
        ("def f():\n    from fedjax_sim.prox import L1", {"fedjax_sim.prox"}),
        ("if TYPE_CHECKING:\n    from . import base", {"fedjax_sim.prox.base"}),
        ("from .base import like", {"fedjax_sim.prox.base"}),
        ("import jax, optax.tree", set()),
    ],
)
def test_reads_every_form_of_import(tmp_path, source, expected):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert _imports("fedjax_sim.prox.module", path) == expected
