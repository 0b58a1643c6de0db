"""Every key is used once: it gives numbers in one place, or other keys.

Two draws from one key are equal or dependent, which no single result shows.  The keys here are of a
generator with JAX's draws that records each use.
"""

import collections

import jax
import jax.numpy as jnp
import pytest
from jax.extend.random import define_prng_impl
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
)

import fedjax_sim as fs
from fedjax_sim import compression, privacy, robust, selection

USES = collections.Counter()  # of (two words of a key, "draw" or "derive")


def _noted(key, use):
    def note(words):
        USES[(*map(int, words), use)] += 1

    jax.debug.callback(note, key)
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def _seed(seed):
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


RECORDING = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=lambda key, shape: jax.random.key_data(jax.random.split(_noted(key, "derive"), shape)),
    random_bits=lambda key, width, shape: jax.random.bits(
        _noted(key, "draw"), shape, f"uint{width}"
    ),
    fold_in=lambda key, data: jax.random.key_data(jax.random.fold_in(_noted(key, "derive"), data)),
    name="recording",
    tag="rec",
)

BATCHES = fs.epochs(1, 2)
ROUNDS, STEPS = 3, BATCHES.num_steps(SIZES)
AVG = fs.fedavg(0.1)
ALGORITHMS = {
    "fedavg": AVG,
    "scaffold": fs.compressed(fs.scaffold(0.1), compression.qsgd(4), compression.natural()),
    "random_k": fs.ef14(AVG, compression.random_k(2)),
    "lattice": fs.compressed(AVG, compression.lattice(4, 0.1, stochastic=True)),
    "privatize": privacy.privatize(AVG, 1.0, 1.0, expected_uploads=NUM_CLIENTS),
    "adaptive_clip": privacy.privatize(
        AVG, privacy.adaptive_clip(), 0.5, expected_uploads=NUM_CLIENTS
    ),
    "priv_unit": privacy.randomize_uploads(AVG, privacy.priv_unit(1.0, 4.0)),
    "bucketing": robust.aggregate(robust.worker_momentum(AVG), robust.bucketing(robust.median())),
    "multinomial": selection.select(AVG, selection.multinomial(3)),
}


def losses(params, examples, key):
    """The logistic losses with a draw per minibatch, as a model with dropout has."""
    kept = jax.random.bernoulli(key, 0.5, examples["x"].shape)
    return logistic_losses(params, examples | {"x": jnp.where(kept, examples["x"], 0)}, key)


def twice(params, examples, key):
    """Losses of which a second draw has the key of the first."""
    scale = jax.random.uniform(key, ())
    return losses(params, examples | {"x": scale * examples["x"]}, key)


def uses(algorithm, objective=losses, evaluator=None):
    """Numbers of draws and of derivations of each key of a compiled run."""
    everybody = fs.timelines.full(ROUNDS, NUM_CLIENTS, STEPS)
    setup = fs.Setup(
        fs.empirical_task(objective, logistic_data(), BATCHES),
        everybody,
        logistic_params(),
        evaluator,
    )
    key = jax.random.key(3, impl=RECORDING)
    USES.clear()
    jax.block_until_ready(compiled(lambda key: fs.run(algorithm, setup, key))(key))
    jax.effects_barrier()
    keys = collections.defaultdict(dict)
    for (a, b, use), count in USES.items():
        keys[a, b][use] = count
    return keys


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("fedavg", "scaffold") else pytest.param(name, marks=pytest.mark.slow)
        for name in ALGORITHMS
    ],
)
def test_every_key_draws_once_or_derives_others(name):
    keys = uses(ALGORITHMS[name])
    assert [use for use in keys.values() if use.get("draw", 0) > 1] == []
    assert [use for use in keys.values() if len(use) > 1] == []


def test_a_server_that_draws_for_an_evaluation_has_a_key_of_its_own():
    """Clients that are tuned before they are evaluated start from a noisy broadcast."""

    def broadcast(state, round):
        return jax.tree.map(lambda x: x + jax.random.normal(round.key, x.shape), state.params)

    tuned = fs.fine_tuned(AVG._replace(broadcast=broadcast), 0.1, steps=1)
    evaluator = fs.evaluation.personal_evaluator(
        lambda w, examples: {"output": examples["x"] @ w["w"]}, logistic_data()
    )
    keys = uses(tuned, evaluator=evaluator)
    assert [use for use in keys.values() if len(use) > 1] == []


def test_a_second_draw_is_seen():
    draws = [use["draw"] for use in uses(AVG, twice).values() if "draw" in use]
    # Of every client a permutation and, in each of the longest visit's steps, the losses.
    assert sorted(draws) == sorted(ROUNDS * NUM_CLIENTS * ([1] + max(STEPS) * [2]))
