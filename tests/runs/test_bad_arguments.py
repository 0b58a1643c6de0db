"""Arguments of the wrong kind are refused by name, in all functions that run algorithms."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import records
from small_problems import KEY, NUM_CLIENTS, no_data
from sweep_problems import compilations

import fedjax_sim as fs
from fedjax_sim.checks.setups import check_keys
from fedjax_sim.studies.executions import measure_executions

TIMELINE = fs.timelines.cyclic(2, NUM_CLIENTS, 4, num_steps=2)
GOOD = fs.Setup(no_data(), TIMELINE, jnp.zeros(1))
ALGORITHM = fs.fedavg(0.1)
KEYS = jax.random.split(KEY, 1)
RUNS = (fs.run, fs.simulate, fs.forecast, measure_executions)


def compare(algorithm, setup, keys, **options):
    return fs.compare({"mine": algorithm}, setup, keys, **records(**options))


def refused(message, run, *arguments, **options):
    with pytest.raises(ValueError, match=message):
        run(*arguments, **options)


@pytest.mark.parametrize("run", [*RUNS, compare])
def test_what_is_no_algorithm_or_setup(run):
    key, mine = (KEYS, r"algorithms\['mine'\]") if run is compare else (KEY, "algorithm")
    refused(
        rf"{mine} is <function fedavg.*; expected a FedAlgorithm: call", run, fs.fedavg, GOOD, key
    )
    refused("is None; expected a FedAlgorithm", run, None, GOOD, key)
    refused("is a FedAlgorithm; expected a|expected a FedAlgorithm", run, GOOD, ALGORITHM, key)
    refused("setup is a Task; expected a fedjax_sim.Setup", run, ALGORITHM, GOOD.task, key)


@pytest.mark.parametrize("run", [*RUNS, compare])
@pytest.mark.parametrize("key", [0, [0, 1], np.arange(2), jax.random.key_data(KEY)])
def test_what_is_no_key(run, key):
    refused("keys? is .*; expected jax.random.key", run, ALGORITHM, GOOD, key)


@pytest.mark.parametrize("run", [*RUNS, compare])
def test_keys_of_other_shapes(run):
    refused(r"has shape \(2, 2\); exp", run, ALGORITHM, GOOD, jax.random.split(KEY, (2, 2)))
    refused(r"has shape \(0,\); exp", run, ALGORITHM, GOOD, jax.random.split(KEY, 0))


def sweep(algorithm, setup, keys):
    return fs.sweep(lambda lr: algorithm, setup, {"lr": [0.1]}, keys)


def fork(algorithm, setup, keys):
    return fs.fork(None, {"mine": algorithm}, setup, keys)  # type: ignore[arg-type]


def audit(algorithm, setup, keys):
    return fs.diagnostics.audit(algorithm, setup, keys, 0, jnp.sum, delta=1e-5)


EQUAL_KEYS = {
    "one key for two seeds": (lambda: jnp.stack([KEY, KEY]), r"keys\[0\] and keys\[1\]"),
    "the last of three": (
        lambda: jax.random.split(KEY, 2)[jnp.array([0, 1, 1])],
        r"keys\[1\] and keys\[2\]",
    ),
    "modulo 2^32": (
        lambda: jnp.stack([jax.random.key(7), jax.random.key(7 + 2**32)]),
        r"keys\[0\] and keys\[1\]",
    ),
}


@pytest.mark.parametrize("case", EQUAL_KEYS)
@pytest.mark.parametrize(
    "run", [fs.simulate, fs.forecast, measure_executions, compare, sweep, fork, audit]
)
def test_equal_keys_of_seeds(run, case):
    """Both seeds would have the same numbers, and an interval over them the width 0."""
    draw, message = EQUAL_KEYS[case]
    keys = draw()
    setup = dataclasses.replace(GOOD, params=jnp.zeros((len(keys), 1)))
    if run is audit:
        setup = GOOD
    with compilations() as names:
        refused(f"{message} are equal; expected another", run, ALGORITHM, setup, keys)
    assert names == []


def test_equal_keys_while_traced():
    equal = jnp.stack([KEY, KEY])
    jax.jit(check_keys)(equal)  # their numbers are not known
    with pytest.raises(ValueError, match="are equal"):
        jax.eval_shape(lambda x: check_keys(equal), 0.0)


def own_task(oracle):
    return dataclasses.replace(GOOD.task, oracle=oracle)


def of_gradient(grad):
    """The oracle of a gradient that is not the model's, which a step would broadcast or cast."""
    return lambda *x: fs.Oracle(grad, lambda w, step: 0.0, lambda w: grad(w, 0))


