"""Correlated noise: sums of nodes of trees, bands and their sensitivity, and runs with them."""

import dataclasses
import itertools

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.timelines import Sampling
from fedjax_sim.wrappers.privacy.banded import sensitivity
from fedjax_sim.wrappers.privacy.noise import normal
from fedjax_sim.wrappers.privacy.tree_aggregation import _node

# ---- trees


ROUNDS, TREE, DIM = 20, 8, 3
NODES = [(k, level, place) for k in range(3) for level in range(4) for place in range(8 >> level)]


def draws(efficient):
    """Noise of 20 rounds with trees of 8, and the noise of every node of three trees."""
    noise, like = privacy.tree_aggregation(TREE, efficient=efficient), jnp.zeros(DIM)

    @jax.jit
    def run(keys, nodes):
        def step(state, round):
            drawn, state = noise.draw(round[0], state, 2.0, round[1], like)
            return state, drawn

        state, drawn = jax.lax.scan(step, noise.init(like), (keys, jnp.arange(ROUNDS)))
        seed = jax.random.fold_in(jax.random.key(state.words[0]), state.words[1])

        def node(at):
            return 2.0 * _node(jax.random.fold_in(seed, at[0]), at[1], at[2], like)

        return drawn, jax.vmap(node)(nodes)

    drawn, nodes = run(jax.random.split(jax.random.key(5), ROUNDS), jnp.array(NODES))
    return np.asarray(drawn, float), dict(zip(NODES, np.asarray(nodes, float), strict=True))


def sums(estimate):
    """Noise of the first t rounds: the nodes in the binary expansion of t, tree after tree."""
    values = []
    for t in range(1, ROUNDS + 1):
        total = 0.0
        for tree in range(3):
            rounds, start = min(max(t - TREE * tree, 0), TREE), 0
            for level in reversed(range(4)):
                if rounds >> level & 1:
                    total = total + estimate(tree, level, start >> level)
                    start += 1 << level
        values.append(total)
    return np.stack(values)


def test_sums_of_the_noise_are_sums_of_few_nodes():
    drawn, nodes = draws(efficient=False)
    expected = sums(lambda *node: nodes[node])
    np.testing.assert_allclose(drawn.cumsum(0), expected, atol=1e-5)
    assert len(np.unique(list(nodes.values()), axis=0)) == len(NODES)


@pytest.mark.slow
def test_efficient_estimates_weight_levels_by_inverse_variances():
    drawn, nodes = draws(efficient=True)

    def estimate(tree, level, place):
        if level == 0:
            return nodes[tree, 0, place]
        below = sum(estimate(tree, level - 1, 2 * place + i) for i in (0, 1))
        share = 1 / (2 - 0.5**level)
        return share * nodes[tree, level, place] + (1 - share) * below

    np.testing.assert_allclose(drawn.cumsum(0), sums(estimate), atol=1e-5)


@pytest.mark.slow
def test_variances_of_the_sums():
    """popcount(t) nodes; level l has the variance 1 / (2 - 2^-l) of efficient estimates."""
    like, std = jnp.zeros(40_000), 3.0
    bits = [[(t >> level) & 1 for level in range(4)] for t in range(1, 9)]
    for efficient, levels in ((False, np.ones(4)), (True, 1 / (2 - 0.5 ** np.arange(4)))):
        noise = privacy.tree_aggregation(8, efficient=efficient)

        def step(state, t, noise=noise):
            drawn, state = noise.draw(jax.random.key(t), state, std, t, like)
            return state, drawn

        _, drawn = jax.jit(lambda noise=noise, step=step: jax.lax.scan(
            step, noise.init(like), jnp.arange(8)))()  # fmt: skip
        variances = np.asarray(drawn, float).cumsum(0).var(1) / std**2
        np.testing.assert_allclose(variances, bits @ levels, rtol=5 * np.sqrt(2 / 40_000))


@pytest.mark.parametrize(("rounds", "epsilon"), [(8, 4.7285), (7, 4.0113)])
def test_reference_epsilons(rounds, epsilon):
    timeline = fs.timelines.cyclic(rounds, 2 * rounds, 2, num_steps=1)
    mechanism = privacy.tree_aggregation(rounds).mechanism(2.0, timeline, 2 * rounds)
    assert mechanism.adjacency == "zero_out"
    accountant = rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(mechanism.event)
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, abs=5e-5)


def test_every_pass_has_its_own_tree():
    timeline = fs.timelines.cyclic(20, num_clients=16, cohort_size=2, num_steps=1)
    event = privacy.tree_aggregation(8).mechanism(2.0, timeline, 16).event
    whole, rest = event.events
    assert (whole.event.step_counts, whole.count, rest.step_counts) == (8, 2, 4)


