"""Audits with a planted client: the empirical epsilon stays below the accounted one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import diagnostics, privacy

CLIENTS, CANARY, DELTA = 4, 2, 1e-5


def canary_task():
    """The planted client always sends the longest upload along the first axis, others nothing."""

    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return jnp.where(client == CANARY, -100.0, 0.0) * jnp.eye(3)[0]

        return fs.Oracle(grad, lambda x, step: jnp.sum(x), grad)

    return fs.Task(oracle, np.ones(CLIENTS, int), np.ones(CLIENTS, int))


def audited(timeline, noise_multiplier, expected_uploads, runs=2000, noise=None):
    algorithm = privacy.privatize(
        fs.fedavg(1.0), 1.5, noise_multiplier, expected_uploads=expected_uploads, noise=noise
    )
    setup = fs.Setup(canary_task(), timeline, jnp.zeros(3))
    keys = jax.random.split(jax.random.key(7), runs)
    return diagnostics.audit(algorithm, setup, keys, CANARY, lambda x: x[0], delta=DELTA), setup


@pytest.mark.slow
def test_the_audited_epsilon_is_below_the_accounted_one_and_above_it_without_noise():
    timeline = fs.timelines.full(4, CLIENTS, 1)
    result, setup = audited(timeline, 2.0, CLIENTS)
    private = privacy.privatize(fs.fedavg(1.0), 1.5, 2.0, expected_uploads=CLIENTS)
    accounted = privacy.epsilon(private, setup, DELTA).epsilon
    # The scores are those of one Gaussian mechanism with z = 1.
    assert result.present.mean() - result.absent.mean() == pytest.approx(1.5, abs=0.1)
    assert result.absent.std() == pytest.approx(1.5 * 2 * 2 / CLIENTS, rel=0.1)
    assert 1.0 < result.epsilon < accounted
    assert accounted == pytest.approx(4.3772, abs=2e-3)
    without, _ = audited(timeline, 0.0, CLIENTS)
    assert without.epsilon > accounted


@pytest.mark.slow
def test_cohorts_that_are_drawn_per_run_are_audited_with_amplification():
    runs, probability = 2000, 0.5
    timelines = jax.vmap(
        lambda key: fs.timelines.bernoulli(key, 1, CLIENTS, probability, 1)
    )(jax.random.split(jax.random.key(1), runs))  # fmt: skip
    fixed, _ = audited(fs.timelines.full(1, CLIENTS, 1), 0.5, CLIENTS)
    sampled, _ = audited(timelines, 0.5, CLIENTS * probability)
    assert 0 < sampled.epsilon < fixed.epsilon


def test_bad_input():
    setup = fs.Setup(canary_task(), fs.timelines.full(1, CLIENTS, 1), jnp.zeros(3))
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match="client is 4; expected 0"):
        diagnostics.audit(fs.fedavg(1.0), setup, keys, 4, lambda x: x[0], delta=DELTA)
    with pytest.raises(ValueError, match="batch_size is 0"):
        diagnostics.audit(fs.fedavg(1.0), setup, keys, 0, lambda x: x[0], delta=DELTA, batch_size=0)
    for arguments, message in (
        ({"keys": keys[0]}, r"keys has shape \(\); expected \[n\]"),
        ({"keys": 3}, "keys is 3; expected jax.random.key"),
        ({"client": 1.5}, r"client is 1\.5; expected an integer"),
        ({"delta": 2.0}, r"delta is 2\.0; expected a number in \(0, 1\)"),
        ({"significance": 0.7}, r"significance is 0\.7; expected a number in \(0, 0\.5\)"),
        ({"score": lambda x: x}, r"score has shape \(3,\); expected one number"),
    ):
        valid = {"keys": keys, "client": 0, "score": lambda x: x[0], "delta": DELTA}
        with pytest.raises(ValueError, match=message):
            diagnostics.audit(fs.fedavg(1.0), setup, **(valid | arguments))


def test_scores_of_diverged_runs_are_refused():
    """Beside NaN no threshold says anything, and the bound would be 0."""
    setup = fs.Setup(canary_task(), fs.timelines.full(1, CLIENTS, 1), jnp.zeros(3))
    keys = jax.random.split(jax.random.key(0), 2)
    with jax.debug_nans(False), pytest.raises(ValueError, match="score is NaN for 4 of 4 models"):
        diagnostics.audit(fs.fedavg(1.0), setup, keys, 0, lambda x: x[0] * jnp.nan, delta=DELTA)


def test_rounds_without_the_client_are_checked():
    """EF21 takes weights in rounds of all clients only, which those without one are not."""
    setup = fs.Setup(canary_task(), fs.timelines.full(2, CLIENTS, 1), jnp.zeros(3))
    setup = fs.weight_by_client(setup, jnp.arange(1.0, CLIENTS + 1))
    algorithm = fs.ef21(fs.fedavg(0.1), fs.compression.identity())
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match="does not accept the rounds without client 2; expected"):
        diagnostics.audit(algorithm, setup, keys, CANARY, lambda x: x[0], delta=DELTA)
