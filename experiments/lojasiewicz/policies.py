r"""Lojasiewicz families of softmax policies: alpha = 2, mu is known along a trajectory.

The objective is ``f_c = -J_c``, minus the expected return of client c; rewards are in [0, 1]. The
probability of the best action has no positive lower bound over all models. Therefore ``mu`` and
``zeta`` are *trajectory constants*: first run the algorithm, then pass the server's models at the
beginning of the rounds as ``visited``.

References:
    Mei et al., "On the Global Convergence Rates of Softmax Policy Gradient Methods", 2020.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from experiments.lojasiewicz.family import Family, FamilyConstants, gradients, with_data


def two_armed_bandit(gaps: np.ndarray, low: float) -> Family:
    r"""Two arms, one parameter: :math:`f_c(x) = -d_c\, s(x)`, s the logistic function.

    :math:`|f_c'| = s (f_c - f_c^*)`, so :math:`\mu = s(low)^2` on :math:`x \ge` ``low``.
    :math:`L = \max_c d_c / (6 \sqrt3)`; :math:`\zeta = \frac14` times the standard deviation of d.

    Args:
        gaps: d ``[M]``, the advantages of the first arm, positive.
        low: the smallest visited model.
    """
    d = np.asarray(gaps, np.float64)
    if d.ndim != 1 or not (d > 0).all():
        raise ValueError(f"gaps is {gaps}; expected a vector of positive numbers")
    constants = FamilyConstants(
        alpha=2.0,
        mu=float((1 + np.exp(-low)) ** -2.0),
        L=float(d.max() / (6 * np.sqrt(3))),
        zeta=float(np.std(d) / 4),
        infima=-d,
        minimum=-float(d.mean()),
    )
    return Family(*with_data(_two_armed_value, _two_armed_gradient, d), constants)


def softmax_bandit(rewards: np.ndarray, visited: np.ndarray, smoothness: float = 2.5) -> Family:
    r""":math:`f_c(x) = -\sum_a \pi_x(a) r_c(a)`, :math:`\pi_x` the softmax of x.

    :math:`\mu = \inf_{visited} \min_c \pi_x(a_c^*)^2`; zeta is the largest spread at a visited
    model. If the clients have different best arms, no model reaches ``F*``.

    Args:
        rewards: r ``[M, A]``, in [0, 1].
        visited: models ``[..., A]``.
        smoothness: L; 5 / 2 is Lemma 2 of the reference.
    """
    r = _rewards(rewards, 2)
    models = _models(visited, r.shape[1:])
    value, gradient = with_data(_bandit_value, _bandit_gradient, r)
    best = jax.nn.softmax(models)[:, np.argmax(r, axis=1)]  # [n, M]
    infima = -r.max(axis=1)
    constants = FamilyConstants(
        alpha=2.0,
        mu=float(jnp.min(best) ** 2),
        L=smoothness,
        zeta=_largest_spread(gradient, len(r), models),
        infima=infima,
        minimum=-float(r.mean(axis=0).max()),
    )
    return Family(value, gradient, constants)


def softmax_mdp(
    rewards: np.ndarray,  # r ``[M, S, A]``, in [0, 1]
    transitions: np.ndarray,  # P ``[S, A, S]``
    initial: np.ndarray,  # rho ``[S]``, the distribution of the first state, positive
    discount: float,  # gamma in [0, 1)
    visited: np.ndarray,  # models ``[..., S, A]``
) -> Family:
    r"""A finite Markov decision process per client; the clients share the transitions.

    :math:`f_c(x) = -\rho^\top (I - \gamma P_\pi)^{-1} r_{c,\pi}` is computed exactly;
    :math:`\pi(\cdot|s)` is the softmax of ``x[s]``. :math:`L = 8 / (1 - \gamma)^3` and

    .. math:: \mu = \inf_{visited} \min_c \frac1S \Big\|\frac{d^{\pi_c^*}}{d^{\pi}}
        \Big\|_\infty^{-2} \min_s \pi(a_c^*(s) | s)^2

    with the discounted occupancies d from the initial distribution.

    References:
        Mei et al., 2020, Lemmas 7 and 8.
    """
    r, p, rho = _rewards(rewards, 3), np.asarray(transitions, float), np.asarray(initial, float)
    states, actions = r.shape[1:]
    if p.shape != (states, actions, states) or rho.shape != (states,):
        raise ValueError(
            f"rewards, transitions and initial have shapes {r.shape}, {p.shape} and {rho.shape}; "
            "expected [M, S, A], [S, A, S] and [S]"
        )
    if not (p >= 0).all() or not np.allclose(p.sum(axis=-1), 1):
        raise ValueError(f"transitions has row sums {p.sum(axis=-1)}; expected distributions")
    if not (rho > 0).all() or not np.isclose(rho.sum(), 1):
        raise ValueError(f"initial is {rho}; expected positive probabilities that sum to 1")
    if not 0 <= discount < 1:
        raise ValueError(f"discount is {discount}; expected a number in [0, 1)")
    models = _models(visited, (states, actions))
    value, gradient = with_data(_mdp_value, _mdp_gradient, r, p, rho, discount)
    best = [optimal_policy(each, p, discount) for each in r]  # deterministic, [S] each
    shared = optimal_policy(r.mean(axis=0), p, discount)

    def occupancy(policy: np.ndarray) -> np.ndarray:
        chosen = p[np.arange(states), policy]
        return np.linalg.solve((np.eye(states) - discount * chosen).T, rho)

    def returns(reward: np.ndarray, policy: np.ndarray) -> float:
        return float(occupancy(policy) @ reward[np.arange(states), policy])

    policies = jax.nn.softmax(models)  # [n, S, A]
    known = [jnp.asarray(x, models.dtype) for x in (p, rho, discount)]
    occupied = jax.vmap(lambda policy: _occupancy(known[0], known[1], known[2], policy))(policies)

    def lemma(actions: np.ndarray) -> float:
        """Lower bound of ``||grad f_c|| sqrt(S) / (f_c - f_c^*)`` by the lemma."""
        visits = jnp.min(occupied / jnp.asarray(occupancy(actions), models.dtype), axis=1)
        return float(jnp.min(visits * jnp.min(policies[:, np.arange(states), actions], axis=1)))

    constants = FamilyConstants(
        alpha=2.0,
        mu=min(map(lemma, best)) ** 2 / states,
        L=8 / (1 - discount) ** 3,
        zeta=_largest_spread(gradient, len(r), models),
        infima=-np.array([returns(*pair) for pair in zip(r, best, strict=True)]),
        minimum=-returns(r.mean(axis=0), shared),
    )
    return Family(value, gradient, constants)


def optimal_policy(rewards: np.ndarray, transitions: np.ndarray, discount: float) -> np.ndarray:
    """The best action in every state ``[S]``, by policy iteration.

    Args:
        rewards: ``[S, A]``.
        transitions: ``[S, A, S]``.
        discount: in [0, 1).
    """
    rows = np.arange(len(rewards))
    policy = np.argmax(rewards, axis=1)
    while True:
        matrix = np.eye(len(rewards)) - discount * transitions[rows, policy]
        values = np.linalg.solve(matrix, rewards[rows, policy])
        advantages = rewards + discount * transitions @ values - values[:, None]
        # Ignores advantages at the level of rounding: ties would change the policy for ever.
        if (advantages <= 1e-12 * (1 + abs(values).max())).all():
            return policy
        policy = np.argmax(advantages, axis=1)


def _rewards(rewards: np.ndarray, ndim: int) -> np.ndarray:
    r = np.asarray(rewards, np.float64)
    if r.ndim != ndim:
        expected = "[M, A]" if ndim == 2 else "[M, S, A]"
        raise ValueError(f"rewards has shape {r.shape}; expected {expected}")
    if not ((r >= 0) & (r <= 1)).all():
        raise ValueError(f"rewards are in [{r.min()}, {r.max()}]; expected numbers in [0, 1]")
    return r


def _models(visited: np.ndarray, shape: tuple[int, ...]) -> Array:
    if np.shape(visited)[-len(shape) :] != shape:
        expected = ", ".join(map(str, ("...", *shape)))
        raise ValueError(f"visited has shape {np.shape(visited)}; expected [{expected}]")
    return jnp.asarray(visited, jnp.result_type(float)).reshape(-1, *shape)


def _largest_spread(gradient: Partial, num_clients: int, models: Array) -> float:
    return float(jax.vmap(lambda x: gradients(gradient, num_clients, x)[1])(models).max())


def _two_armed_value(d: Array, client: Array, x: Array) -> Array:
    return -d[client] * jax.nn.sigmoid(x)


def _two_armed_gradient(d: Array, client: Array, x: Array) -> Array:
    return -d[client] * jax.nn.sigmoid(x) * jax.nn.sigmoid(-x)


def _bandit_value(r: Array, client: Array, x: Array) -> Array:
    return -jax.nn.softmax(x) @ r[client]


def _bandit_gradient(r: Array, client: Array, x: Array) -> Array:
    policy = jax.nn.softmax(x)
    return -policy * (r[client] - policy @ r[client])


def _mdp_value(r: Array, p: Array, rho: Array, discount: Array, client: Array, x: Array) -> Array:
    policy = jax.nn.softmax(x)
    return -_occupancy(p, rho, discount, policy) @ (policy * r[client]).sum(axis=1)


def _mdp_gradient(
    r: Array, p: Array, rho: Array, discount: Array, client: Array, x: Array
) -> Array:
    policy = jax.nn.softmax(x)
    matrix = jnp.eye(len(rho), dtype=x.dtype) - discount * _policy_transitions(p, policy)
    values = jnp.linalg.solve(matrix, (policy * r[client]).sum(axis=1))  # the Bellman equation
    advantages = r[client] + discount * p @ values - values[:, None]
    return -_occupancy(p, rho, discount, policy)[:, None] * policy * advantages


def _policy_transitions(p: Array, policy: Array) -> Array:
    return jnp.einsum("sa,sat->st", policy, p)


def _occupancy(p: Array, rho: Array, discount: Array, policy: Array) -> Array:
    """``(I - gamma P_pi')^{-1} rho``: expected discounted visits of every state."""
    matrix = jnp.eye(len(rho), dtype=rho.dtype) - discount * _policy_transitions(p, policy)
    return jnp.linalg.solve(matrix.T, rho)
