"""Conformance of all wrappers, and ``skip_nonfinite``: excluded uploads do not count."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim.algorithms.staleness import expected_steps
from fedjax_sim.compression import compressed, identity
from fedjax_sim.local.transforms import transform_oracle, unchanged
from fedjax_sim.tree import leaves
from fedjax_sim.wrappers import average_rounds, skip_nonfinite
from fedjax_sim.wrappers.fine_tuning import fine_tuned
from fedjax_sim.wrappers.freeze import freeze
from fedjax_sim.wrappers.private import private
from fedjax_sim.wrappers.running_statistics import running_statistics

NUM_CLIENTS, NUM_ROUNDS = 5, 4
CENTRES = np.arange(NUM_CLIENTS, dtype=np.float64)
POISONED = 3  # its gradients are NaN from the second step on


def oracle(centres, poison, client, key, max_steps):
    del key, max_steps

    def grad(x, k):
        bad = (client == POISONED) & (k >= 1)
        return jnp.where(bad, poison, x - centres[client])

    return fs.Oracle(grad, lambda x, k: x, lambda x: grad(x, 0))


def task(poison, num_steps=3):
    steps = np.full(NUM_CLIENTS, num_steps, np.int32)
    carried = Partial(oracle, jnp.asarray(CENTRES), jnp.asarray(poison, float))
    return fs.Task(carried, np.arange(1, NUM_CLIENTS + 1), steps)


def final(algorithm, poison, mask=None, weighting=fs.uniform_weights, rounds=NUM_ROUNDS):
    timeline = fs.timelines.full(rounds, NUM_CLIENTS, 3)
    if mask is not None:
        timeline = dataclasses.replace(timeline, mask=timeline.mask & mask)

    @compiled
    def go(task, timeline):
        key = jax.random.key(0)
        start = jnp.array(10.0)
        return fs.run(algorithm, fs.Setup(task, timeline, start, weighting=weighting), key)[0]

    return go(task(poison), timeline)


pytestmark = pytest.mark.usefixtures("x64", "allow_nans")
WRAPPERS = {
    "skip_nonfinite": skip_nonfinite,
    "average_rounds": average_rounds,
    "ema_rounds": fs.ema_rounds,
    "fixed_order": fs.fixed_order,
    "compressed": lambda algorithm: compressed(algorithm, identity(), identity()),
    "transform_oracle": lambda algorithm: transform_oracle(algorithm, unchanged),
    "privatize": lambda algorithm: fs.privacy.privatize(
        algorithm, np.inf, 0.0, expected_uploads=NUM_CLIENTS
    ),
    "randomize_uploads": lambda algorithm: fs.privacy.randomize_uploads(
        algorithm, fs.privacy.local_gaussian(1e6, 0.0)
    ),
}
# The reasons and the checks that a wrapper adds to those of the algorithm.
ADDED = {
    "skip_nonfinite": {"exact_mean", "bits"},
    "fixed_order": {"aggregation"},
    "compressed": {"bits"},
    "privatize": {"uniform_weights", "check", "last", "bits"},
    "randomize_uploads": {"uniform_weights", "check", "last"},
}
every_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


@every_wrapper
def test_wrappers_keep_what_they_do_not_replace(wrap):
    def check(task, timeline):
        raise ValueError("refused by the algorithm")

    plain = fs.scaffold(0.1).requiring(synchronous="a reason", check=check)
    wrapped = wrap(plain)
    assert wrapped.requires.synchronous == "a reason"
    with pytest.raises(ValueError, match="refused by the algorithm"):
        wrapped.requires.check(None, None)
    assert wrapped.init_client is plain.init_client
    pairs = ((plain, wrapped), (plain.requires, wrapped.requires))
    replaced = {
        name
        for old, new in pairs
        for name in old._fields
        if getattr(new, name) != getattr(old, name)
    } - {"requires", "spec"}
    assert replaced
    (name,) = (name for name in WRAPPERS if WRAPPERS[name] is wrap)
    assert replaced <= {"init", "local", "update", "broadcast"} | ADDED.get(name, set())


@every_wrapper
def test_wrappers_refuse_what_the_algorithm_refuses(wrap):
    """Before anything is compiled."""
    timeline = fs.timelines.full(NUM_ROUNDS, NUM_CLIENTS, 3)
    stale = dataclasses.replace(timeline, max_staleness=2)
    with pytest.raises(ValueError, match="staleness of up to 2; expected none: FedAc couples"):
        fs.init(wrap(fs.fedac(0.1, 0.1, 3)), fs.Setup(task(0.5), stale, jnp.array(0.0)))
    short = fs.favano(0.1, expected_steps(jnp.ones(NUM_CLIENTS - 1)))
    # A private wrapper refuses uploads that are models.
    with pytest.raises(
        ValueError,
        match=r"expected_steps.mean has the shape \(4,\); expected \(5,|algorithm uploads models",
    ):
        fs.init(wrap(short), fs.Setup(task(0.5), timeline, jnp.array(0.0)))


ATTACKERS = np.arange(NUM_CLIENTS) == 0
OTHERS = {
    "freeze": lambda algorithm: freeze(algorithm, leaves.last_layer),
    "private": lambda algorithm: private(algorithm, leaves.last_layer, 0.1),
    "running_statistics": lambda algorithm: running_statistics(algorithm, leaves.last_layer),
    "fine_tuned": lambda algorithm: fine_tuned(algorithm, 0.1, steps=1),
    "ef14": lambda algorithm: fs.ef14(algorithm, identity()),
    "ef21": lambda algorithm: fs.ef21(algorithm, identity()),
    "ef21_p": lambda algorithm: fs.ef21_p(algorithm, identity()),
    "diana": lambda algorithm: fs.diana(algorithm, identity(), 0.5),
    "marina": lambda algorithm: fs.marina(algorithm, identity(), 0.5),
    "pp_marina": lambda algorithm: fs.pp_marina(algorithm, identity()),
    "per_step_uploads": lambda algorithm: fs.per_step_uploads(algorithm, 0.1),
    "worker_momentum": fs.robust.worker_momentum,
    "aggregate": lambda algorithm: fs.robust.aggregate(algorithm, fs.robust.median()),
    "stacked": fs.robust.stacked,
    "alie": lambda algorithm: fs.robust.attacks.alie(algorithm, ATTACKERS),
    "mimic": lambda algorithm: fs.robust.attacks.mimic(algorithm, ATTACKERS),
    "sign_flip": lambda algorithm: fs.robust.attacks.sign_flip(algorithm, ATTACKERS),
    "corrupted": lambda algorithm: fs.robust.attacks.corrupted(algorithm, 0.1),
}


@pytest.mark.parametrize("wrap", [*WRAPPERS.values(), *OTHERS.values()], ids=[*WRAPPERS, *OTHERS])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (fs.fedavg, "algorithm is <function fedavg .*; expected a FedAlgorithm: call fedavg"),
        ("fedavg", "algorithm is 'fedavg'; expected a FedAlgorithm: for example fs.fedavg"),
    ],
    ids=["factory", "name"],
)
def test_wrappers_refuse_what_is_no_algorithm(wrap, value, message):
    with pytest.raises(ValueError, match=message):
        wrap(value)


@pytest.mark.slow
@every_wrapper
def test_wrappers_change_nothing_in_a_well_behaved_run(wrap):
    """Server and clients of a compiled run of SCAFFOLD, which has client states."""
    plain, wrapped = final(ALGORITHMS["scaffold"], 0.5), final(wrap(ALGORITHMS["scaffold"]), 0.5)
    assert_close(getattr(wrapped.server, "inner", wrapped.server), plain.server, 1e-12)
    assert_close(wrapped.clients, plain.clients, 1e-12)


ALGORITHMS = {
    "fedavg": fs.fedavg(0.1),
    "scaffold": fs.scaffold(0.1),
    "feddyn": fs.feddyn(0.1, 0.2),
    "feddualavg": fs.feddualavg(0.1, fs.prox.composite(fs.prox.L1(0.1))),
}


@pytest.mark.slow
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_poisoned_client_is_as_if_it_were_absent(name, poison):
    skipping = final(skip_nonfinite(ALGORITHMS[name]), poison)
    absent = final(ALGORITHMS[name], 0.0, mask=np.arange(NUM_CLIENTS) != POISONED)
    # The mean over four of five is taken by another division.
    assert_close(skipping.server.inner, absent.server, 1e-12)
    assert_close(skipping.clients, absent.clients, 1e-12)
    assert_close(skipping.server.left_out, NUM_ROUNDS / NUM_CLIENTS, 1e-12)


def test_without_the_wrapper_the_model_is_lost():
    assert np.isnan(final(fs.fedavg(0.1), np.nan).server.params)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_finite_runs_are_unchanged(name):
    skipping, plain = final(skip_nonfinite(ALGORITHMS[name]), 0.5), final(ALGORITHMS[name], 0.5)
    assert_close(skipping.server.inner, plain.server, 1e-12)
    assert float(skipping.server.left_out) == 0.0


def test_weights_are_those_that_were_left_out():
    """Client i has i + 1 of 15 examples."""
    skipping = final(skip_nonfinite(fs.fedavg(0.1)), np.nan, weighting=fs.weight_by_examples)
    assert_close(skipping.server.left_out, NUM_ROUNDS * (POISONED + 1) / 15, 1e-12)


def test_a_round_of_nothing_but_poison_leaves_the_server_as_it_is():
    """Adam counts its steps, so that even a gradient of 0 would be seen."""
    only, adam = np.arange(NUM_CLIENTS) == POISONED, fs.fedadam(0.1, 0.1)
    state = final(skip_nonfinite(adam), np.nan, mask=only)
    start = skip_nonfinite(adam).init(jnp.array(10.0))
    assert_identical(state.server.inner, start.inner)
    assert_close(state.server.left_out, float(NUM_ROUNDS), 0.0)


def test_such_a_round_is_noticed_where_sums_are_rounded():
    """In chunks the sums of the weights and of the weighted uploads have other orders."""
    many = fs.Task(Partial(oracle, jnp.ones(64), np.inf), np.full(64, 9), np.full(64, 1))
    algorithm = skip_nonfinite(fs.robust.attacks.corrupted(fs.fedadam(0.1, 0.1), 1.0))
    chunks = fs.execution.chunked(7)

    @compiled
    @jax.vmap
    def servers(weights):
        setup = fs.Setup(
            many, fs.timelines.full(1, 64, 1), jnp.array(10.0),
            weighting=lambda work: weights[work.client],
        )  # fmt: skip
        return fs.run(algorithm, setup, jax.random.key(0), execution=chunks)[0].server

    found = servers(jnp.asarray(np.random.default_rng(1).lognormal(0, 3, (12, 64))))
    start = algorithm.init(jnp.array(10.0)).inner
    assert_identical(found.inner, jax.tree.map(lambda x: jnp.broadcast_to(x, (12,)), start))
    assert_close(found.left_out, np.ones(12), 1e-12)


@pytest.mark.slow
def test_average_rounds_is_the_mean_of_the_servers_models():
    """FedMoSWA has client states: a client that received the average would train another model."""
    plain = fs.fedmoswa(0.1)
    models = [final(plain, 0.5, rounds=rounds).server.params for rounds in range(1, NUM_ROUNDS + 1)]
    averaged = final(average_rounds(plain), 0.5)
    assert_close(averaged.server.params, np.mean(models), 1e-12)
    assert_close(averaged.server.inner.params, models[-1], 1e-12)
    assert float(averaged.server.num_averaged) == NUM_ROUNDS


@pytest.mark.parametrize(
    "wrap",
    [
        lambda lr: private(fs.fedavg(0.1), leaves.last_layer, lr),
        lambda lr: fine_tuned(fs.fedavg(0.1), lr, steps=1),
        lambda lr: fs.per_step_uploads(fs.fedavg(0.1), lr),
    ],
    ids=["private", "fine_tuned", "per_step_uploads"],
)
def test_wrappers_refuse_a_negative_rate(wrap):
    with pytest.raises(ValueError, match=r"lr is -0\.5; expected at least 0"):
        wrap(-0.5)
