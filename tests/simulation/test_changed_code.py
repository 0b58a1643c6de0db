"""A folder refuses a run whose code changed: helpers, constants, models, evaluations."""

import dataclasses
import importlib
import sys

import jax
import numpy as np
import pytest
from call_records import records

import fedjax_sim as fs
from fedjax_sim.simulation.identity import functions_digest
from fedjax_sim.statistics_checks import UpdatesStatistics

MODULE = """
import functools

import jax
import jax.numpy as jnp
from flax import linen, nnx

import fedjax_sim as fs

SCALE = 2.0


def helper(x):
    return x * SCALE


@jax.jit
def jitted(x):
    return x - 1


class Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        return jax.nn.relu(linen.Dense(2)(x))


class Layers(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(1, 2, rngs=rngs)

    def __call__(self, x):
        return jnp.tanh(self.dense(x))


class Loss:
    power = 2

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, w, batch, key):
        return self.factor * (batch["x"][:, 0] * w - 1) ** 2


linen_apply = fs.models.from_linen(Net(), jnp.ones((1, 1))).apply
nnx_apply = fs.models.from_nnx(lambda rngs: Layers(rngs)).apply


def loss(w, batch, key):
    return (helper(batch["x"][:, 0]) * w - 1) ** 2


def loss_of_jitted(w, batch, key):
    return jitted(batch["x"][:, 0] * w) ** 2


objects = {
    "helper": loss,
    "constant": loss,
    "jitted": loss_of_jitted,
    "linen": linen_apply,
    "nnx": nnx_apply,
    "method": Loss(1.0),
    "attribute": Loss(1.0),
    "partial": functools.partial(loss, key=None),
}
"""
CHANGES = {
    "helper": ("return x * SCALE", "return x + SCALE"),
    "constant": ("SCALE = 2.0", "SCALE = 3.0"),
    "jitted": ("return x - 1", "return x - 2"),
    "linen": ("jax.nn.relu", "jax.nn.elu"),
    "nnx": ("jnp.tanh", "jnp.sin"),
    "method": ("* w - 1) ** 2\n\n\nlinen", "* w - 1) ** 4\n\n\nlinen"),
    "attribute": ("Loss(1.0)", "Loss(2.0)"),
    "partial": ("return x * SCALE", "return x / SCALE"),
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a module, imports it and returns its objects."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text):
        (tmp_path / "changing.py").write_text(text)
        sys.modules.pop("changing", None)
        importlib.invalidate_caches()
        return importlib.import_module("changing").objects

    yield write
    sys.modules.pop("changing", None)


def test_every_change_counts(written):
    before = {name: functions_digest(f) for name, f in written(MODULE).items()}
    assert before == {name: functions_digest(f) for name, f in written(MODULE).items()}
    for name, (old, new) in CHANGES.items():
        assert old in MODULE
        changed = functions_digest(written(MODULE.replace(old, new))[name])
        assert changed != before[name], name


@pytest.mark.parametrize(
    "algorithm",
    [fs.fedavg(0.1), fs.ditto(0.1), fs.robust.aggregate(fs.ditto(0.1), fs.robust.median())],
    ids=["fedavg", "personal", "robust"],
)
def test_later_fields_of_algorithms_do_not_count(algorithm):
    """Folders from before these fields stay readable."""
    later = algorithm._replace(uniform_weights_if_partial="a reason", messages_to_all=True)
    assert functions_digest(later) == functions_digest(algorithm)


def test_the_selection_of_statistics_counts_once():
    """The wrapped functions contain the selection already."""
    one, other = (UpdatesStatistics(abs, where) for where in (min, max))
    assert functions_digest(one) == functions_digest(other)


def factor(w):
    return w


def error(w):
    return {"error": factor(w)}


def setup_with(loss, eval_fn=error):
    data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
    task = fs.empirical_task(loss, data, fs.with_replacement(2, num_steps=1))
    timeline = fs.timelines.full(4, 2, task.num_steps)
    return fs.Setup(task, timeline, np.float32(0), eval_fn=eval_fn, eval_every=2)


def squared(w, batch, key):
    return (batch["x"][:, 0] * w - 2) ** 2


def fourth(w, batch, key):
    return (batch["x"][:, 0] * w - 2) ** 4


@pytest.mark.slow
def test_another_objective_or_evaluation_is_refused(tmp_path, monkeypatch):
    def go(loss=squared, **options):
        setup = setup_with(loss)
        return fs.simulate(
            fs.fedavg(0.1), setup, jax.random.key(0), **records(folder=tmp_path, **options)
        )

    go()
    with pytest.raises(ValueError, match="another run: functions differ"):
        go(fourth)
    with pytest.raises(ValueError, match="another run: execution differ"):
        go(execution=fs.execution.sequential())
    with pytest.raises(ValueError, match="another run: functions differ"):
        go(probes=fs.Probes(server={"mean": lambda update: update.mean}))
    assert go().history is None
    monkeypatch.setitem(globals(), "factor", lambda w: 2 * w)
    with pytest.raises(ValueError, match="another run: functions differ"):
        go()


def test_another_objective_in_a_sweep_is_refused(tmp_path):
    def go(loss):
        setup = setup_with(loss)
        setup = dataclasses.replace(setup, params=np.zeros(1, np.float32))
        keys = jax.random.split(jax.random.key(0), 1)
        return fs.sweep(fs.fedavg, setup, {"lr": [0.1]}, keys, storage=tmp_path)

    assert go(squared).resumed == 0
    assert go(squared).resumed == 1
    with pytest.raises(ValueError, match="another code of algorithm, objective, model"):
        go(fourth)