def _error(w, examples):
    return {"error": jnp.abs(examples["x"] - w)}


NOT_FINITE = fs.evaluation.evaluator(_error, {"x": np.array([1.0, np.inf], np.float32)})
CHANGES = [
    ({"params": {"w": jnp.arange(3)}}, r"params\['w'\] has dtype int32; expected a floating"),
    ({"params": np.ones(3, complex)}, "params has dtype complex64; expected a floating"),
    ({"params": {"w": np.ones(3, bool)}}, r"params\['w'\] has dtype bool; expected a floating"),
    ({"params": {"w": np.array([1.0, np.nan])}}, r"params\['w'\] has nan; expected finite numbers"),
    ({"params": np.array([1.0, 1e300])}, r"params has 1e\+300; expected finite numbers of float32"),
    (
        {"params": np.ones(3, ">f4")},
        "params has dtype >f4; expected the byte order of this machine",
    ),
    ({"params": np.ones(3, np.longdouble)}, "params has dtype .*; expected .* at most double prec"),
    ({"params": jax.random.split(KEY, 3)}, "params has dtype key<fry>; expected a floating"),
    ({"eval_fn": NOT_FINITE}, r"eval_fn: examples\['x'\] has inf in row 1; expected finite n"),
    ({"eval_fn": "loss"}, "eval_fn is 'loss'; expected a function of the model"),
    ({"eval_fn": {"loss": 1}}, "eval_fn is .*; expected a function of the model"),
    ({"eval_fn": lambda params: params}, "eval_fn returns an array; expected a dict"),
    ({"eval_fn": lambda params: None}, "eval_fn returns a NoneType; expected a dict"),
    ({"eval_fn": lambda params: {"z": jnp.fft.fft(params)}}, "'z', which is complex; expected"),
    ({"eval_fn": lambda params: {"k": KEY}}, "'k', which is a random key; expected real metrics"),
    ({"weighting": lambda work: work.key}, r"weighting returns key<.*expected real numbers"),
    ({"eval_fn": lambda params: {"evaluated": 0.0}}, "returns 'evaluated' with numbers; expected"),
    ({"eval_fn": lambda params: {1: 0.0}}, "eval_fn returns the name 1; expected text"),
    ({"eval_fn": lambda params: {"loss": "a"}}, "eval_fn returns 'loss': 'a'; expected a number"),
    ({"weighting": "uniform"}, "weighting is 'uniform'; expected a function"),
    ({"weighting": lambda: 1.0}, r"weighting takes \(\); expected \(work\)"),
    (
        {"weighting": lambda work: work.size},
        r"weighting fails for the round's visits \(AttributeEr",
    ),
    (
        {"eval_fn": lambda params, examples: {}},
        r"eval_fn takes \(params, examples\); expected \(mod",
    ),
    (
        {"eval_fn": lambda params: params["w"]},
        r"eval_fn fails for the server's model \(TypeError: ",
    ),
    (
        {"eval_fn": lambda params: {"l": float(params.sum())}},
        r"server's model \(ConcretizationTypeError:",
    ),
    (
        {"params": np.ma.masked_array([1.0], [1])},
        r"(?s)params is masked_array.*; expected an array of nu",
    ),
    (
        {"timeline": dataclasses.replace(TIMELINE, time=[2.0, 1.0])},
        "time falls from 2.0 to 1.0 in ro",
    ),
    (
        {"timeline": dataclasses.replace(TIMELINE, time=[1.0, np.nan])},
        "timeline.time has nan in round 1; expected finite times",
    ),
    (
        {
            "timeline": dataclasses.replace(
                TIMELINE, version=np.full(TIMELINE.clients.shape, -1), max_staleness=2
            )
        },
        "timeline.version has -1; expected 0 or above",
    ),
    (
        {"timeline": dataclasses.replace(TIMELINE, own_models="no")},
        "timeline.own_models is 'no'; expected True or False",
    ),
    (
        {"task": dataclasses.replace(GOOD.task, num_examples=-np.ones(NUM_CLIENTS))},
        "task.num_examples has -1.0 for client 0; expected finite numbers of at least 0",
    ),
    (
        {"eval_fn": lambda params: {"z": jnp.broadcast_to(jnp.ones(2), (5, 7))}},
        r"eval_fn fails for the server's model \(ValueError: Incompatible",
    ),
    (
        {"timeline": dataclasses.replace(TIMELINE, max_steps=2.0)},
        "timeline.max_steps is 2.0; expect",
    ),
    (
        {"task": own_task(lambda client, key: None)},
        r"oracle takes \(client, key\); expected \(client",
    ),
    (
        {"task": own_task(lambda *x: x[0]["c"])},
        r"task\.oracle fails for \(client, key, max_steps\) ",
    ),
    (
        {"task": own_task(lambda *x: {})},
        r"task\.oracle returns a dict; expected a fedjax_sim\.Orac",
    ),
    (
        {"task": own_task(of_gradient(lambda w, step: w.sum()))},
        r"task\.oracle has a function grad that returns \. float32\[\]; expected floats",
    ),
    (
        {"task": own_task(of_gradient(lambda w, step: w > 0))},
        r"grad that returns \. bool\[1\]; expected floats as the model, \. f",
    ),
    (
        {"task": own_task(of_gradient(lambda w, step: {"w": w}))},
        r"grad that returns \['w'\] float32\[1\]; expected floats as the model",
    ),
    (
        {"task": dataclasses.replace(GOOD.task, num_steps=[1.0] * NUM_CLIENTS)},
        "num_steps has .*float",
    ),
    (
        {"task": dataclasses.replace(GOOD.task, num_steps=[1])},
        r"task.num_steps has shape \(1,\) and",
    ),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_setups_of_other_values(change, message):
    """All functions have one door (test_one_door.py)."""
    refused(message, fs.simulate, ALGORITHM, dataclasses.replace(GOOD, **change), KEY)


@pytest.mark.parametrize("run", [fs.run, fs.simulate, fs.forecast])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"execution": "vmapped"}, "execution is 'vmapped'; expected a strategy, such as fs.exec"),
        ({"execution": fs.execution.vmapped}, "execution is <function vmapped.*; expected a strat"),
        ({"probes": {"client": {}}}, r"probes is \{'client': \{\}\}; expected fs\.Probes"),
        ({"probes": fs.Probes(server=[abs])}, r"expected fs\.Probes\(server=\{\.\.\.\}\), funct"),  # type: ignore
        ({"probes": fs.Probes(run={"a": 1})}, r"expected fs\.Probes\(run=\{\.\.\.\}\), functions"),  # type: ignore
        (
            {"probes": fs.Probes({"a": lambda visit: visit.mean})},
            r"probes\.client\['a'\] fails for a V",
        ),
        (
            {"probes": fs.Probes({"a": lambda visit: None})},
            r"probes\.client\['a'\] returns NoneType",
        ),  # type: ignore
        (
            {"probes": fs.Probes({"a": lambda visit: 1j})},
            r"client\['a'\] returns complex.*real numbe",
        ),  # type: ignore
        (
            {"probes": fs.Probes(server={"a": lambda update: "b"})},
            r"server\['a'\] returns 'b'; expec",
        ),  # type: ignore
        (
            {"probes": fs.Probes(run={"a": lambda state: None})},
            r"probes\.run\['a'\] returns .*; expected real numbers",
        ),  # type: ignore
        (
            {"probes": fs.Probes(run={1: lambda state: 0.0})},
            "probes has 1; expected a name that is t",
        ),  # type: ignore
    ],
)
def test_options_of_other_kinds(run, options, message):
    refused(message, run_with, run, GOOD, options)


