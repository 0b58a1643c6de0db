"""The engine's randomness: every draw belongs to (key, round, client, step) and to nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import (
    COUNT_ROUNDS,
    KEY,
    NUM_CLIENTS,
    SIZES,
    assert_close,
    execute,
    logistic_params,
    logistic_task,
    partial_timeline,
    recorded_batches,
)

import fedjax_sim as fs
from fedjax_sim.engine import client_stream
from fedjax_sim.engine.execution import strategies


@pytest.mark.slow
@pytest.mark.parametrize("rule", [fs.epochs(2, 2), fs.with_replacement(2, 4)])
def test_minibatches_do_not_depend_on_the_cohort(rule):
    """Alone, in another slot, among others, in chunks, on a mesh: the same examples, exactly."""
    steps = np.asarray(rule.num_steps(SIZES))
    everyone = fs.timelines.full(2, NUM_CLIENTS, steps)
    reference = recorded_batches(SIZES, rule, everyone, KEY, execution=strategies.vmapped())
    order = np.array([6, 1, 3, 0])
    some = dataclasses.replace(
        fs.timelines.full(2, 4, int(steps.max())),
        clients=jnp.broadcast_to(jnp.asarray(order, jnp.int32), (2, 4)),
    )
    mesh = jax.make_mesh((4,), ("clients",))
    for strategy in [strategies.vmapped(), strategies.chunked(3), strategies.sharded(mesh)]:
        drawn = recorded_batches(SIZES, rule, some, KEY, execution=strategy)
        np.testing.assert_array_equal(drawn, reference[:, order])
    # Each slot draws its own client's examples only, and other ones in every round.
    owners = np.repeat(np.arange(NUM_CLIENTS), SIZES)
    foreign = owners != np.arange(NUM_CLIENTS)[:, None]  # [M, N]
    assert not reference.sum(axis=(0, 2))[foreign].any()
    assert (reference[0] != reference[1]).any()


def test_every_visit_and_server_update_has_its_own_key():
    timeline = fs.timelines.full(4, NUM_CLIENTS, 1)
    probes = fs.Probes(
        client={"key": lambda visit: jax.random.key_data(visit.work.key)},
        server={"server_key": lambda update: jax.random.key_data(update.round.key)},
    )
    _, history = execute(COUNT_ROUNDS, timeline, probes=probes)
    keys = np.concatenate([np.reshape(x, (-1, 2)) for x in history.probes.values()])
    assert len(np.unique(keys, axis=0)) == 4 * NUM_CLIENTS + 4


def test_streams_of_minibatches_have_keys_that_no_round_has():
    """A client and a round of the same number do not share their draws."""
    numbers = jnp.arange(NUM_CLIENTS)
    rounds = jax.vmap(lambda t: jax.random.fold_in(KEY, t))(numbers)
    of_clients, of_rounds = map(jax.random.key_data, (client_stream(KEY, numbers), rounds))
    assert len(np.unique(np.concatenate([of_clients, of_rounds]), axis=0)) == 2 * NUM_CLIENTS


@pytest.mark.slow
def test_two_algorithms_with_one_key_see_the_same_minibatches():
    """Comparisons are paired."""
    probes = fs.Probes(client={"loss": lambda visit: visit.oracle.loss(logistic_params(), 1)})
    losses = [
        execute(algorithm, partial_timeline(), logistic_params(), logistic_task(), probes=probes)[
            1
        ].probes["loss"]
        for algorithm in (fs.fedsgd(0.1), fs.scaffold(0.2))
    ]
    assert_close(losses[0], losses[1], 1e-6)  # one evaluation of a sum of two terms
    assert len(np.unique(losses[0])) > 8  # not all the same; the one-example client repeats
