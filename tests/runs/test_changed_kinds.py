"""A trace notices every kind of change in the user's code that it sees (``changed_kinds.txt``)."""

import importlib
import json
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from fedjax_sim.runs.storage.traces import trace

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
# Operations do not show them (docs/howto/resume.md names them).
INVISIBLE = {
    "body of a callback": "it runs on the host",
    "rule of a batch": "the function is traced without a batch",
    "rule of a derivative that is not taken": "it changes no number",
}
# The present platform does not compute with it, or the function is not batched or differentiated.
NO_NUMBER = {
    "branch of another platform", "precision of a product", "rule of a batch",
    "rule of a derivative that is not taken",
}  # fmt: skip
# Resumed by another process after the change.
RESUMED = [
    "class attribute", "static method", "class method", "property", "base class", "enum value",
    "simple namespace", "decorator's inner function", "custom_jvp rule", "custom_vjp rule",
    "singledispatch", "function of a sub-module", "import inside a function",
]  # fmt: skip
# The same functions as {"body"}, in other words.
HARMLESS = {
    "comment": "def loss(x):\n    # a comment\n    return 2 * x\n",
    "docstring": 'def loss(x):\n    """Returns the loss."""\n    return 2 * x\n',
    "other function": "def plot(x):\n    print(x)\n\ndef loss(x):\n    return 2 * x\n",
    "renamed variable": "def loss(x):\n    product = 2 * x\n    return product\n",
    "renamed function": "def f(y):\n    return 2 * y\n\nloss = f\n",
}


def write(folder, files, side):
    for path, source in files.items():
        file = folder / path
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(_CHANGE.sub(rf"\{side}", source))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes a project before (1) or after (2) the change, and imports its loss."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget():
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]

    def imported(files, side=1):
        forget()
        write(tmp_path, files, side)
        importlib.invalidate_caches()
        return importlib.import_module("study").loss

    monkeypatch.setenv("STUDY_FACTOR", "1")  # restored after the test
    yield imported
    forget()


def digest(loss):
    found, _ = trace(loss, jax.ShapeDtypeStruct((), np.float32))
    assert found.error is None
    return found.digest


def test_there_are_many_kinds():
    assert len(PROJECTS) >= 110
    assert {*INVISIBLE, *NO_NUMBER, *RESUMED} <= PROJECTS.keys()
    assert len(RESUMED) == 13
    for name, files in PROJECTS.items():
        assert len(_CHANGE.findall("".join(files.values()))) == 1, name


@pytest.mark.parametrize("name", PROJECTS)
def test_change_is_noticed(name, project):
    digests, values = [], []
    for side in (1, 1, 2):
        loss = project(PROJECTS[name], side)
        values.append(float(loss(5.0)))
        digests.append(digest(loss))
    assert values[0] == values[1]
    assert (values[1] == values[2]) == (name in NO_NUMBER)  # else the change is none
    assert digests[0] == digests[1]
    assert (digests[1] == digests[2]) == (name in INVISIBLE)


@pytest.mark.parametrize("name", HARMLESS)
def test_other_words_are_the_same_function(name, project):
    assert digest(project({"study.py": HARMLESS[name]})) == digest(project(PROJECTS["body"]))


_RESUME = """
import json, pathlib, sys
import jax, numpy as np
import fedjax_sim as fs

def resumed(project, folder):
    sys.path.insert(0, project)
    sys.dont_write_bytecode = True
    before = set(sys.modules)
    import study
    objective = lambda w, batch, key: (study.loss(w) - batch["x"][:, 0]) ** 2
    data = fs.FederatedData({"x": np.arange(4, dtype=np.float32)[:, None]}, np.array([0, 2, 4]))
    task = fs.empirical_task(objective, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), np.float32(0.1))
    stop = lambda event: "interrupt" if event.round == 2 else None
    begun = pathlib.Path(folder).exists()
    stops = {"callbacks": [] if begun else [stop]}
    try:
        result = fs.simulate(
            fs.fedavg(0.01), setup, jax.random.key(0), storage=folder, **stops)
        return result.rounds_done
    except ValueError as error:
        return str(error)
    finally:
        sys.path.remove(project)
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(project):
                del sys.modules[name]

root = pathlib.Path(sys.argv[1])
print(json.dumps({p.name: resumed(str(p), str(root / "runs" / p.name))
                  for p in sorted((root / "projects").iterdir())}))
"""


@pytest.mark.slow
def test_a_run_is_not_resumed_with_changed_code(tmp_path):
    """One process begins runs of 13 projects and of one with harmless changes, the next resumes."""

    harmless = {f"harmless {name}": name for name in HARMLESS}

    def processed(side):
        for name in RESUMED:
            write(tmp_path / "projects" / name, PROJECTS[name], side)
        for folder, name in harmless.items():
            source = HARMLESS[name] if side == 2 else PROJECTS["body"]["study.py"]
            write(tmp_path / "projects" / folder, {"study.py": source}, 1)
        command = [sys.executable, "-c", _RESUME, str(tmp_path)]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    names = {*RESUMED, *harmless}
    assert processed(1) == dict.fromkeys(names, 2)
    found = processed(2)
    assert found.keys() == names
    for name in RESUMED:
        assert "another run: what the objective computes has changed" in str(found[name])
    assert {found[name] for name in harmless} == {4}