def run_with(run, setup, options):
    """The run with an execution or probes, which only ``fs.run`` takes one by one."""
    options = options if run is fs.run else {"options": fs.Options(**options)}
    return run(ALGORITHM, setup, KEY, **options)


def test_probes_of_several_arrays_are_no_history():
    """``fs.run`` returns them."""
    probes = fs.Probes({"a": lambda visit: (jnp.zeros(1), jnp.ones(2))})  # type: ignore
    assert len(fs.run(ALGORITHM, GOOD, KEY, probes=probes)[1].probes["a"]) == 2
    message = r"probes has 'a' that returns tuple\(.*; expected one array"
    refused(message, run_with, fs.simulate, GOOD, {"probes": probes})
    empty = fs.Probes(run={"a": lambda state: state.clients})  # FedAvg's clients have no state
    assert fs.run(ALGORITHM, GOOD, KEY, probes=empty)[1].probes["a"] == ()
    refused(message, run_with, fs.simulate, GOOD, {"probes": empty})


def test_keys_of_probes_are_no_history():
    """``fs.run`` returns them."""
    probes = fs.Probes({"a": lambda visit: visit.work.key})
    found = fs.run(ALGORITHM, GOOD, KEY, probes=probes)[1].probes["a"]
    assert jnp.issubdtype(found.dtype, jax.dtypes.prng_key)
    message = r"probes has 'a' that returns key<.*; expected one array of numbers"
    refused(message, run_with, fs.simulate, GOOD, {"probes": probes})


