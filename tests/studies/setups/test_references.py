"""References to the user's functions, entry points of other packages, and digests of code."""

import importlib.metadata
import sys

import pytest
from fedjax_sim.studies.setups.code_digest import code_digests
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.own_objects import model_row, reference_of

from fedjax_sim import models
from fedjax_sim.cli.main import main
from fedjax_sim.studies.setups import references
from fedjax_sim.studies.setups.entries import AGGREGATOR, COMPRESSION, NOISE_LAW, TUNING
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.types import FedAlgorithm

MODULE = """
import jax.numpy as jnp
from flax import linen, nnx
import {helper}

SCALE = 2.0

def scaled(x):
    return SCALE * x

def loss(outputs, y):
    "A docstring."
    return scaled(outputs - y)

def other(outputs, y):
    return {helper}.double(outputs)

class Linen(linen.Module):
    num_classes: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.num_classes)(x)

class Nnx(nnx.Module):
    def __init__(self, shape, num_classes, *, rngs):
        self.layer = nnx.Linear(shape[0], num_classes, rngs=rngs)

    def __call__(self, x):
        return self.layer(x)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules")
    (path / "reference_objects.py").write_text(MODULE.format(helper="reference_helper"))
    (path / "reference_helper.py").write_text("def double(x):\n    return 2 * x\n")
    return path


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return folder


def digests() -> dict[str, str]:
    names = ("loss", "other", "Linen")
    loaded = code_digests(references.load("loss", f"reference_objects:{name}") for name in names)
    return {name.partition(":")[2]: value for name, value in loaded.items()}


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("reference_objects.py", "A docstring.", "Another one.", set()),
        ("reference_objects.py", "SCALE = 2.0", "SCALE = 2.0  # twice", set()),
        ("reference_objects.py", "SCALE = 2.0", "SCALE = 3.0", {"loss"}),
        ("reference_objects.py", "return SCALE * x", "return SCALE + x", {"loss"}),
        ("reference_objects.py", "linen.Dense(", "linen.DenseGeneral(", {"Linen"}),
        ("reference_helper.py", "return 2 * x", "return x + x", {"other"}),
    ],
)
def test_a_digest_covers_what_a_function_uses(here, file, old, new, changed):
    before, path = digests(), here / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    after = digests()
    path.write_text(text)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize("name", ["Linen", "Nnx"])
def test_flax_modules_are_models(here, name):
    shape, build = model_row(RunConfig(model=f"reference_objects:{name}"))
    model = build((5,), 3, models.auto)
    assert shape is None
    assert isinstance(model, models.Model)
    assert build == model_row(RunConfig(model=f"reference_objects:{name}"))[1]  # compiles once


def added(lr: float, strength: int = 3, *, name: str = "a") -> FedAlgorithm:
    """Added: by another package."""
    raise NotImplementedError


@pytest.fixture
def other_package(monkeypatch):
    """An installed package with a good and a broken entry point, and one of a built-in name."""
    points = {
        "fedjax_sim.algorithms": {"added": "test_references:added", "broken": "nowhere:f",
                                  "fedavg": "test_references:added"},
        "fedjax_sim.models": {"big": "test_references:added"},
    }  # fmt: skip

    def entry_points(*, group):
        made = points.get(group, {}).items()
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in made]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.setitem(sys.modules, "test_references", sys.modules[__name__])
    references.entry_points.cache_clear()
    yield
    references.entry_points.cache_clear()


@pytest.mark.filterwarnings("default")
def test_entry_points_add_names(other_package, capsys, monkeypatch):
    entry = algorithms_of(["added"])["added"]
    assert entry.hyper_defaults == {"lr": 0.2, "strength": 3, "name": "a"}
    common = (*TUNING, *COMPRESSION, AGGREGATOR, NOISE_LAW)
    own = {name: kind for name, kind in entry.static_hyper.items() if name not in common}
    assert own == {"strength": int, "name": str}
    reference = reference_of(RunConfig(model="big"), "model")
    assert reference is not None
    assert reference.function is added
    assert algorithms_of(["fedavg"])["fedavg"].reference is None  # built-in names precede
    with pytest.raises(
        ValueError, match="'broken', an entry point of nowhere:f that cannot be load"
    ):
        algorithms_of(["broken"])

    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert "strength=3" in printed.out
    assert "of test_references" in printed.out
    lines = printed.err.splitlines()
    assert [line.split(" is left out: ")[0] for line in lines] == [
        "fedjax-sim: warning: entry point broken = nowhere:f of fedjax_sim.algorithms",
        "fedjax-sim: warning: entry point fedavg = test_references:added of fedjax_sim.algorithms",
    ]


def test_integers_stay_integers(other_package):
    entry = algorithms_of(["added"])["added"]
    from fedjax_sim.studies.setups.settings import value_of

    assert value_of("added.strength=4", entry, "strength", "4") == 4
    with pytest.raises(ValueError, match="expected an integer of at least 0"):
        value_of("added.strength=4.5", entry, "strength", "4.5")
