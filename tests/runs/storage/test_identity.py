"""Algorithms by value: equal ones compile once, and a run's folder refuses all others."""

import dataclasses
import json
import threading
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_problems import ZERO, no_data
from sweep_problems import compilations, quadratic_trial
from traced import digest_of

import fedjax_sim as fs
from fedjax_sim.runs import programs
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.runs.storage.identity import arrays_digest, sharded_digest, timeline_arrays
from fedjax_sim.runs.storage.run_functions import identified, trace_run
from fedjax_sim.runs.storage.store import claim
from fedjax_sim.runs.storage.traces import trace


@pytest.fixture(scope="module")
def setup():
    setup = quadratic_trial(num_seeds=1, num_rounds=3).setup
    return fs.Setup(setup.task, setup.timeline, setup.params[0], setup.eval_fn)


def segments(names):
    return [name for name in names if "segment" in name]


@pytest.mark.slow
def test_a_loop_over_seeds_compiles_once(setup):
    """Also if every call makes a new algorithm, and for other numbers; others have their own."""
    programs._functions.clear()
    with compilations() as names:
        results = [fs.simulate(fs.fedavg(0.11), setup, jax.random.key(s)) for s in range(3)]
    assert len(segments(names)) == 1
    assert [result.compile_seconds > 0 for result in results] == [True, False, False]
    for other, count in ((fs.fedavg(0.12), 0), (fs.fedprox(0.11, mu=1.0), 1)):
        with compilations() as names:
            result = fs.simulate(other, setup, jax.random.key(0))
        assert len(segments(names)) == count
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


settings = Settings()


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


class Scale(nnx.Module):
    def __init__(self):
        self.factor = 1.0
        self.weight = nnx.Param(jnp.ones(()))

    def __call__(self, w):
        return self.factor * self.weight[...] * w


def changed_in_place(kind):
    """Returns an objective's factor and a function that changes what it reads, from 1 to 3."""
    if kind == "attribute of an nnx module":
        scale = Scale()
        return scale, lambda: setattr(scale, "factor", 3.0)
    if kind == "value of an nnx module":
        scale = Scale()
        return scale, lambda: scale.weight.set_value(jnp.array(3.0))
    if kind == "threading.local":
        local = threading.local()
        local.factor = 1.0
        return lambda w: local.factor * w, lambda: setattr(local, "factor", 3.0)
    outer = types.SimpleNamespace(inner=types.SimpleNamespace(factor=1.0))
    return lambda w: outer.inner.factor * w, lambda: setattr(outer.inner, "factor", 3.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["attribute of an nnx module", "value of an nnx module", "threading.local", "nested attribute"],
)
def test_an_object_that_was_changed_in_place_is_another_program(kind):
    """One step of FedAvg with rate 1/8 on (a w - 2)^2 from w = 0 ends at a / 2, exactly."""
    scaled, change = changed_in_place(kind)

    def setup():
        data = fs.FederatedData({"x": np.ones((1, 1), np.float32)}, np.array([0, 1]))
        loss = lambda w, batch, key: (scaled(w) * batch["x"][:, 0] - 2) ** 2  # noqa: E731
        task = fs.empirical_task(loss, data, fs.full_batch(1))
        metric = lambda w: {"scaled": scaled(w)}  # noqa: E731
        return fs.Setup(task, fs.timelines.full(1, 1, task.num_steps), np.float32(0), metric)

    same = setup()
    for factor in (1.0, 3.0):
        for again in (same, setup()):
            result = fs.simulate(fs.fedavg(0.125), again, jax.random.key(0))
            assert float(result.state.server.params) == factor / 2
            assert result.history.metrics["scaled"].tolist() == [factor**2 / 2]
        change()


