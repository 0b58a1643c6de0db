"""Invalid sweeps are refused before anything is compiled, run or written."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from call_records import sweep_on
from sweep_problems import KEYS, ONE_DEVICE, changed, compilations, quadratic_trial, sweep_of

import fedjax_sim as fs


def bad_schedules():
    """Two schedules for three seeds."""
    timeline = quadratic_trial().setup.timeline
    return jax.tree.map(lambda x: np.stack([np.asarray(x)] * 2), timeline)


CALLS = {  # what differs from a call that is right: arguments, or a change of the setup
    "keys is one key": ({"keys": KEYS[0]}, r"keys has shape \(\); expected \[n\]"),
    "no keys": ({"keys": KEYS[:0]}, r"keys has shape \(0,\)"),
    "too few names": ({"seeds": ["a", "b"]}, r"options.seeds is \['a', 'b'\]; expected 3 distinct"),
    "equal names": ({"seeds": ["a", "b", "a"]}, "expected 3 distinct names, one per key"),
    "no memory": ({"memory": 0}, r"options.memory is 0; expected 1 \.\. 2\^63 - 1 bytes"),
    "no configurations": ({"grid": []}, "expected at least one configuration"),
    "no values": ({"grid": {"lr": []}}, r"grid has \[\] for 'lr'"),
    "twice": ({"grid": [{"lr": 0.1}, {"lr": 0.1}]}, "twice; expected distinct configurations"),
    "a column": (
        {"grid": {"lr": [0.1], "round": [1.0]}},
        "grid has 'round'; expected another name, since the frame of a sweep has a column 'round'",
    ),
    "no number": ({"grid": {"lr": ["fast"]}}, "grid has 'fast' for 'lr'; expected a finite number"),
    "unknown": ({"grid": {"lr": [0.1], "mu": [1.0]}}, "grid gives lr, mu to fedavg: .*'mu'"),
    "misspelt": ({"grid": {"lrr": [0.1]}}, "gives lrr to fedavg: .*'lrr'; did you mean lr"),
    "a later value": ({"grid": {"lr": [0.1, 0.2, -0.3]}}, r"lr is -0\.3; expected"),
    # The first group could run.
    "unknown later": (
        {"grid": [{"lr": 0.1}, {"mu": 1.0}]},
        "grid gives mu to fedavg: got an unexpected",
    ),
    "missing": ({"grid": {}}, "lr is None; expected a learning rate"),
    "unknown static": (
        {"grid": {"lr": [0.1], "size": ["three"]}},
        "grid gives size, lr to fedavg: .*'size'",
    ),
    "eval_every": ({"change": {"eval_every": 0}}, "eval_every is 0; expected at least 1"),
    "one model": ({"change": {"params": np.zeros(2, np.float32)}}, "axis of 3, .*jax.vmap"),
    "no model": ({"change": {"params": ()}}, "params has no leaves"),
    "schedules": ({"change": {"timeline": bad_schedules()}}, "timeline has 2 replicas; expected 3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_bad_arguments_are_refused(tmp_path, call):
    differing, message = CALLS[call]
    trial = changed(quadratic_trial(), **differing.get("change", {}))
    arguments = {"grid": {"lr": [0.1, 0.2]}, "keys": KEYS, "devices": ONE_DEVICE} | differing
    arguments.pop("change", None)
    with compilations() as names, pytest.raises(ValueError, match=message):
        sweep_of(trial, folder=tmp_path / "sweep", **arguments)
    assert names == []
    assert not (tmp_path / "sweep").exists()


GOOD = quadratic_trial().setup


def needs_cohort_size(cohort_size):
    return GOOD


def fails_for_the_second(rounds):
    return dataclasses.replace(GOOD, eval_every=2 - rounds)


@pytest.mark.parametrize(
    ("setup", "grid", "message"),
    [
        (needs_cohort_size, {"lr": [0.1]}, "grid gives nothing to needs_cohort_size: missing"),
        (needs_cohort_size, {"lr": [0.1], "mu": ["one"]}, "grid gives mu, lr to fedavg: .*mu"),
        (
            functools.partial(needs_cohort_size, cohort_size=3),
            {"mu": [1]},
            "grid gives mu to fedavg",
        ),
        (fails_for_the_second, {"lr": [0.1], "rounds": [1, 2]}, "eval_every is 0"),
    ],
)
def test_setups_that_are_functions(setup, grid, message):
    with compilations() as names, pytest.raises(ValueError, match=message):
        sweep_on(ONE_DEVICE, fs.fedavg, setup, grid, KEYS)
    assert names == []


@pytest.mark.parametrize("factory", [fs.fedavg(0.1), "fedavg", None])
def test_a_factory_is_a_function(factory):
    message = r"factory is .*; expected a function of the hyper-parameters .*: fs\.fedavg, not"
    with pytest.raises(ValueError, match=message):
        sweep_on(ONE_DEVICE, factory, GOOD, {"lr": [0.1]}, KEYS)


@pytest.mark.parametrize(
    ("factory", "cause"),
    [
        (lambda lr: fs.fedavg({}["lr"]), "KeyError: 'lr'"),
        (lambda lr: fs.fedavg(float(lr)), "ConcretizationTypeError: "),
        (lambda lr: fs.fedavg(lr if lr > 0.1 else 0.1), "TracerBoolConversionError: "),
    ],
)
def test_a_factory_that_fails_is_named(factory, cause):
    with pytest.raises(ValueError, match=rf"factory fails for lr \({cause}.*; expected a function"):
        sweep_on(ONE_DEVICE, factory, GOOD, {"lr": [0.1]}, KEYS)


@pytest.mark.parametrize(
    ("factory", "value"),
    [
        (fs.fedavg, "a"),  # its rate is a number by its annotation
        (fs.fedavg, True),
        (lambda lr: fs.fedavg(lr), float("nan")),
    ],
)
def test_a_value_in_the_place_of_a_number_is_refused(factory, value):
    message = f"grid has '?{value}'? for 'lr'; expected a finite number, or an annotation"
    with pytest.raises(ValueError, match=message):
        sweep_on(ONE_DEVICE, factory, GOOD, {"lr": [value]}, KEYS)


@pytest.mark.parametrize("setup", [None, 3])
def test_what_is_no_setup_is_refused(setup):
    with pytest.raises(ValueError, match=r"setup is a \w+; expected a fedjax_sim.Setup"):
        fs.sweep(fs.fedavg, setup, {"lr": [0.1]}, KEYS)
