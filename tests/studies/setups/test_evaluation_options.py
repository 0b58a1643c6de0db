"""``--eval-examples``, ``--per-client`` and ``--held-out-clients``: the examples of each metric."""

import jax
import numpy as np
import pytest

from fedjax_sim import models, objectives, timelines
from fedjax_sim.datasets import load
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.evaluation import evaluation
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import clients_of, prepare
from fedjax_sim.studies.setups.study import Study

HELD_OUT = {"held_out_clients": 0.1, "num_clients": 20, "validation": 0.2}


def clients(dataset, **values):
    return clients_of(Study(options(**HELD_OUT | values)), dataset)


@pytest.fixture(scope="module")
def digits():
    return load("digits", None)


def task_of(data):
    raise AssertionError("no client is held out for personal models")


def rows(examples) -> set[bytes]:
    return {x.tobytes() for x in np.asarray(examples["x"])}


@pytest.mark.parametrize("validation_of", ["pool", "clients"])
def test_held_out_clients_do_not_train(digits, validation_of):
    divided = clients(digits, validation_of=validation_of)
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
    divided = clients(digits)
    model = models.softmax_regression((8, 8, 1), 10)
    metrics = objectives.classification_metrics(model.apply)

    def evaluate_of(**values):
        run = options(**values)
        return evaluation(run.evaluation, run.attack, metrics, model, divided, task_of)

    evaluate = evaluate_of(per_client=4, eval_examples=100)
    parts = dict(zip(evaluate.func.names, evaluate.args[0], strict=True))
    assert list(parts) == ["test", "train", "valid", "held_out", "client"]
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert parts["train"].args[0]["y"].shape == (100,)
    assert set(jax.eval_shape(parts["train"], params)) == {"accuracy", "loss", "examples"}
    assert parts["client"].func.every == 4
    train = evaluate_of(eval_examples="all").args[0][1]
    assert len(train.args[0]["y"]) == len(divided.train["y"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_client": 3}, "per_client is 3; expected a multiple of --eval-every, 2"),
        ({"per_client": 200, "rounds": 4}, "per_client is 200; expected at most --rounds, 4"),
        ({"per_client": 4, "num_strata": 2}, "per_client is 4; expected none with --num-strata"),
        (
            {"personal": 4, "test_of": "clients", "examples_memory": 1.0},
            "personal is 4; expected none with --examples-memory",
        ),
        ({"shift": "noise", "num_strata": 2}, "shift is 'noise'; expected none with --num-strata"),
        (
            {"personal": 4},
            "personal is 4; expected clients' own examples with it: --test-of clients",
        ),
        (
            {"personal": 4, "validation": 0.1, "validation_of": "pool"},
            "personal is 4; expected clients' own examples with it: --test-of clients",
        ),
        (
            {"personal": 3, "test_of": "clients"},
            "personal is 3; expected a multiple of --eval-every, 2",
        ),
        ({"first_visit": True}, "first_visit is True; expected --personal and --held-out-clients"),
        (
            {"first_visit": True, "personal": 2, "test_of": "clients"},
            "first_visit is True; expected --personal and --held-out-clients",
        ),
        ({"tuning_steps": 3}, "tuning_steps is 3; expected --personal with it"),
        ({"hyper": {"fedavg": {"tuning_steps": 3}}}, "tuning_steps is 3; expected --personal with"),
        ({"states": "host"}, "states is host; expected --examples-memory with it"),
        (
            {"examples_memory": 1.0, "num_strata": 2},
            "examples_memory is 1.0; expected none with --num-strata",
        ),
        ({"sampling": "stratified"}, "num_strata is None; expected a number, which sampling:strat"),
        (
            {"partition_per_seed": True, "num_strata": 2},
            "num_strata is 2; expected none with --part",
        ),
        (
            {"partition_per_seed": True, "time": "clock", "local_steps": 2},
            "time is 'clock'; expected rounds with --partition-per-seed",
        ),
        (
            {"seed": 2**32 - 2, "seeds": 3},
            "seed is 4294967294; expected an integer of at most 4294",
        ),
        ({"algorithms": ("favano",)}, "time is 'rounds'; expected time:clock for favano"),
        ({"time": "clock"}, "local_steps is None; expected a number with time:clock"),
        (
            {"time": "clock", "local_steps": 2, "horizon": 5.0},
            "horizon is 5.0; expected at least --interval, 7.0",
        ),
        (
            {"time": "clock", "local_steps": 2, "sampling": "full"},
            "sampling is 'full'; expected uniform with time:clock",
        ),
        (
            {"time": "clock", "local_steps": 2, "dropout": 0.5},
            "dropout is 0.5; expected 0.0 with time:clock",
        ),
        (
            {"time": "clock", "local_steps": 2, "num_strata": 2},
            "num_strata is 2; expected none with time:clock",
        ),
    ],
)
def test_options_that_do_not_suit_each_other(values, message):
    """Before data are loaded; those of single options are in test_fields.py."""
    with pytest.raises(ValueError, match=message):
        check_study(Study(options(**values)))


def test_too_few_clients_to_hold_out(digits):
    with pytest.raises(ValueError, match=r"held_out_clients is 0.01, which is 0 of 20 clients"):
        clients(digits, held_out_clients=0.01)


def test_periods_are_compared_with_the_rounds_of_an_own_timeline(digits):
    """``--rounds`` is without effect beside it."""

    def prepared(rounds):
        few = options(num_clients=4, seeds=1, model="softmax_regression", rounds=2, per_client=6)
        study = Study(few, timeline=timelines.full(rounds, 4, 5), dataset=digits)
        check_study(study)
        return prepare(study, digits)

    assert prepared(6).periods == {"per_client": 6}
    with pytest.raises(ValueError, match="per_client is 6; expected at most 5, the rounds"):
        prepared(5)
