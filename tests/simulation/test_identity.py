"""Algorithms by value: equal ones compile once, and a run's folder refuses all others."""

import collections
import dataclasses
import json
import subprocess
import sys
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import ZERO, no_data
from sweep_problems import compilations, quadratic_trial

import fedjax_sim as fs
from fedjax_sim.simulation.files import FolderError
from fedjax_sim.simulation.fingerprint import fingerprint
from fedjax_sim.simulation.identity import (
    algorithm_identity,
    arrays_digest,
    description,
    sharded_digest,
    timeline_arrays,
)
from fedjax_sim.simulation.store import claim


@pytest.fixture(scope="module")
def setup():
    setup = quadratic_trial(num_seeds=1, num_rounds=3).setup
    return fs.Setup(setup.task, setup.timeline, setup.params[0], setup.eval_fn)


def segments(names):
    return [name for name in names if "segment" in name]


@pytest.mark.slow
def test_a_loop_over_seeds_compiles_once(setup):
    """Also if every call makes a new algorithm; other numbers are another program."""
    with compilations() as names:
        results = [fs.simulate(fs.fedavg(0.11), setup, jax.random.key(s)) for s in range(3)]
    assert len(segments(names)) == 1
    assert [result.compile_seconds > 0 for result in results] == [True, False, False]
    for other in (fs.fedavg(0.12), fs.fedprox(0.11, mu=1.0)):
        with compilations() as names:
            result = fs.simulate(other, setup, jax.random.key(0))
        assert len(segments(names)) == 1
        change = result.state.server.params - results[0].state.server.params
        assert float(jnp.abs(change).max()) > 1e-4


def losses(w, batch, key):
    del key
    return (batch["x"] @ w - 1) ** 2


def test_a_setup_that_is_built_again_is_traced_once():
    """Equal shapes and static values, other data."""

    @jax.jit
    @chex.assert_max_traces(n=1)
    def train(setup, key):
        return fs.run(fs.fedavg(0.1), setup, key)[0].server.params

    models = []
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
        data = fs.FederatedData({"x": x}, np.array([0, 2, 6]))
        task = fs.empirical_task(losses, data, fs.epochs(1, batch_size=2))
        timeline = fs.timelines.full(2, 2, task.num_steps)
        models.append(train(fs.Setup(task, timeline, jnp.zeros(2)), jax.random.key(seed)))
    assert len(np.unique(np.stack(models)[:, 0])) == 3


def half():
    return 0.5


def step_size():
    return 2 * half()


def own_method():
    """An algorithm that calls a function of its module."""

    def local(message, state, oracle, work):
        return jnp.asarray(step_size()), state

    def update(state, mean, round):
        return state._replace(params=state.params + mean)

    return fs.fedavg(0.1)._replace(local=local, update=update)


def test_a_helper_that_is_defined_again_counts(monkeypatch):
    setup = fs.Setup(no_data(), fs.timelines.full(2, 8, 1), ZERO)

    def model():
        return float(fs.simulate(own_method(), setup, jax.random.key(0)).state.server.params)

    assert model() == 2
    monkeypatch.setitem(globals(), "half", lambda: 1.0)  # which the helper calls
    assert model() == 4
    monkeypatch.setitem(globals(), "step_size", lambda: 3.0)
    assert model() == 6


@dataclasses.dataclass
class Settings:
    factor: float = 1.0


class Own:
    """An object with an attribute, a class attribute and a reference to itself."""

    factor = 1.0

    def __init__(self):
        self.values = {"list": [1, 2]}
        self.itself = self

    def scaled(self, x):
        return self.factor * x


class Slots:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1.0


settings = Settings()


@pytest.mark.parametrize(
    ("made", "change"),
    [
        (Settings, lambda value: setattr(value, "factor", 2.0)),
        (lambda: types.SimpleNamespace(factor=1.0), lambda value: setattr(value, "factor", 2.0)),
        (lambda: type("Class", (), {"factor": 1.0}), lambda value: setattr(value, "factor", 2.0)),
        (Own, lambda value: value.values["list"].append(3)),
        (Own, lambda value: setattr(value, "factor", 2.0)),
        (Slots, lambda value: setattr(value, "factor", 2.0)),
        (lambda: np.zeros(3), lambda value: value.__setitem__(0, 1.0)),
        (lambda: collections.deque([1]), lambda value: value.append(2)),
    ],
)
def test_a_global_value_that_was_changed_in_place_counts(monkeypatch, made, change):
    value = made()
    monkeypatch.setitem(globals(), "settings", value)

    def function(x):
        return x, settings

    before = fingerprint(function)
    assert fingerprint(function) == before
    change(value)
    assert fingerprint(function) != before


def test_an_object_of_a_bound_method_counts_by_value():
    first, second = Own(), Own()
    assert fingerprint(first.scaled) == fingerprint(second.scaled)
    second.factor = 2.0
    assert fingerprint(first.scaled) != fingerprint(second.scaled)


def test_a_global_name_of_an_attribute_does_not_count(monkeypatch):
    """Else a notebook's variable ``params`` would compile all algorithms again."""

    def function(state):
        return state.settings

    before = fingerprint(function)
    monkeypatch.setitem(globals(), "settings", 3.0)
    assert fingerprint(function) == before


