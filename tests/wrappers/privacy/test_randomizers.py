"""Local privacy: accounting, sensitivity, and runs whose clients randomise their uploads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.wrappers.privacy.randomizers import pure_epsilon


@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 3.730632), (8.0, 0.600229)])
def test_reference_noise_multipliers(epsilon, sigma):
    assert privacy.local_noise_multiplier(epsilon, 1e-5) == pytest.approx(sigma, abs=1e-6)


def test_the_guarantee_counts_the_visits_of_one_client():
    timeline = fs.timelines.cyclic(6, num_clients=4, cohort_size=2, num_steps=1)  # 3 visits
    sigma = privacy.local_noise_multiplier(2.0, 1e-5, visits=3)
    gaussian = privacy.local_guarantee(privacy.local_gaussian(1.0, sigma), timeline, 1e-5)
    assert gaussian.epsilon == pytest.approx(2.0, rel=1e-5)
    assert gaussian.adjacency == "replace_one"
    pure = privacy.local_guarantee(privacy.priv_unit(1.0, 0.5), timeline, 1e-5)
    assert pure.epsilon == pytest.approx(1.5, rel=1e-3)
    assert "3 visits" in pure.rule


def test_many_visits_of_a_pure_mechanism_compose_better_than_linearly():
    """An upper bound on the exact composition, and below Theorem 3.3 of Dwork and Roth."""
    epsilon, visits, delta = 0.1, 100, 1e-5
    total = pure_epsilon(epsilon, visits, delta)
    advanced = epsilon * np.sqrt(2 * visits * np.log(1 / delta)) + visits * epsilon * np.expm1(
        epsilon
    )
    assert 2.0 < total < advanced < epsilon * visits


def run(algorithm, lr=0.0, dim=2000, clients=4):
    params = jnp.full(dim, 0.5)
    task = fs.Task(
        lambda client, key, max_steps: fs.Oracle(
            lambda x, step=0: lr * x, lambda x, step: jnp.sum(x), lambda x: lr * x
        ),
        np.ones(clients, int),
        np.ones(clients, int),
    )
    timeline = fs.timelines.full(1, clients, task.num_steps)
    state, _ = fs.run(algorithm, fs.Setup(task, timeline, params), jax.random.key(3))
    return np.asarray(state.server.params, float)


@pytest.mark.slow
def test_without_noise_and_bound_the_run_does_not_change():
    plain = fs.fedavg(0.1)
    randomizer = privacy.local_gaussian(clip=1e6, noise_multiplier=0.0)
    local = privacy.randomize_uploads(plain, randomizer)
    np.testing.assert_array_equal(run(local, lr=1.0, dim=3), run(plain, lr=1.0, dim=3))


def test_the_mean_has_the_noise_of_all_clients():
    """Zero uploads of 4 clients: variance (2 C sigma)^2 / 4 of the mean, which is 36 / 4."""
    local = privacy.randomize_uploads(fs.fedavg(0.1), privacy.local_gaussian(1.5, 2.0))
    step = run(local) - 0.5
    assert step.var() == pytest.approx(9.0, rel=5 * np.sqrt(2 / 2000))


def test_randomised_uploads_are_aggregated_by_any_rule():
    """The server may do anything with what it receives."""
    robust = fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median())
    local = privacy.randomize_uploads(robust, privacy.local_gaussian(1.5, 0.0))
    np.testing.assert_array_equal(run(local), run(robust))


def test_uploads_are_clipped_over_all_leaves():
    randomizer = privacy.local_gaussian(clip=2.0, noise_multiplier=0.0)
    sent = randomizer.through(
        jax.random.key(0), {"a": jnp.array([6.0]), "b": jnp.array([8.0], jnp.bfloat16)}
    )
    assert sent["b"].dtype == jnp.bfloat16
    np.testing.assert_allclose(sent["a"], 1.2, rtol=1e-6)
    np.testing.assert_allclose(float(sent["b"][0]), 1.6, rtol=1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda r: privacy.randomize_uploads(fs.quafl(0.1), r), "uploads models"),
        (lambda r: privacy.randomize_uploads(fs.mb_sgd(0.1), r), "exact mean"),
        (
            lambda r: fs.marina(
                privacy.randomize_uploads(fs.fedsgd(0.1), r), fs.compression.identity(), 0.5
            ),
            "would cancel the noise",
        ),
        (lambda r: privacy.local_gaussian(0.0, 1.0), "clip is 0.0; expected a positive number"),
        (lambda r: privacy.local_gaussian(np.inf, 1.0), "clip is inf; expected at most"),
        (lambda r: privacy.local_gaussian(1.0, -1.0), "noise_multiplier is -1.0"),
        (lambda r: privacy.local_noise_multiplier(0.0, 1e-5), "epsilon is 0.0"),
        (lambda r: privacy.local_noise_multiplier(1.0, 1.0), "delta is 1.0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make(privacy.local_gaussian(1.0, 1.0))


def test_weights_by_examples_are_refused():
    task = fs.Task(lambda client, key, max_steps: None, np.arange(1, 4), np.ones(3, int))
    setup = fs.Setup(
        task, fs.timelines.full(1, 3, 1), jnp.zeros(2), weighting=fs.weight_by_examples
    )
    local = privacy.randomize_uploads(fs.fedavg(0.1), privacy.local_gaussian(1.0, 1.0))
    with pytest.raises(ValueError, match="numbers of examples would reach the server"):
        fs.init(local, setup)


def test_refusals_of_values_that_are_no_randomizers_and_no_counts():
    with pytest.raises(
        ValueError, match=r"randomizer is 'gaussian'; expected a privacy\.Randomizer"
    ):
        privacy.randomize_uploads(fs.fedavg(0.1), "gaussian")
    with pytest.raises(ValueError, match=r"visits is 1\.5; expected an integer"):
        privacy.local_noise_multiplier(1.0, 1e-5, visits=1.5)