def test_a_client_that_returns_within_a_tree_is_refused():
    timeline = fs.timelines.cyclic(20, num_clients=16, cohort_size=2, num_steps=1)
    with pytest.raises(ValueError, match="client 0 more than once in tree 0 of 9 rounds"):
        privacy.tree_aggregation(9).check(timeline, 16)


# ---- bands


REFERENCE = [0.794875, 0.438433, 0.329274, 0.259862]  # n = 16, four bands


def lower_triangular(c, n):
    """C of coefficients, or the prefix sums for c = 1."""
    c = np.concatenate([c, np.zeros(n - len(c))])
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def square_root(n):
    """Coefficients of the square root of the prefix sums, binom(2 k, k) / 4^k."""
    return np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, n))])


@pytest.mark.parametrize(
    ("law", "factor"),
    [
        pytest.param(privacy.banded, 2.0, id="banded"),  # 4 visits
        pytest.param(privacy.amplified_banded, 1.0, id="amplified", marks=pytest.mark.slow),
    ],
)
def test_noise_solves_the_triangular_system(law, factor):
    """Exact, by linearity: y = C^-1 xi, so the covariance is s^2 C^-1 C^-T."""
    like, rounds = {"a": jnp.zeros(5), "b": jnp.zeros((2, 2))}, jnp.arange(16)
    law = law(REFERENCE, 16)

    @jax.jit
    def draws():
        keys = jax.random.split(jax.random.key(2), 16)

        def step(state, round):
            drawn, state = law.draw(round[0], state, 1.5, round[1], like)
            return state, drawn

        drawn = jax.lax.scan(step, law.init(like), (keys, rounds))[1]
        return drawn, jax.vmap(lambda key: normal(key, 1.5, like))(keys)

    drawn, independent = (
        np.concatenate([x["a"], x["b"].reshape(16, 4)], axis=1).astype(float) for x in draws()
    )
    solved = np.linalg.solve(lower_triangular(REFERENCE, 16), factor * independent)
    np.testing.assert_allclose(drawn, solved, atol=2e-5)


def test_closed_form_of_full_triangles():
    c = square_root(8)
    np.testing.assert_allclose(c[:4], [1, 0.5, 0.375, 0.3125])
    inverse = np.linalg.inv(lower_triangular(c, 8))[:, 0]
    np.testing.assert_allclose(inverse[:4], [1, -0.5, -0.125, -0.0625])
    assert sensitivity(c, 8, separation=8, visits=1) ** 2 == pytest.approx(1.718379, abs=1e-6)


@pytest.mark.parametrize(
    ("c", "separation", "visits"),
    [(square_root(8), 3, 8), (square_root(3), 3, 3), (square_root(3), 2, 2), ([1.0, 1.0], 1, 8)],
)
def test_sensitivity_is_the_largest_over_all_patterns_of_visits(c, separation, visits):
    matrix, worst = lower_triangular(c, 8), 0.0
    for pattern in itertools.product([0, 1], repeat=8):
        gaps = np.diff(np.flatnonzero(pattern))
        if sum(pattern) <= visits and (gaps >= separation).all():
            worst = max(worst, np.linalg.norm(matrix @ np.array(pattern)))
    found = sensitivity(c, 8, separation=separation, visits=visits)
    assert found == pytest.approx(worst, rel=1e-9)


@pytest.mark.slow
def test_optimal_coefficients():
    c = privacy.banded_coefficients(16, 4)
    np.testing.assert_allclose(c, REFERENCE, atol=1e-6)
    b = lower_triangular(np.ones(16), 16) @ np.linalg.inv(lower_triangular(c, 16))
    assert (b**2).sum(1).mean() == pytest.approx(3.754023, abs=1e-6)
    assert sensitivity(c, 16, separation=4, visits=4) ** 2 == pytest.approx(4, abs=1e-6)


def test_without_amplification_the_event_is_one_gaussian():
    timeline = fs.timelines.cyclic(16, num_clients=8, cohort_size=2, num_steps=1)
    mechanism = privacy.banded(REFERENCE, 16).mechanism(2.0, timeline, 8)
    assert (mechanism.event.noise_multiplier, mechanism.adjacency) == (2.0, "zero_out")


def in_turns(groups, probability=0.2):
    """A timeline with the sampling rule of grouped_bernoulli."""
    rule = Sampling("poisson", 400 * probability / groups, 100, 0, probability, groups=groups)
    return dataclasses.replace(fs.timelines.cyclic(15, 400, 100, 1), sampling=rule)


def test_amplified_noise_counts_one_draw_per_turn_of_a_group():
    mechanism = privacy.amplified_banded(REFERENCE, 16).mechanism(2.0, in_turns(4), 400)
    event = mechanism.event
    assert (event.count, event.event.sampling_probability) == (4, 0.2)
    assert event.event.event.noise_multiplier == 2.0
    assert mechanism.extra_delta == pytest.approx(15 * 0.8**99)  # in a round of any group


