"""Learning rates that bounds prescribe, and the parts that their formulas share.

Theorems choose a rate as the smallest of several, most of them infinite without noise.  The price
is logarithms of ratios such as ``mu^5 K^2 R^8 Phi / (Q^2 sigma^4)``, which exceed single precision;
functions here therefore take the logarithms of such ratios.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import positive
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.types import shown

__all__ = ["BestRate", "best_lr", "optimal_lr"]


@shown
class BestRate(NamedTuple):
    """The best rate of a grid."""

    lr: Array
    value: Array  # the bound at it


def optimal_lr(
    rule: Callable[..., Array],
    constants: ProblemConstants,
    *,
    limit: Scalar | None = None,
    **numbers: Any,
) -> Array:
    r"""The learning rate that a theorem prescribes, or at which a bound is smallest.

    Args:
        rule: a function of this package: a prescribed rate such as
            :func:`fedjax_sim.theory.fedavg.prescribed_lr`, which is called, or a bound with
            an argument ``lr``, which is minimised on the grid of :func:`best_lr`.
        constants: as measured.
        limit: largest rate of the grid; default 1 / L, above which no theorem on FedAvg or FedAc
            allows rates.
        numbers: the other arguments of ``rule``.

    Raises:
        ValueError: a constant is unknown; the bound holds at no rate of the grid.

    Example:
        >>> from fedjax_sim.theory import fedavg
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.0, B=1.0)
        >>> run = {"regime": "convex", "clients": 4, "local_steps": 4, "rounds": 100}
        >>> exact = optimal_lr(fedavg.prescribed_lr, constants, **run)
        >>> numeric = optimal_lr(fedavg.bound, constants, **run)
        >>> round(float(exact), 3), round(float(numeric), 3)
        (0.085, 0.032)
    """
    if "lr" in numbers or "lr" not in inspect.signature(rule).parameters:
        return rule(constants, **numbers)
    largest_lr = 1 / positive(constants, "L")[0] if limit is None else limit
    with jax.debug_nans(False):  # NaN is what bounds return where they do not hold
        best = best_lr(lambda lr: rule(constants, **numbers, lr=lr), largest_lr)
    if not bool(jnp.isfinite(best.value)):
        raise ValueError(f"limit is {largest_lr}; expected rates below it at which the bound holds")
    return best.lr


def best_lr(
    bound: Callable[[Array], Array], limit: Scalar, *, decades: float = 6.0, num: int = 301
) -> BestRate:
    r"""The rate of two logarithmic grids at which a bound is smallest.

    The first grid is ``limit 10^(-decades i / (num - 1))``, i = 0 .. num - 1; the second divides
    the space between the neighbours of its best point into ``num - 1`` equal factors q, by default
    1.0003.  A bound with one minimum, a sum of falling and growing powers of the rate, exceeds it
    by at most the factor ``q^p`` for the largest growing power p; one with the term
    ``exp(-c lr)`` by at most the factor ``exp(c lr (q - 1))``, if that is larger.  Use it for
    bounds whose paper has no closed form of the rate, or to see how much a closed form loses.

    Args:
        bound: the bound as a function of the rate alone.
        limit: the largest rate that the bound's theorem allows.
        decades: extent of the first grid, positive.
        num: number of points of each grid, at least 2.

    Returns:
        The rate and the bound there; NaNs are skipped.

    Raises:
        ValueError: ``limit`` or ``decades`` not positive, ``num`` below 2.

    Example:
        >>> found = best_lr(lambda lr: 1 / lr + lr, 10.0)  # 2 at 1
        >>> round(float(found.lr), 2), round(float(found.value), 2)
        (1.0, 2.0)
    """
    if num < 2:
        raise ValueError(f"num is {num}; expected at least 2 points")
    limit, span = positive(limit=limit, decades=decades)

    def smallest_between(first: Array, last: Array) -> tuple[Array, BestRate]:
        """Returns the position of the best rate ``limit 10^-e``, e between the two, and both."""
        lrs = limit * 10 ** -jnp.linspace(first, last, num)
        values = jax.vmap(bound)(lrs)
        best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        return best, BestRate(lrs[best], values[best])

    best, coarse = smallest_between(jnp.zeros_like(span), span)
    neighbours = jnp.clip(jnp.stack([best - 1, best + 1]), 0, num - 1).astype(span.dtype)
    _, fine = smallest_between(*(span * neighbours / (num - 1)))
    # An even number of points leaves out the best one of the first grid.
    is_better = fine.value < coarse.value
    return BestRate(*(jnp.where(is_better, a, b) for a, b in zip(fine, coarse, strict=True)))


def smallest(*entries: Array) -> Array:
    """The smallest entry, elementwise; entries that a zero constant makes infinite drop out."""
    return functools.reduce(jnp.minimum, entries)


def largest(*entries: Array) -> Array:
    """The largest entry, elementwise."""
    return functools.reduce(jnp.maximum, entries)


def log_monomial(*factors: tuple[Array, float]) -> Array:
    """``log(prod_i x_i^p_i)`` for pairs ``(x_i, p_i)``, without the product."""
    return functools.reduce(jnp.add, [power * jnp.log(x) for x, power in factors])


def log_plus(exponent: float, log_ratio: Array) -> Array:
    """``log(e^exponent + ratio)``, given the logarithm of the ratio."""
    return jnp.logaddexp(exponent, log_ratio)


def times_log(coefficient: Array, logarithm: Array, power: int) -> Array:
    """``coefficient logarithm^power``; 0 for a coefficient of 0, even at infinite logarithms."""
    finite = jnp.where(coefficient > 0, logarithm, 1.0)
    return coefficient * finite**power