@pytest.mark.parametrize("run", [fs.simulate, fs.forecast, measure_executions])
def test_runs_without_compilation(run):
    with jax.disable_jit():
        refused("jax_disable_jit is True; expected False", run, ALGORITHM, GOOD, KEY)


@pytest.mark.parametrize("run", [fs.simulate, fs.forecast, measure_executions])
def test_runs_inside_transformations(run):
    def loss(lr):
        return run(fs.fedavg(lr), GOOD, KEY)

    for transform in (jax.jit, jax.grad, lambda f: lambda lr: jax.vmap(f)(lr[None])):
        refused(
            "setup is used inside jax.jit, vmap or grad; expected", transform(loss), jnp.array(0.1)
        )


def test_comparisons_of_other_values():
    setup = dataclasses.replace(GOOD, params=jnp.zeros((1, 1)))
    refused("algorithms is a list; expected a dict", fs.compare, [ALGORITHM], setup, KEYS)
    refused("algorithms is a FedAlgorithm; exp", fs.compare, ALGORITHM, setup, KEYS)
    refused(r"has the names \[1\]; expected text", fs.compare, {1: ALGORITHM}, setup, KEYS)
    make = functools.partial(compare, ALGORITHM)
    refused("setup is a NoneType; expected", make, lambda: None, KEYS)
    refused("setup is a NoneType; expected", make, lambda seed: None, KEYS)
    refused("setup is a list; expected", make, [setup], KEYS)


