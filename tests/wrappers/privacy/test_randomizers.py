"""Local privacy: accounting, runs whose clients randomise their uploads, and PrivUnit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.wrappers.privacy import priv_unit, priv_unit_constants
from fedjax_sim.wrappers.privacy.priv_unit import _height
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
        (
            lambda r: privacy.local_noise_multiplier(1.0, 1e-5, visits=1.5),
            r"visits is 1\.5; expected",
        ),
        (
            lambda r: privacy.randomize_uploads(fs.fedavg(0.1), "gaussian"),
            "randomizer is 'gaussian'",
        ),
        (lambda r: priv_unit(0.0, 1.0), "clip is 0.0; expected a positive number"),
        (lambda r: priv_unit(1.0, 0.0), "epsilon is 0.0; expected a positive number"),
        (lambda r: priv_unit_constants(1, 1.0), "dimension is 1; expected at least 2 entries"),
        (lambda r: priv_unit_constants(10, 1e-6), "is 1e-06; expected a larger one for 10 entries"),
        (lambda r: jax.eval_shape(lambda e: priv_unit(1.0, e), 1.0), "expected a concrete number"),
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


# ---- PrivUnit


CASES = [(2, 1.0), (3, 4.0), (10, 0.1), (100, 10.0), (1000, 10.0), (10**6, 10.0), (1000, 100.0)]


@pytest.mark.parametrize(
    ("dimension", "gamma", "kappa"), [(100, 0.2994, 3.3357), (1000, 0.0965, 10.3465)]
)
def test_reference_constants_at_epsilon_10(dimension, gamma, kappa):
    constants = priv_unit_constants(dimension, 10.0)
    assert constants.gamma == pytest.approx(gamma, abs=5e-5)
    assert constants.kappa == pytest.approx(kappa, abs=5e-5)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize(("dimension", "epsilon"), [*CASES, (2, 0.1), (2, 5.0), (2, 12.0)])
def test_the_ratio_of_the_densities_is_at_most_e_to_epsilon(dimension, epsilon, tight):
    gamma, p, cap, kappa = priv_unit_constants(dimension, epsilon, tight=tight)
    alpha = (dimension - 1) / 2
    assert cap == pytest.approx(scipy.special.betainc(alpha, alpha, (1 - gamma) / 2), rel=1e-9)
    loss = np.log(p / cap) - np.log((1 - p) / (1 - cap))
    assert 0 < loss <= epsilon * (1 + 1e-9)
    if tight:
        assert loss == pytest.approx(epsilon, rel=1e-6)
        assert kappa <= priv_unit_constants(dimension, epsilon).kappa


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (3, 4.0), (100, 10.0)])
def test_kappa_is_the_inverse_of_the_mean_height(dimension, epsilon):
    gamma, p, cap, kappa = priv_unit_constants(dimension, epsilon)
    alpha = (dimension - 1) / 2

    def moment(low, high):  # of <V, v> for uniform V, with <V, v> = sin(angle)
        def integrand(angle):
            return np.sin(angle) * np.cos(angle) ** (dimension - 2)

        value, _ = scipy.integrate.quad(integrand, np.arcsin(low), np.arcsin(high))
        return value / (2.0 ** (dimension - 2) * scipy.special.beta(alpha, alpha))

    mean = p * moment(gamma, 1) / cap + (1 - p) * moment(-1, gamma) / (1 - cap)
    assert 1 / mean == pytest.approx(kappa, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [3, 10**6])
def test_heights_invert_the_distribution_function(dimension):
    constants = priv_unit_constants(dimension, 10.0)
    alpha, cap = (dimension - 1) / 2, constants.cap_mass
    draws = np.geomspace(1e-4, 15, 60).astype(np.float32)
    inside, outside = (
        np.asarray(_height(jnp.asarray(draws), jnp.array(which), constants, dimension), float)
        for which in (True, False)
    )
    tail = scipy.special.betainc(alpha, alpha, (1 - inside) / 2)  # P(<V, v> >= height)
    below = scipy.special.betainc(alpha, alpha, (1 + outside) / 2)
    below_one = inside < 0.99  # heights near 1 are rounded to single precision
    np.testing.assert_allclose(np.log(tail[below_one] / cap), -draws[below_one], atol=3e-4)
    np.testing.assert_allclose(below, (1 - cap) * np.exp(-draws), atol=2e-5)
    assert inside.min() >= constants.gamma * (1 - 1e-5)
    assert outside.max() <= constants.gamma * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 6])
def test_mean_and_squared_error(dimension):
    """Over 100,000 draws; bounds are five standard errors."""
    randomizer, clip, draws = priv_unit(2.0, 2.0), 2.0, 100_000
    kappa = priv_unit_constants(dimension, 2.0).kappa
    short = np.zeros(dimension, np.float32)
    short[:2] = 1.2, -0.5
    uploads = np.stack([short, 2 * short / 1.3, 10 * short, 0 * short, np.nan * short])
    keys = jax.random.split(jax.random.key(0), draws)
    through = jax.vmap(jax.vmap(randomizer.through, (0, None)), (None, 0))
    sent = np.asarray(jax.jit(through)(keys, uploads), float)
    np.testing.assert_allclose(np.linalg.norm(sent, axis=-1), clip * kappa, rtol=1e-5)
    boundary = uploads[1]
    means = np.stack([short, boundary, boundary, 0 * short, 0 * short])
    error = clip * kappa / np.sqrt(draws)
    np.testing.assert_allclose(sent.mean(1), means, atol=5 * error)
    # C^2 (kappa^2 - 1) on the sphere of radius C.
    squared = ((sent[1] - boundary) ** 2).sum(-1)
    limit = 5 * squared.std() / np.sqrt(draws)
    assert squared.mean() == pytest.approx(clip**2 * (kappa**2 - 1), abs=limit)


@pytest.mark.parametrize(
    "entry",
    [
        1e-37,
        1e30,
        3e38,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (1e-30, 1e-22, 1.0, 1e20)),
    ],
)
def test_uploads_whose_squares_leave_single_precision(entry):
    """The length tells nothing about the upload, and the direction is right."""
    upload = jnp.zeros(100, jnp.float32).at[:3].set(jnp.array([1.0, -0.5, 0.25]) * entry)
    sent = priv_unit(1.0, 10.0).through(jax.random.key(3), upload)
    expected = priv_unit_constants(100, 10.0).kappa
    assert np.linalg.norm(np.asarray(sent, float)) == pytest.approx(expected, rel=1e-6)
    # At a large epsilon what is sent is almost surely in the cap around the upload or its opposite.
    sent = np.asarray(priv_unit(1.0, 100.0).through(jax.random.key(3), upload), float)
    direction = np.asarray(upload, float) / entry
    cosine = sent @ direction / np.linalg.norm(sent) / np.linalg.norm(direction)
    assert abs(cosine) >= priv_unit_constants(100, 100.0).gamma * (1 - 1e-5)


def test_epsilon_may_be_a_concrete_scalar_of_jax():
    sent = [
        priv_unit(1.0, epsilon).through(jax.random.key(0), jnp.ones(10))
        for epsilon in (2.0, jnp.array(2.0), np.float32(2.0))
    ]
    np.testing.assert_array_equal(sent[0], sent[1])
    np.testing.assert_array_equal(sent[0], sent[2])
