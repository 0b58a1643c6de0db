"""A digest of functions notices every kind of change in the user's code (``changed_kinds.txt``)."""

import importlib
import pathlib
import re
import sys

import pytest

from fedjax_sim.runs.storage.identity import functions_digest

_CHANGE = re.compile(r"\{\{(.*?)\|(.*?)\}\}", re.DOTALL)


def _projects() -> dict[str, dict[str, str]]:
    """``{name of a kind: {path: source with marked change}}``."""
    text = pathlib.Path(__file__).with_name("changed_kinds.txt").read_text()
    projects = {}
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        study, *others = re.split(r"^-- ", rest, flags=re.MULTILINE)
        files = {"study.py": study}
        files |= {path: source for path, _, source in (other.partition("\n") for other in others)}
        projects[name] = files
    return projects


PROJECTS = _projects()
# What the walk over functions and their values does not reach.
UNNOTICED = [
    "attribute of a function", "singledispatch", "simple namespace", "argparse namespace",
    "mapping proxy", "chain map", "thread local", "context variable", "weak reference", "fraction",
    "range", "class attribute", "class attribute through an instance", "static method",
    "class method", "property", "cached property", "base class", "base class of an instance",
    "mixin", "metaclass", "init subclass", "class getitem", "descriptor", "slots", "enum value",
    "named tuple default", "class made by type()", "function of a sub-module",
    "import inside a function", "from-import inside a function", "class of another module",
    "custom_jvp rule", "custom_vjp rule", "tree_util.Partial",
    "getattr of a module",  # an AttributeError
]  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes a kind's project before (1) or after (2) the change, and imports its loss."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget():
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def write(name, side):
        forget()
        for path, source in PROJECTS[name].items():
            file = tmp_path / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(_CHANGE.sub(rf"\{side}", source))
        importlib.invalidate_caches()
        return importlib.import_module("study").loss

    yield write
    forget()


def test_there_are_many_kinds():
    assert len(PROJECTS) >= 65
    assert set(UNNOTICED) <= PROJECTS.keys()
    for name, files in PROJECTS.items():
        assert len(_CHANGE.findall("".join(files.values()))) == 1, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(reason="the walk over values ends before it"))
        if name in UNNOTICED
        else name
        for name in PROJECTS
    ],
)
def test_change_is_noticed(name, project):
    digests, values = [], []
    for side in (1, 1, 2):
        loss = project(name, side)
        values.append(float(loss(5.0)))
        digests.append(functions_digest([loss]))
    assert values[0] == values[1] != values[2]  # the change is one
    assert digests[0] == digests[1]
    assert digests[1] != digests[2]