def test_descriptions_that_json_does_not_have(tmp_path):
    one, setup = {"lr": np.float32(0.1)}, dataclasses.replace(GOOD, params=jnp.zeros((1, 1)))
    folder = tmp_path / "results"
    message = r"storage\.config is \{'lr': .*; expected a dict of values that JSON has: .*float32"
    refused(message, fs.Storage, folder, config=one)
    refused(r"storage\.config is \['lr'\]; expected a dict", fs.Storage, config=["lr"])
    by_name = fs.Storage(folder, config=lambda name: one if name == "b" else {})
    algorithms = {"a": ALGORITHM, "b": ALGORITHM}
    refused(
        r"storage\.config\('b'\) is \{'lr'", fs.compare, algorithms, setup, KEYS, storage=by_name
    )
    refused(
        "storage.config is <function.*; exp", fs.simulate, ALGORITHM, GOOD, KEY, storage=by_name
    )
    grid = fs.fedavg, setup, {"lr": [0.1]}, KEYS
    by_rate = fs.Storage(folder, config=lambda configuration: one)
    refused(r"storage\.config\(\{'lr': 0\.1\}\) is \{'lr'", fs.sweep, *grid, storage=by_rate)
    assert not folder.exists()


@pytest.mark.parametrize("seconds", ["5", None, -1.0, float("nan")])
def test_times_between_checkpoints(seconds):
    message = r"storage\.checkpoint_seconds is .*; expected a number of at least 0"
    refused(message, fs.Storage, checkpoint_seconds=seconds)


@pytest.mark.parametrize("seconds", ["5", None, 0, -1.0, float("nan")])
def test_times_of_segments(seconds):
    refused(
        r"options\.segment_seconds is .*; expected a positive", fs.Options, segment_seconds=seconds
    )


def test_names_of_seeds_that_histories_cannot_hold():
    message = r"options\.seeds has 'a\\nb'; expected a name without line breaks"
    refused(message, fs.simulate, ALGORITHM, GOOD, KEY, options=fs.Options(seeds=["a\nb"]))


def test_a_memory_that_no_device_has():
    refused(r"options\.memory is -1; expected 1", fs.Options, memory=-1)


def test_whole_numbers_that_a_sweep_makes_floats():
    refused(r"num_models is .*2.0.*; expected an integer \(in a sweep: annotate",
            fs.ifca, 0.1, num_models=np.float64(2.0))  # fmt: skip


def test_complex_rates():
    refused(r"lr is 0\.1j; expected a real number", fs.fedavg, 0.1j)


def test_a_sweep_whose_factory_returns_no_algorithm():
    setup = dataclasses.replace(GOOD, params=jnp.zeros((1, 1)))
    refused("algorithm is None; expected", fs.sweep, lambda lr: None, setup, {"lr": [0.1]}, KEYS)


@pytest.mark.parametrize("run", [fs.run, fs.simulate])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("time", "eval_fn has 'time'; expected another name"),
        ("local_steps", "eval_fn has 'local_steps'; expected another name"),
        ("my\nloss", "has 'my.*loss'; expected a name without line breaks"),
    ],
)
def test_metrics_with_names_that_histories_cannot_hold(run, name, message):
    setup = dataclasses.replace(GOOD, eval_fn=lambda params: {name: jnp.sum(params)})
    refused(message, run, ALGORITHM, setup, KEY)


@pytest.mark.parametrize("run", [fs.run, fs.simulate])
def test_probes_with_the_name_of_another_value(run):
    setup = dataclasses.replace(GOOD, eval_fn=lambda params: {"loss": jnp.sum(params)})
    one = lambda _: jnp.ones(())  # noqa: E731
    for message, probes, chosen in (
        ("probes has 'loss', which is", fs.Probes({"loss": one}), setup),
        (
            "probes has 'a', which is another",
            fs.Probes(client={"a": one}, server={"a": one}),
            setup,
        ),
        ("probes has 'time'; exp", fs.Probes({"time": one}), GOOD),
    ):
        refused(message, run_with, run, chosen, {"probes": probes})
