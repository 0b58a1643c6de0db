"""The FedAvg family against its NumPy derivation: ragged clients, partial rounds, dropout."""

import derivations
import jax
import numpy as np
import pytest
from catalogue import ALGORITHMS, exact_task, hyper, program
from small_problems import (
    SIZES,
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    partial_timeline,
    recorded_rounds,
)

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over four rounds, round-off stays some digits below this.
TOLERANCE = 1e-12

EPOCHS = fs.epochs(2, 2)
FULL_BATCH = fs.full_batch(10)


def gradient():
    examples = logistic_data().examples
    return derivations.logistic_gradient(examples["x"], examples["y"])


def start():
    return flat(logistic_params())


def flat(params):
    return np.append(params["w"], params["b"])


FAMILY = ["fedsgd", "fedavg", "fedavg_schedule", "fedprox"]
FAMILY += ["fedavgm", "fedadagrad", "fedadam", "fedyogi"]


def derived(name, rounds):
    """The expected model after the given rounds."""
    h = ALGORITHMS[name][1]

    def fedavg(lr=lambda t: h["lr"], **options):
        return derivations.fedavg(gradient(), rounds, start(), lr, **options)

    def served(server):
        return lambda: fedavg(server=server(**{k: v for k, v in h.items() if k != "lr"}))

    return {
        "fedsgd": lambda: derivations.fedsgd(gradient(), rounds, start(), h["lr"]),
        "fedavg": fedavg,
        "fedavg_schedule": lambda: fedavg(lambda t: h["lr"] / (1 + h["decay"] * t)),
        "fedprox": lambda: fedavg(mu=h["mu"]),
        "fedavgm": served(derivations.momentum),
        "fedadagrad": served(derivations.adagrad),
        "fedadam": served(derivations.adam),
        "fedyogi": served(derivations.yogi),
    }[name]()


@pytest.mark.parametrize("name", FAMILY)
def test_derivation_on_full_batches(name):
    timeline, key = partial_timeline(), jax.random.key(2)
    rounds = recorded_rounds(SIZES, FULL_BATCH, timeline, key)
    state = program(name)(hyper(name), exact_task(), timeline, key)
    assert_close(flat(state.server.params), derived(name, rounds), TOLERANCE)


# The methods that differ in what clients do; servers see only the sum of it.
@pytest.mark.parametrize("name", ["fedsgd", "fedavg_schedule", "fedprox", "fedadam"])
def test_derivation_on_minibatches(name):
    timeline, key = partial_timeline(), jax.random.key(2)
    rounds = recorded_rounds(SIZES, EPOCHS, timeline, key)
    state = program(name)(hyper(name), logistic_task(), timeline, key)
    assert_close(flat(state.server.params), derived(name, rounds), TOLERANCE)


def test_derivation_weighted_by_examples():
    timeline, key = partial_timeline(), jax.random.key(2)
    rounds = recorded_rounds(SIZES, EPOCHS, timeline, key)

    @compiled
    def final(task, timeline, key):
        state, _ = fs.run(
            fs.fedavg(0.2),
            fs.Setup(task, timeline, logistic_params(), weighting=fs.weight_by_examples),
            key,
        )
        return state.server.params

    expected = derivations.fedavg(gradient(), rounds, start(), lambda t: 0.2, sizes=SIZES)
    assert_close(flat(final(logistic_task(), timeline, key)), expected, TOLERANCE)


def test_one_client_is_plain_sgd():
    """M = 1: no averaging takes place, rounds only group the steps."""
    data = fs.from_clients([logistic_data().client(5)])
    task = fs.empirical_task(logistic_losses, data, EPOCHS)
    timeline, key = fs.timelines.full(3, 1, task.num_steps), jax.random.key(4)

    @compiled
    def final(task, timeline, key):
        return fs.run(fs.fedavg(0.2), fs.Setup(task, timeline, logistic_params()), key)[
            0
        ].server.params

    x, examples = start(), data.examples
    gradient = derivations.logistic_gradient(examples["x"], examples["y"])
    for [(_, batches)] in recorded_rounds(SIZES[5:6], EPOCHS, timeline, key):
        for weights in batches:
            x = x - 0.2 * gradient(x, weights)
    assert_close(flat(final(task, timeline, key)), x, TOLERANCE)