def test_an_object_without_a_value_equals_no_other_key(monkeypatch):
    monkeypatch.setitem(globals(), "settings", collections.deque([lambda: 0]))

    def function(x):
        return x, settings

    assert fingerprint(function) != fingerprint(function)


def test_a_donated_global_array_has_a_key(monkeypatch):
    array = jnp.ones(3)
    monkeypatch.setitem(globals(), "settings", array)
    array.delete()

    def function(x):
        return x, settings

    assert fingerprint(function) == fingerprint(function)


@pytest.mark.slow
def test_a_run_uses_global_values_that_were_changed_in_place(monkeypatch):
    """In algorithms that are made again and in an evaluation that stays the same object."""
    own = Settings()
    monkeypatch.setitem(globals(), "settings", own)

    def algorithm():
        def local(message, state, oracle, work):
            return jnp.asarray(settings.factor), state

        def update(state, mean, round):
            return state._replace(params=state.params + mean)

        return fs.fedavg(0.1)._replace(local=local, update=update)

    def factor(params):
        return {"factor": settings.factor * jnp.ones_like(params)}

    setup = fs.Setup(no_data(), fs.timelines.full(2, 8, 1), ZERO, factor)
    same = own_method()
    for value in (1.0, 3.0):
        own.factor = value
        run = fs.simulate(algorithm(), setup, jax.random.key(0))
        assert float(run.state.server.params) == 2 * value
        run = fs.simulate(same, setup, jax.random.key(0))
        np.testing.assert_array_equal(run.history.metrics["factor"], [value, value])


def test_fingerprints():
    assert fingerprint(fs.fedavg(0.1)) == fingerprint(fs.fedavg(0.1))
    different = [
        fs.fedavg(0.1), fs.fedavg(0.2), fs.fedavg(jnp.array(0.1)), fs.scaffold(0.1),
        fs.fedavg(lambda t: 0.1), fs.fedadam(0.1, 0.1), fs.skip_nonfinite(fs.fedavg(0.1)),
    ]  # fmt: skip
    assert len({fingerprint(algorithm) for algorithm in different}) == len(different)
    assert fingerprint(np.arange(3)) != fingerprint(np.arange(4))

    def function(number):
        def local(x, *, factor=number):
            return factor * x

        return local

    assert fingerprint(function(1)) == fingerprint(function(1)) != fingerprint(function(2))


@pytest.mark.slow
def test_descriptions_are_equal_in_other_processes():
    """Also of a constant set, whose order differs between processes."""
    program = (
        "import fedjax_sim as fs\n"
        "from fedjax_sim.simulation.identity import description\n"
        "f = lambda x: x in {'a', 'b', 'c', 'd', 'e'}\n"
        "print(description(fs.scaffold(0.1)), description(f))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert runs[0].split()[0] == description(fs.scaffold(0.1))


@pytest.mark.slow
def test_the_precision_of_times_does_not_count():
    timeline = fs.timelines.arrivals(
        jax.random.key(0), fs.timelines.deterministic(0.1), horizon=1.0, num_clients=2, num_steps=1
    )
    assert timeline.time.dtype == timeline.idle.dtype == np.float64
    single = jax.jit(lambda x: x)(timeline)
    assert single.time.dtype == np.float32
    assert arrays_digest(timeline_arrays(single)) == arrays_digest(timeline_arrays(timeline))
    later = dataclasses.replace(timeline, time=timeline.time + 1)
    assert arrays_digest(timeline_arrays(later)) != arrays_digest(timeline_arrays(timeline))


@pytest.mark.parametrize("dtype", [bool, np.int8, jnp.bfloat16, np.float32, np.int32])
def test_digests_of_arrays_on_several_devices(dtype):
    """Equal for every number of devices, and different for other values, places and types."""
    values = np.arange(24).reshape(8, 3).astype(dtype)
    digests = []
    for count in (1, 2, 4):
        mesh = jax.make_mesh((count,), ("clients",), devices=jax.devices()[:count])
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
        digests.append(sharded_digest(jax.device_put(values, where)))
    assert len(set(digests)) == 1
    changed = [~values if dtype is bool else values + values[1, 1], values[::-1], values.T]
    assert len({digests[0], *map(sharded_digest, changed)}) == 4


@pytest.mark.slow
def test_a_folder_shows_the_algorithm(setup, tmp_path):
    fs.simulate(fs.fedprox(0.1, mu=0.25), setup, jax.random.key(0), storage=tmp_path)
    identity = json.loads((tmp_path / "run.json").read_text())
    assert identity["algorithm"] == algorithm_identity(fs.fedprox(0.1, mu=0.25))
    assert identity["algorithm"]["numbers"]["mu"] == 0.25
    assert {"data", "timeline", "params", "key", "weighting"} <= identity.keys()
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json is damaged .*; restore it from a copy"):
        fs.simulate(fs.fedprox(0.1, mu=0.25), setup, jax.random.key(0), storage=tmp_path)


def test_a_configuration_with_nan_is_the_same_again(tmp_path):
    identity = {"config": {"target": float("nan"), "lr": 1}, "rounds": 3}
    claim(tmp_path / "run.json", identity)
    claim(tmp_path / "run.json", identity)
    with pytest.raises(FolderError, match="config differ"):
        claim(tmp_path / "run.json", identity | {"config": {"target": 0.5, "lr": 1}})
