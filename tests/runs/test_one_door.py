"""One door for checks: every call runs each check once, and all calls say the same."""

import dataclasses
import inspect
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import records
from small_problems import KEY, NUM_CLIENTS, no_data
from sweep_problems import compilations

import fedjax_sim as fs
from fedjax_sim import engine
from fedjax_sim.engine import contract
from fedjax_sim.runs import programs
from fedjax_sim.studies.executions import measure_executions

TIMELINE = fs.timelines.cyclic(2, NUM_CLIENTS, 4, num_steps=2)
ONE = fs.Setup(no_data(), TIMELINE, jnp.zeros(1))
MANY = dataclasses.replace(ONE, params=jnp.zeros((2, 1)))
KEYS = jax.random.split(KEY, 2)
ALGORITHM = fs.fedavg(0.1)
DOOR = ("check_setup", "check_batch", "check_objective", "check_periods", "check_algorithm")


def fork(setup, algorithm, keys):
    return fs.fork(None, {"mine": algorithm}, setup, keys)  # type: ignore[arg-type]


def hypergradient(setup, algorithm, keys):
    return fs.hypergradient(jnp.sum, lambda lr: algorithm, setup, keys)(jnp.array(0.1))


def game(setup, algorithm, keys):
    return fs.valuation.game(algorithm, setup, keys, jnp.sum, mode="min")


def audit(setup, algorithm, keys):
    return fs.diagnostics.audit(algorithm, setup, jax.random.split(keys, 2), 0, jnp.sum, delta=1e-5)


# Calls (setup, algorithm, keys) with one run, and with one run per key.
OF_ONE = {
    "run": lambda setup, algorithm, key: fs.run(algorithm, setup, key),
    "init": lambda setup, algorithm, key: fs.init(algorithm, setup),
    "simulate": lambda setup, algorithm, key: fs.simulate(algorithm, setup, key),
    "forecast": lambda setup, algorithm, key: fs.forecast(algorithm, setup, key),
    "measure": lambda setup, algorithm, key: measure_executions(algorithm, setup, key),
    "hypergradient": hypergradient,
    "game": game,
    "audit": audit,
}
OF_MANY = {
    "compare": lambda setup, algorithm, keys: fs.compare({"mine": algorithm}, setup, keys),
    "sweep": lambda setup, algorithm, keys: fs.sweep(
        lambda lr: algorithm, setup, {"lr": [0.1]}, keys
    ),
    "fork": fork,
}


def call(name, change, algorithm):
    """One of the calls, with a change of its setup."""
    if name in OF_ONE:
        return OF_ONE[name](change(ONE), algorithm, KEY)
    return OF_MANY[name](change(MANY), algorithm, KEYS)


NO_EVALUATION = {"measure", "game", "audit", "hypergradient"}  # they replace or leave out eval_fn


BAD_SETUPS = {
    "no task": ({"task": None}, "setup.task is a NoneType; expected a fedjax_sim.Task"),
    "unknown clients": (
        {
            "timeline": dataclasses.replace(
                TIMELINE, clients=np.asarray(TIMELINE.clients) + NUM_CLIENTS
            )
        },
        "timeline.clients has clients",
    ),
    "integers": (
        {"params": jnp.zeros(1, int)},
        "params has dtype int32; expected a floating dtype",
    ),
    "period": (
        {"eval_fn": fs.evaluation.at_rounds(lambda w: {"norm": w[0]}, 7)},
        r"eval_fn has a part every 7 rounds \(at_rounds\), which no evaluation reaches",
    ),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in [*OF_ONE, *OF_MANY]
        for case in BAD_SETUPS
        if not (case == "period" and name in NO_EVALUATION)
    ],
)
def test_a_bad_setup_has_one_message_everywhere(name, case):
    """A few cases; others are in test_bad_arguments.py and the engine's test_engine_guards.py."""
    change, message = BAD_SETUPS[case]
    with compilations() as compiled, pytest.raises(ValueError, match=message):
        call(name, lambda setup: dataclasses.replace(setup, **change), ALGORITHM)
    assert [program for program in compiled if "segment" in program] == []


BAD_ALGORITHMS = {
    "not called": (fs.fedavg, {}, r"is <function fedavg.*; expected a FedAlgorithm: call fedavg"),
    "function": (
        ALGORITHM._replace(update=lambda state, mean: state),
        {},
        r"algorithm.update takes \(state, mean\); expected \(state, mean, round\)",
    ),
    "weights": (
        fs.fedvarp(0.1),
        {"weighting": lambda work: jnp.arange(4.0)},
        "weighting is .*; expected uniform_weights",
    ),
}


# A fork checks the state that it continues first.
@pytest.mark.parametrize("case", BAD_ALGORITHMS)
@pytest.mark.parametrize("name", [*OF_ONE, *(name for name in OF_MANY if name != "fork")])
def test_an_algorithm_that_does_not_fit_has_one_message_everywhere(name, case):
    algorithm, change, message = BAD_ALGORITHMS[case]
    with pytest.raises(ValueError, match=message):
        call(name, lambda setup: dataclasses.replace(setup, **change), algorithm)


