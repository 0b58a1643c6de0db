"""``--eval-examples``, ``--per-client`` and ``--held-out-clients``: the examples of each metric."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_sim import models, objectives
from fedjax_sim.datasets import load
from fedjax_sim.studies.setups import config_checks
from fedjax_sim.studies.setups.clients import clients
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig
from fedjax_sim.studies.setups.evaluation import evaluation

CONFIG = RunConfig(held_out_clients=0.1, num_clients=20, validation=0.2)


@pytest.fixture(scope="module")
def digits():
    return load("digits", None)


def task_of(data):
    raise AssertionError("no client is held out for personal models")


def rows(examples) -> set[bytes]:
    return {x.tobytes() for x in np.asarray(examples["x"])}


@pytest.mark.parametrize("validation_of", ["pool", "clients"])
def test_held_out_clients_do_not_train(digits, validation_of):
    config = dataclasses.replace(CONFIG, validation_of=validation_of)
    divided = clients(config, digits)
    assert divided.data.num_clients == 18
    assert divided.held_out is not None
    assert divided.held_out.num_clients == 2
    trained, held_out = rows(divided.data.examples), rows(divided.held_out.examples)
    assert held_out
    assert not held_out & (rows(divided.train) | rows(divided.valid))
    assert trained <= rows(divided.train)  # the partition leaves a remainder
    assert rows(divided.train) | held_out | rows(divided.valid) == rows(digits.train)
    if validation_of == "clients":
        assert divided.valid_of_clients.num_clients == 18
        assert rows(divided.valid_of_clients.examples) == rows(divided.valid)


def test_metrics_and_sizes(digits):
    config = dataclasses.replace(CONFIG, per_client=4, eval_examples=100)
    model = models.softmax_regression((8, 8, 1), 10)
    metrics = objectives.classification_metrics(model.apply)
    evaluate = evaluation(config, metrics, clients(config, digits), task_of)
    parts = dict(zip(evaluate.func.names, evaluate.args[0], strict=True))
    assert list(parts) == ["test", "train", "valid", "held_out", "client"]
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert parts["train"].args[0]["y"].shape == (100,)
    assert set(jax.eval_shape(parts["train"], params)) == {"accuracy", "loss", "examples"}
    assert parts["client"].func.every == 4
    whole = dataclasses.replace(config, eval_examples="all")
    divided = clients(whole, digits)
    train = evaluation(whole, metrics, divided, task_of).args[0][1]
    assert len(train.args[0]["y"]) == len(divided.train["y"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_examples": 0}, "eval_examples is 0; expected an integer of at least 1"),
        ({"per_client": 3}, "per_client is 3; expected a multiple of --eval-every, 2"),
        ({"per_client": 200, "rounds": 4}, "per_client is 200; expected at most --rounds, 4"),
        ({"per_client": 4, "num_strata": 2}, "per_client is 4; expected none with --num-strata"),
        ({"test_fraction": 1.0}, r"test_fraction is 1.0; expected a number in \(0, 1\)"),
        ({"feature_shift": "noise", "num_strata": 2}, "feature_shift is noise; expected none with"),
        ({"noise": -1.0}, "noise is -1.0; expected a number of at least 0"),
        (
            {"personal": 4},
            "personal is 4; expected clients' own examples with it: --test-of clients",
        ),
        (
            {"personal": 3, "test_of": "clients"},
            "personal is 3; expected a multiple of --eval-every, 2",
        ),
        ({"first_visit": True}, "first_visit is True; expected --personal and --held-out-clients"),
        ({"tuning_steps": 3}, "tuning_steps is 3; expected --personal with it"),
        ({"hyper": ("fedavg.tuning_steps=3",)}, "tuning_steps is fedavg.tuning_steps=3; expected"),
        ({"tuning_lr": 0.0}, "tuning_lr is 0.0; expected a positive number"),
        ({"held_out_clients": 1.0}, r"held_out_clients is 1.0; expected a number in \[0, 1\)"),
    ],
)
def test_bad_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config_checks.check(RunConfig(**options))


def test_a_grid_of_steps_of_fine_tuning_needs_personal_models():
    with pytest.raises(ValueError, match="tuning_steps is tuning_steps=1,5; expected --personal"):
        config_checks.check(SweepConfig(grid=("tuning_steps=1,5",)))


def test_too_few_clients_to_hold_out(digits):
    with pytest.raises(ValueError, match=r"held_out_clients is 0.01, which is 0 of 20 clients"):
        clients(dataclasses.replace(CONFIG, held_out_clients=0.01), digits)