def test_a_setup_that_is_built_again_shares_programs_with_the_first():
    with compilations() as names:
        for seed in range(3):
            data = fs.FederatedData({"x": np.full((4, 1), seed, np.float32)}, np.array([0, 2, 4]))
            loss = lambda w, batch, key: (w - batch["x"][:, 0]) ** 2  # noqa: E731
            task = fs.empirical_task(loss, data, fs.full_batch(1))
            metric = lambda w: {"model": w}  # noqa: E731
            setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), np.float32(0), metric)
            result = fs.simulate(fs.fedavg(0.5), setup, jax.random.key(0))
            assert result.history.metrics["model"].tolist() == [seed]
    assert len(segments(names)) == 1


def test_equal_callbacks_with_other_bodies_are_other_programs():
    """A digest does not show what a callback does, so in a process it counts by its identity."""
    shape = jax.ShapeDtypeStruct((), np.float32)

    def model(a):
        on_host = lambda w: np.float32(a)  # noqa: E731
        local = lambda x, state, oracle, work: (jax.pure_callback(on_host, shape, x), state)  # noqa: E731
        algorithm = fs.fedavg(0.1)._replace(
            local=local, update=lambda s, mean, round: s._replace(params=s.params + mean)
        )
        setup = fs.Setup(no_data(), fs.timelines.full(1, 8, 1), jnp.float32(0))
        return float(fs.simulate(algorithm, setup, jax.random.key(0)).state.server.params)

    assert (model(2), model(3)) == (2, 3)

    class Log:
        def on_host(self, x):
            return x

    log = Log()
    same = lambda x: jax.pure_callback(log.on_host, shape, x)  # noqa: E731
    assert trace(same, shape)[0] == trace(same, shape)[0]
    shown = lambda x: (jax.debug.print("{x}", x=x), x)[1]  # noqa: E731
    assert trace(shown, shape)[0] == trace(shown, shape)[0]


@pytest.mark.parametrize(
    ("kept", "made"),
    [
        (False, lambda f: lambda x: jax.grad(f)(x)),
        (False, lambda f: lambda x: jax.lax.map(f, x[None])),
        (True, lambda f: jax.jit(f)),
        (True, lambda f: jax.checkpoint(f)),
        (True, lambda f: lambda x: jax.lax.cond(x > 0, f, f, x)),
    ],
    ids=["grad", "map", "jit", "checkpoint", "cond"],
)
def test_functions_whose_trace_jax_keeps(kept, made):
    """docs/howto/resuming.md names them; if JAX stops to keep one, the page has to change."""
    own = Settings(2.0)

    def f(x):
        return own.factor * x

    function, x = made(f), jax.ShapeDtypeStruct((), np.float32)
    first = trace(function, x)[0]
    own.factor = 3.0
    assert (trace(function, x)[0] == first) == kept


def test_digests_of_algorithms():
    assert digest_of(fs.fedavg(0.1)) == digest_of(fs.fedavg(0.1))
    different = [
        fs.fedavg(0.1), fs.fedavg(0.2), fs.scaffold(0.1), fs.fedadam(0.1, 0.1),
        fs.fedavg(lambda t: 0.1 / t.astype(float)), fs.fedavg(lambda t: 0.2 / t.astype(float)),
        fs.skip_nonfinite(fs.fedavg(0.1)),
    ]  # fmt: skip
    assert len({digest_of(algorithm) for algorithm in different}) == len(different)


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
def test_a_folder_shows_what_identifies_the_run(setup, tmp_path):
    fs.simulate(fs.fedprox(0.1, mu=0.25), setup, jax.random.key(0), storage=tmp_path)
    identity = json.loads((tmp_path / "run.json").read_text())
    spec = fs.fedprox(0.1, mu=0.25).spec
    numbers, structure = jax.tree.flatten(spec)
    traces = trace_run(
        lambda numbers: jax.tree.unflatten(structure, numbers).build(),
        setup,
        batched=False,
        numbers=numbers,
    )
    assert identity["spec"] == spec.to_json()
    assert identity["algorithm"] == traces.algorithm.digest
    assert (identity["jax"], identity["accepted"]) == (jax.__version__, [])
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


