"""The API reference has every public name, with a docstring that has all its parts."""

import ast
import builtins
import doctest
import importlib.util
import inspect
import pathlib
import re
import sys
import types

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "extensions"


def _load(name: str) -> types.ModuleType:
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


public_names = _load("public_names")
OURS = [
    name
    for name in public_names.everything()
    if (name.is_class or name.is_function) and name.source.startswith("fedjax_sim.")
]
FUNCTIONS = [name for name in OURS if name.is_function]
# Values that have no shape: a key, and numbers that may be traced.
WORDS_OF_SHAPES = ("[", "scalar", "number", "leaf", "leaves", "tree")


def test_every_public_name_has_one_entry(monkeypatch):
    monkeypatch.setitem(sys.modules, "public_names", public_names)
    text = "\n".join(_load("reference_pages").pages().values())
    entries = set()
    for name in public_names.everything():
        kind = "autoclass" if name.is_class else "autofunction" if name.is_function else "py:data"
        assert text.count(f".. {kind}:: {name.path}\n") == 1, name.path
        entries.add(id(name.value))
    for path, names in public_names.modules().items():
        assert text.count(f".. automodule:: {path}\n") == 1, path
        module = importlib.import_module(path)
        assert not [name for name in names if id(getattr(module, name)) not in entries], path


def unknown_names(source: str) -> dict[str, set[str]]:
    """Returns the names that the examples of a module use and that neither they nor it binds."""
    tree, parser, unknown = ast.parse(source), doctest.DocTestParser(), {}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if not isinstance(node, documented) or not (text := ast.get_docstring(node)):
            continue
        run = [e for e in parser.get_examples(text) if doctest.SKIP not in e.options]
        example = ast.parse("".join(e.source for e in run))
        used = {n.id for n in ast.walk(example) if isinstance(n, ast.Name)}
        if names := used - bound(example) - bound(tree, nested=False) - set(dir(builtins)):
            unknown[getattr(node, "name", "module")] = names
    return unknown


def bound(tree: ast.Module, nested: bool = True) -> set[str]:
    """Returns the names that a module binds, with those of its functions where they are nested."""
    names = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not nested:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_examples_bind_the_names_that_they_use():
    paths = (FOLDER.parents[1] / "fedjax_sim").rglob("*.py")
    unknown = {str(path): unknown_names(path.read_text()) for path in paths}
    assert not {path: names for path, names in unknown.items() if names}


def test_an_unknown_name_of_an_example_would_be_found():
    source = (
        'def f(x):\n    """Returns it.\n\n    >>> f(jax.numpy.ones(2))\n    """\n    return x\n'
    )
    assert unknown_names(source) == {"f": {"jax"}}
    assert not unknown_names("import jax\n" + source)
    assert not unknown_names(source.replace(">>> f", ">>> import jax\n    >>> f"))


@pytest.mark.slow
def test_public_names_have_docstrings():
    assert len(OURS) > 500
    missing = [
        name.path
        for name in OURS
        if not ast.get_docstring(public_names.definition(name.value))  # inherited ones do not count
    ]
    assert not missing


def test_functions_have_examples():
    assert not [name.path for name in FUNCTIONS if ">>>" not in (inspect.getdoc(name.value) or "")]


def test_classes_have_examples():
    """A class has an example, or a function with an example returns it, alone or as a field."""
    returned = {
        word
        for name in FUNCTIONS
        if (annotation := public_names.definition(name.value).returns) is not None
        for word in re.findall(r"\w+", ast.unparse(annotation))
    }
    classes = [name for name in OURS if name.is_class]
    fields = {
        word
        for name in classes
        if name.name in returned
        for annotation in vars(name.value).get("__annotations__", {}).values()
        for word in re.findall(r"\w+", str(annotation))
    }
    missing = [
        name.path
        for name in classes
        if ">>>" not in (inspect.getdoc(name.value) or "") and name.name not in returned | fields
    ]
    assert not missing


def test_docstrings_name_errors():
    """A function that raises, or that checks its arguments, has a section on errors."""
    missing = []
    for name in FUNCTIONS:
        body = public_names.definition(name.value).body
        inside = [node for statement in body for node in ast.walk(statement)]
        called = [
            getattr(node.func, "id", getattr(node.func, "attr", "")).lstrip("_")
            for node in inside
            if isinstance(node, ast.Call)
        ]
        raises = any(isinstance(node, ast.Raise) for node in inside) or any(
            function.startswith("check") for function in called
        )
        if raises and "Raises:" not in (inspect.getdoc(name.value) or ""):
            missing.append(name.path)
    assert not missing


def test_docstrings_name_shapes():
    """A function of arrays, other than keys, says what shape they have."""
    missing = []
    for name in FUNCTIONS:
        arguments = public_names.definition(name.value).args
        arrays = [
            argument.arg
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            if argument.annotation is not None
            and ast.unparse(argument.annotation) in ("Array", "np.ndarray", "Array | np.ndarray")
            and argument.arg != "key"
        ]
        doc = inspect.getdoc(name.value) or ""
        if arrays and not any(word in doc for word in WORDS_OF_SHAPES):
            missing.append(f"{name.path}: {', '.join(arrays)}")
    assert not missing


LONGEST_SIGNATURE = 600  # characters; eight lines of a terminal


def test_signatures_are_short_and_name_their_types():
    """``help`` shows them: no alias is expanded, and no default is a dump."""
    signatures = {
        name.path: str(inspect.signature(name.value))
        for name in OURS
        if name.is_function or not issubclass(name.value, BaseException)
    }
    assert {path: len(x) for path, x in signatures.items() if len(x) > LONGEST_SIGNATURE} == {}
    expanded = re.compile(r"collections\.abc\.|jaxlib|ForwardRef\(")
    # The command line reads the types of its parameters from objects, not from texts.
    setups = {name.path for name in OURS if name.source.startswith("fedjax_sim.studies.setups.")}
    assert {path for path, x in signatures.items() if expanded.search(x)} <= setups
