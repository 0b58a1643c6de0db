"""Noise of tree aggregation: sums of nodes, restarts, efficient estimates, epsilon."""

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import rdp

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.wrappers.privacy.tree_aggregation import _node

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
    with pytest.raises(ValueError, match="num_rounds is 0"):
        privacy.tree_aggregation(0)
