"""Private runs with correlated noise: exact sums, resuming, empty rounds, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import privacy

ROUNDS, DIM = 8, 40


def setup(timeline):
    """Clients that send nothing, so that the model is the sum of the noise."""

    def oracle(client, key, max_steps):
        return fs.Oracle(
            lambda x, step=0: 0 * x, lambda x, step: jnp.sum(x), lambda x: jnp.zeros_like(x)
        )

    task = fs.Task(oracle, np.ones(16, int), np.ones(16, int))
    return fs.Setup(task, timeline, jnp.zeros(DIM))


CYCLIC = fs.timelines.cyclic(ROUNDS, 16, 2, 1)
PROBES = fs.Probes(server={"model": lambda update: update.new_state.params})


def models(noise, timeline=CYCLIC, clip=1.5):
    algorithm = privacy.privatize(fs.fedavg(1.0), clip, 2.0, expected_uploads=2, noise=noise)
    run = jax.jit(lambda setup, key: fs.run(algorithm, setup, key, probes=PROBES)[1])
    return np.asarray(run(setup(timeline), jax.random.key(4)).probes["model"], float)


@pytest.mark.slow
def test_a_matrix_without_correlation_is_dp_fedavg():
    plain = models(privacy.independent())
    np.testing.assert_array_equal(models(privacy.banded([1.0], ROUNDS, visits=1)), plain)


@pytest.mark.slow
@pytest.mark.parametrize("efficient", [False, True])
def test_correlated_noise_grows_slower(efficient):
    """Sums of noise of 40 coordinates: one node after 8 rounds, eight draws without a tree."""
    tree = models(privacy.tree_aggregation(ROUNDS, efficient=efficient))[-1]
    plain = models(privacy.independent())[-1]
    assert tree.std() < 0.6 * plain.std()
    # The std of a node on the mean is z C / 2 = 1.5, that of an efficient one less.
    nodes = 1 / (2 - 1 / 8) if efficient else 1.0
    assert tree.std() == pytest.approx(1.5 * np.sqrt(nodes), rel=5 / np.sqrt(2 * DIM))


@pytest.mark.slow
def test_rounds_without_reports_do_not_move_the_noise():
    """The model keeps still in an empty round, and the noise goes on as if there were none."""
    masked = dataclasses.replace(CYCLIC, mask=CYCLIC.mask.at[3].set(False))
    noise = privacy.tree_aggregation(ROUNDS)
    whole, gap = models(noise), models(noise, masked)
    np.testing.assert_array_equal(gap[3], gap[2])
    np.testing.assert_allclose(gap[4:], whole[3:7], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [
        lambda: privacy.tree_aggregation(4, efficient=True),
        lambda: privacy.banded([1.0, 0.5], ROUNDS),
    ],
)
def test_interrupted_runs_continue_with_the_same_noise(law):
    algorithm = privacy.privatize(fs.fedavg(1.0), 1.5, 2.0, expected_uploads=2, noise=law())
    whole, key = setup(CYCLIC), jax.random.key(4)
    expected, _ = fs.run(algorithm, whole, key)
    state = fs.init(algorithm, whole)
    for part in (CYCLIC[:3], CYCLIC[3:]):
        state, _ = fs.advance(algorithm, dataclasses.replace(whole, timeline=part), state, key)
    jax.tree.map(np.testing.assert_array_equal, state.server, expected.server)


@pytest.mark.slow
def test_derivatives_of_batched_runs_reach_the_noise_multiplier():
    """Models are sums of noise, linear in z; replicas are those of single runs."""
    noise = privacy.tree_aggregation(4, efficient=True)
    keys = jax.random.split(jax.random.key(2), 2)

    def model(z, key):
        algorithm = privacy.privatize(fs.fedavg(1.0), 1.5, z, expected_uploads=2, noise=noise)
        return fs.run(algorithm, setup(CYCLIC), key)[0].server.params.sum()

    both = jax.jit(jax.vmap(jax.value_and_grad(model), (None, 0)))
    values, derivatives = both(2.0, keys)
    np.testing.assert_allclose(derivatives, values / 2.0, rtol=1e-5)
    np.testing.assert_allclose(values[1], jax.jit(model)(2.0, keys[1]), rtol=1e-5)


def test_timelines_that_do_not_fit_are_refused_before_compilation():
    twice = setup(fs.timelines.cyclic(ROUNDS, 6, 2, 1))
    for noise, message in (
        (privacy.tree_aggregation(ROUNDS), "more than once in tree 0"),
        (privacy.banded([1.0, 0.5, 0.4, 0.3], ROUNDS), "returns after 3 rounds"),
    ):
        algorithm = privacy.privatize(fs.fedavg(1.0), 1.5, 2.0, expected_uploads=2, noise=noise)
        with pytest.raises(ValueError, match=message):
            fs.init(algorithm, twice)


def test_correlated_noise_requires_a_fixed_clip():
    with pytest.raises(ValueError, match="must have the same bound"):
        privacy.privatize(
            fs.fedavg(1.0), privacy.adaptive_clip(), 2.0, expected_uploads=50,
            noise=privacy.tree_aggregation(8),
        )  # fmt: skip