@pytest.fixture
def counts(monkeypatch):
    """Calls of each check, in the door and wherever else it is imported."""
    seen = dict.fromkeys(DOOR, 0)

    def counted(name, check):
        def call(*arguments, **options):
            seen[name] += 1
            return check(*arguments, **options)

        return call

    for name in DOOR:
        monkeypatch.setattr(contract, name, counted(name, getattr(contract, name)))
    return seen


CALLS = {
    "run": (lambda: fs.run(ALGORITHM, ONE, KEY), 1),
    "simulate": (lambda: fs.simulate(ALGORITHM, ONE, KEY), 1),
    "simulate n": (lambda: fs.simulate(ALGORITHM, MANY, KEYS), 1),
    "compare": (lambda: fs.compare({"a": ALGORITHM, "b": fs.fedavg(0.2)}, MANY, KEYS), 1),
    "sweep": (lambda: fs.sweep(fs.fedavg, MANY, {"lr": [0.1, 0.2]}, KEYS), 1),
    "forecast": (lambda: fs.forecast(ALGORITHM, ONE, KEY, measure=False), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_check_runs_once_per_call(name, counts, monkeypatch):
    """Also while the call traces its programs; algorithms are checked one by one."""
    monkeypatch.setattr(programs, "_functions", type(programs._functions)())  # so that it traces
    run, number = CALLS[name]
    run()
    algorithms = counts.pop("check_algorithm")
    assert algorithms == (2 if name in ("compare", "sweep") else 1)
    assert counts == dict.fromkeys(DOOR[:-1], number)


def test_no_check_of_the_door_is_called_elsewhere():
    """The door alone imports them, but for the functions that it calls first and their modules."""
    root = pathlib.Path(fs.__file__).parent
    calls = [
        f"{path.relative_to(root)}: {name}"
        for path in sorted(root.rglob("*.py"))
        for name in DOOR
        if f" {name}(" in path.read_text().replace(f"def {name}(", "").replace(f">>> {name}(", "")
    ]
    assert set(calls) == {f"engine/contract.py: {name}" for name in DOOR}


def test_tracing_repeats_no_check(counts):
    """Programs call functions whose arguments were checked before."""
    jax.eval_shape(lambda: engine.first_state(ALGORITHM, ONE))
    assert set(counts.values()) == {0}


@pytest.mark.parametrize(
    "function", [fs.simulate, fs.compare, fs.sweep, fs.finished_runs, fs.forecast]
)
def test_a_call_has_at_most_seven_arguments(function):
    assert len(inspect.signature(function).parameters) <= 7


def test_there_are_at_most_twelve_settings():
    fields = [field.name for kind in (fs.Storage, fs.Options) for field in dataclasses.fields(kind)]
    assert len({"callbacks", *fields}) <= 12
    for kind in (fs.Storage, fs.Options):
        for field in dataclasses.fields(kind):
            assert f"        {field.name}: " in kind.__doc__.replace("\n    ", "\n        ")


def test_records_are_frozen():
    for record in (fs.Storage("folder"), fs.Options()):
        with pytest.raises(dataclasses.FrozenInstanceError):
            record.seeds = [1]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "simulate",
            {"memory": 1},
            r"options.memory is 1; expected None, the default: fs.simulate",
        ),
        ("compare", {"memory": 1}, r"options.memory is 1; expected None, the default: fs.compare"),
        ("sweep", {"eval_initial": True}, "options.eval_initial is True; expected False"),
        ("sweep", {"segment_seconds": 1.0}, "options.segment_seconds is 1.0; expected 30.0"),
        ("sweep", {"checkpoint_seconds": 0}, "storage.checkpoint_seconds is 0; expected 5.0"),
        ("sweep", {"divergence": "stop"}, "callbacks has Divergence, which answers divergences"),
        ("simulate", {"execution": {"a": None}}, "options.execution is .*; expected one strategy"),
        ("simulate", {"callbacks": ["print"]}, "callbacks has 'print'; expected functions of an"),
        (
            "compare",
            {"callbacks": [types.SimpleNamespace()]},
            "callbacks has namespace.*; expected",
        ),
    ],
)
def test_settings_that_a_call_has_no_use_for_are_refused(name, settings, message):
    calls = {
        "simulate": lambda **rest: fs.simulate(ALGORITHM, ONE, KEY, **rest),
        "compare": lambda **rest: fs.compare({"a": ALGORITHM}, MANY, KEYS, **rest),
        "sweep": lambda **rest: fs.sweep(fs.fedavg, MANY, {"lr": [0.1]}, KEYS, **rest),
    }
    with pytest.raises(ValueError, match=message):
        calls[name](**records(**settings))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"storage": 3}, "storage is 3; expected a folder, an fs.Storage or None"),
        ({"options": {"seeds": [1]}}, r"options is \{'seeds': \[1\]\}; expected fs.Options"),
    ],
)
def test_values_that_are_no_records(arguments, message):
    with pytest.raises(ValueError, match=message):
        fs.simulate(ALGORITHM, ONE, KEY, **arguments)
    with pytest.raises(ValueError, match=message):
        fs.compare({"a": ALGORITHM}, MANY, KEYS, **arguments)
    with pytest.raises(ValueError, match=message):
        fs.sweep(fs.fedavg, MANY, {"lr": [0.1]}, KEYS, **arguments)
