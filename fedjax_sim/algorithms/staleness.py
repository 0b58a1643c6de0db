"""Weights of uploads that depend on the visit's number of steps or its staleness.

References:
    "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv 2305.16099, Equation 3.
    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019, Section 5.2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.algorithms._shared import real
from fedjax_sim.checks import check_at_least, check_at_most, largest_entries, least_entries
from fedjax_sim.types import Scalar, Work, specified

StalenessWeight = Callable[[Array], Array]
Reweighting = Callable[[Work], Array]


class PerClient(NamedTuple):
    """A weight of visits with one constant per client.

    An algorithm that takes it checks the number of constants against the task.
    """

    name: str  # of the constants, for error messages
    values: Array  # [M]
    weight: Callable[[Array, Work], Array]  # (the client's constant, its visit) -> weight

    def __call__(self, work: Work) -> Array:
        return self.weight(real(self.values)[work.client], work)


def expected_steps(mean: Array) -> PerClient:
    r"""FAVANO's deterministic :math:`\alpha_i = E[E_i \wedge K]`; ``mean`` ``[M]`` per client.

    Raises:
        ValueError: a negative mean.

    Example:
        >>> work = Work(0, jnp.array(1), jnp.array(3), 1, 0, None, 20)
        >>> float(expected_steps(jnp.array([12.5, 2.2]))(work)) > 2
        True
    """
    check_at_least(0, **least_entries(mean=mean))
    return PerClient("expected_steps.mean", mean, _constant)  # Eq. (3)


def _constant(mean: Array, work: Work) -> Array:
    return mean


def realised_steps(p_active: Array) -> PerClient:
    r"""FAVANO's stochastic :math:`\alpha_i = P(E_i > 0)\,(E_i \wedge K)`; ``p_active`` ``[M]``.

    Raises:
        ValueError: a probability outside [0, 1].

    Example:
        >>> work = Work(0, jnp.array(1), jnp.array(3), 1, 0, None, 20)
        >>> float(realised_steps(jnp.array([1.0, 0.5]))(work))
        1.5
    """
    check_at_least(0, **least_entries(p_active=p_active))
    check_at_most(1, **largest_entries(p_active=p_active))
    return PerClient("realised_steps.p_active", p_active, _times_steps)


def _times_steps(p_active: Array, work: Work) -> Array:
    return p_active * real(work.num_steps)  # Eq. (3)


def constant(staleness: Array) -> Array:
    """Returns the weight 1 for every staleness.

    Example:
        >>> float(constant(jnp.array(7)))
        1.0
    """
    return jnp.ones_like(staleness, dtype=float)


@specified
def polynomial(power: Scalar) -> StalenessWeight:
    r"""The weight :math:`(1 + \tau)^{-c}`.

    Raises:
        ValueError: a negative power.

    Example:
        >>> float(polynomial(0.5)(jnp.array(3)))
        0.5
    """
    check_at_least(0, power=power)
    return lambda staleness: (1 + real(staleness)) ** -real(power)


@specified
def hinge(patience: Scalar, slope: Scalar) -> StalenessWeight:
    r"""The weight 1 up to a staleness of b, then :math:`1 / (c (\tau - b) + 1)`.

    Raises:
        ValueError: a negative number, with which a weight may be infinite.

    Example:
        >>> [round(float(w), 3) for w in hinge(4, 10)(jnp.array([4, 5]))]
        [1.0, 0.091]
    """
    check_at_least(0, patience=patience, slope=slope)

    def weight(staleness: Array) -> Array:
        late = jnp.maximum(real(staleness) - real(patience), 0)
        return 1 / (real(slope) * late + 1)

    return weight