@pytest.mark.parametrize("algorithm", [fs.fedavg(0.1), fs.scaffold(0.1)])
def test_the_number_of_devices_is_in_no_digest(algorithm):
    """Runs with equal strata may continue on another number of devices."""
    found = []
    for count in (1, 2, 4):
        mesh = jax.make_mesh((count,), ("clients",), devices=jax.devices()[:count])
        where = fs.execution.by_client(8, mesh, num_strata=4)
        data = fs.FederatedData({"x": np.ones((8, 2), np.float32)}, np.arange(9))
        task = fs.empirical_task(losses, data, fs.full_batch(1), placement=where)
        timeline = fs.timelines.stratified(jax.random.key(0), 3, 8, 4, 1, num_strata=4)
        setup = fs.Setup(task, timeline, jnp.zeros(2), lambda w: {"norm": jnp.abs(w).sum()})
        found.append(trace_run(algorithm, setup, batched=False))
    assert [part.error for part in found[0][:4]] == [None] * 4
    assert found[0] == found[1] == found[2]


def test_platforms_are_in_no_digest_and_all_their_branches_are():
    """A trace has the branches of every platform, whatever JAX's default is."""
    x = jnp.ones(2)

    def branching(a):
        return lambda x: jax.lax.platform_dependent(x, cuda=lambda x: a * x, default=lambda x: x)

    one, other = (trace(branching(a), x)[0] for a in (2, 3))
    assert one != other
    with jax.default_device(jax.devices()[1]):
        assert trace(branching(2), x)[0] == one


def test_types_of_numbers_are_in_a_digest():
    def digest(*arguments):
        return trace(lambda x: x + 1, *arguments)[0].digest

    weak = jax.ShapeDtypeStruct((), np.float32, weak_type=True)
    assert digest(weak) != digest(jax.ShapeDtypeStruct((), np.float32))
    single = digest(jnp.ones(2, np.float32))
    with jax.enable_x64(True):
        assert digest(jnp.ones(2, np.float64)) != single
        assert digest(jnp.ones(2, np.float32)) == single


def test_constants_are_in_a_digest_with_all_their_values():
    """NumPy prints arrays of more than 1,000 entries without most of them."""
    values = np.zeros(5000, np.float32)
    first = trace(lambda x: x * values, jnp.ones(()))[0]
    inner = trace(jax.jit(lambda x: x * values), jnp.ones(()))[0]
    values[2500] = 1
    assert trace(lambda x: x * values, jnp.ones(()))[0] != first
    assert trace(jax.jit(lambda x: x * values), jnp.ones(()))[0] != inner
    several = trace(lambda x: jax.lax.cond(x > 0, lambda: x * values, lambda: x * values), 1.0)[0]
    values[2500] = 2
    changed = trace(lambda x: jax.lax.cond(x > 0, lambda: x * values, lambda: x * values), 1.0)[0]
    assert several.error is None
    assert several != changed


def test_a_function_that_cannot_be_traced_equals_none_and_has_no_folder(setup, tmp_path):
    one, other = (trace(lambda x: float(x), jnp.ones(()))[0] for _ in range(2))
    assert one != other
    assert isinstance(one.error, jax.errors.ConcretizationTypeError)
    with pytest.raises(ValueError, match="objective cannot be traced for one client of one round"):
        identified(trace_run(fs.fedavg(0.1), setup, batched=False)._replace(objective=one))


def test_the_share_of_the_weights_counts_if_the_server_receives_it(setup):
    """Folders from before SCAFFOLD's server had it were continued as those of another method."""
    number = fs.scaffold(0.1).requiring(mean_of_states=None)  # the share of the clients' number

    def digest(algorithm, weighting):
        weighted = dataclasses.replace(setup, weighting=weighting)
        return identified(trace_run(algorithm, weighted, batched=False))["algorithm"]

    examples = fs.weight_by_examples
    assert digest(fs.scaffold(0.1), examples) != digest(number, examples)
    assert digest(fs.scaffold(0.1), fs.uniform_weights) == digest(number, fs.uniform_weights)
    assert digest(fs.fedavg(0.1), examples) == digest(fs.fedavg(0.1), fs.uniform_weights)
