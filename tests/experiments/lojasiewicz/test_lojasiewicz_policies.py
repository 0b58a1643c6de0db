"""Softmax policies: returns, optima and trajectory constants against NumPy."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lojasiewicz.policies import optimal_policy, softmax_bandit, softmax_mdp

RNG = np.random.default_rng(0)
REWARDS = np.array([[1.0, 0.3, 0.6], [0.2, 0.9, 0.5], [0.7, 0.3, 0.8]])
MDP_REWARDS = RNG.uniform(size=(2, 3, 2))
TRANSITIONS = RNG.dirichlet(np.ones(3), size=(3, 2))
INITIAL = np.array([0.2, 0.5, 0.3])
DISCOUNT = 0.6
THETAS = RNG.normal(size=(5, 3)) * 2
TABLES = RNG.normal(size=(5, 3, 2)) * 1.5


@pytest.mark.slow
def test_mdp_against_enumeration(x64):
    """Returns by value iteration in NumPy, optima by trying all 8 deterministic policies."""
    family = softmax_mdp(MDP_REWARDS, TRANSITIONS, INITIAL, DISCOUNT, np.zeros((3, 2)))

    def returns(reward, policy):
        values = np.zeros(3)
        for _ in range(100):  # 0.6^100 is below rounding
            values = (policy * (reward + DISCOUNT * TRANSITIONS @ values)).sum(axis=1)
        return INITIAL @ values

    policies = [np.eye(2)[list(choice)] for choice in itertools.product(range(2), repeat=3)]
    for reward, infimum in zip(MDP_REWARDS, family.constants.infima, strict=True):
        best = max(policies, key=lambda p, r=reward: returns(r, p))
        assert infimum == pytest.approx(-returns(reward, best), rel=1e-12)
        assert (
            optimal_policy(reward, TRANSITIONS, DISCOUNT).tolist() == best.argmax(axis=1).tolist()
        )
    shared = MDP_REWARDS.mean(axis=0)
    assert family.constants.minimum == pytest.approx(-max(returns(shared, p) for p in policies))
    x = TABLES[0]
    policy = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    for client in range(2):
        expected = -returns(MDP_REWARDS[client], policy)
        assert family.value(client, jnp.asarray(x)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_trajectory_constants_by_their_formulas(x64):
    """mu at 5 visited models, one at a time and together; occupancies by summing 200 steps."""

    def softmax(x):
        return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)

    def occupancy(policy):
        state, total = INITIAL, np.zeros(3)
        for _ in range(200):  # 0.6^200 is below rounding
            total, state = (
                total + state,
                DISCOUNT * np.einsum("s,sa,sat->t", state, policy, TRANSITIONS),
            )
        return total

    expected = {"bandit": [], "mdp": []}
    for x, table in zip(THETAS, TABLES, strict=True):
        expected["bandit"].append(min(softmax(x)[r.argmax()] for r in REWARDS) ** 2)
        policy, entries = softmax(table), []
        for reward in MDP_REWARDS:
            best = optimal_policy(reward, TRANSITIONS, DISCOUNT)
            mismatch = (occupancy(np.eye(2)[best]) / occupancy(policy)).max()
            entries.append(policy[np.arange(3), best].min() ** 2 / (3 * mismatch**2))
        expected["mdp"].append(min(entries))
    make = {
        "bandit": functools.partial(softmax_bandit, REWARDS),
        "mdp": functools.partial(softmax_mdp, MDP_REWARDS, TRANSITIONS, INITIAL, DISCOUNT),
    }
    for name, visited in (("bandit", THETAS), ("mdp", TABLES)):
        result = [make[name](x).constants.mu for x in visited]
        np.testing.assert_allclose(result, expected[name], rtol=1e-10)
        assert make[name](visited).constants.mu == pytest.approx(min(result), rel=1e-12)
    np.testing.assert_allclose(make["mdp"](TABLES).constants.L, 8 / 0.4**3)