@pytest.mark.parametrize(
    ("noise", "timeline", "message"),
    [
        ({}, fs.timelines.cyclic(16, 6, 2, 1), "returns after 3 rounds; expected at least sep"),
        ({"visits": 3}, fs.timelines.cyclic(16, 8, 2, 1), "client with 4 visits; expected at most"),
        ({}, fs.timelines.cyclic(17, 8, 2, 1), "17 rounds with a report; expected at most"),
    ],
)
def test_timelines_beyond_the_sensitivity_are_refused(noise, timeline, message):
    with pytest.raises(ValueError, match=message):
        privacy.banded(REFERENCE, 16, **noise).check(timeline, 8)


@pytest.mark.parametrize("timeline", [in_turns(3), in_turns(1), fs.timelines.full(16, 9, 1)])
def test_amplification_requires_groups(timeline):
    with pytest.raises(ValueError, match=r"expected timelines.grouped_bernoulli\(..., num_groups="):
        privacy.amplified_banded(REFERENCE, 16).check(timeline, 400)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        *(
            (lambda c=c: privacy.banded(c, 4), r"coefficients is .*; expected 1 .. num_rounds = 4")
            for c in ([], [0.0], [1.0, -0.1], [0.5, 1.0], [1.0] * 5, [[1.0]])
        ),
        (lambda: privacy.banded_coefficients(4, 5), "bands is 5; expected at most num_rounds = 4"),
        (lambda: privacy.banded([1.0], 4, separation=0), "separation is 0; expected at least 1"),
        (lambda: privacy.banded([1.0], 4, visits=0), "visits is 0; expected at least 1"),
        (lambda: privacy.tree_aggregation(0), "num_rounds is 0"),
    ],
)
def test_bad_numbers(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# ---- runs


HORIZON, SIZE = 8, 40


def setup(timeline):
    """Clients that send nothing, so that the model is the sum of the noise."""

    def oracle(client, key, max_steps):
        return fs.Oracle(
            lambda x, step=0: 0 * x, lambda x, step: jnp.sum(x), lambda x: jnp.zeros_like(x)
        )

    task = fs.Task(oracle, np.ones(16, int), np.ones(16, int))
    return fs.Setup(task, timeline, jnp.zeros(SIZE))


CYCLIC = fs.timelines.cyclic(HORIZON, 16, 2, 1)
PROBES = fs.Probes(server={"model": lambda update: update.new_state.params})


def models(noise, timeline=CYCLIC, clip=1.5):
    algorithm = privacy.privatize(fs.fedavg(1.0), clip, 2.0, expected_uploads=2, noise=noise)
    run = jax.jit(lambda setup, key: fs.run(algorithm, setup, key, probes=PROBES)[1])
    return np.asarray(run(setup(timeline), jax.random.key(4)).probes["model"], float)


@pytest.mark.slow
def test_a_matrix_without_correlation_is_dp_fedavg():
    plain = models(privacy.independent())
    np.testing.assert_array_equal(models(privacy.banded([1.0], HORIZON, visits=1)), plain)


@pytest.mark.slow
@pytest.mark.parametrize("efficient", [False, True])
def test_correlated_noise_grows_slower(efficient):
    """Sums of noise of 40 coordinates: one node after 8 rounds, eight draws without a tree."""
    tree = models(privacy.tree_aggregation(HORIZON, efficient=efficient))[-1]
    plain = models(privacy.independent())[-1]
    assert tree.std() < 0.6 * plain.std()
    # The std of a node on the mean is z C / 2 = 1.5, that of an efficient one less.
    nodes = 1 / (2 - 1 / 8) if efficient else 1.0
    assert tree.std() == pytest.approx(1.5 * np.sqrt(nodes), rel=5 / np.sqrt(2 * SIZE))


@pytest.mark.slow
def test_rounds_without_reports_do_not_move_the_noise():
    """The model keeps still in an empty round, and the noise goes on as if there were none."""
    masked = dataclasses.replace(CYCLIC, mask=CYCLIC.mask.at[3].set(False))
    noise = privacy.tree_aggregation(HORIZON)
    whole, gap = models(noise), models(noise, masked)
    np.testing.assert_array_equal(gap[3], gap[2])
    np.testing.assert_allclose(gap[4:], whole[3:7], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [
        lambda: privacy.tree_aggregation(4, efficient=True),
        lambda: privacy.banded([1.0, 0.5], HORIZON),
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
    twice = setup(fs.timelines.cyclic(HORIZON, 6, 2, 1))
    for noise, message in (
        (privacy.tree_aggregation(HORIZON), "more than once in tree 0"),
        (privacy.banded([1.0, 0.5, 0.4, 0.3], HORIZON), "returns after 3 rounds"),
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
