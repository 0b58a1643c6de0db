r"""Named constants of a federated problem, the arguments of all bounds in this package.

Definitions.  F is the mean of the clients' objectives ``F_m``, ``x_0`` the initial model, ``x*`` a
minimiser of F.  Every bound documents the constants it needs; the others may be unknown.  Norms are
Euclidean, except in :mod:`~fedjax_sim.theory.feddualavg`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.types import shown

Scalar: TypeAlias = Array | float  # a number, or a traced one


@shown
class ProblemConstants(NamedTuple):
    r"""Constants of a problem; None or NaN means unknown.

    Values may be traced or arrays, so that a bound can be plotted by ``vmap`` over any of them.

    Example:
        >>> constants = ProblemConstants(L=2.0, sigma=0.5)
        >>> constants._replace(zeta=0.0).known
        {'L': 2.0, 'sigma': 0.5, 'zeta': 0.0}
    """

    L: Scalar | None = None
    """Smoothness: every client's gradient is L-Lipschitz."""
    mu: Scalar | None = None
    """Strong convexity of F; a bound that holds with and without it treats 0 as unknown."""
    sigma: Scalar | None = None
    """``sigma^2`` bounds the variance of a stochastic gradient, at every model."""
    sigma4: Scalar | None = None
    """``sigma4^4`` bounds the fourth central moment of a stochastic gradient."""
    Q: Scalar | None = None
    """Lipschitz constant of every client's Hessian; 0 for quadratics."""
    G: Scalar | None = None
    """Bound of the norm of a stochastic gradient: losses are G-Lipschitz."""
    zeta: Scalar | None = None
    """Bound of ``||grad F_m - grad F||`` for every client m and model; 0: one objective."""
    zeta_mean: Scalar | None = None
    """Bound of the root mean square over clients of ``||grad F_m - grad F||``."""
    sigma_g: Scalar | None = None
    """Bound of the mean over clients of ``||grad F_m - grad F||``."""
    zeta_star: Scalar | None = None
    """Root mean square over clients of ``||grad F_m(x*)||``."""
    dissimilarity: Scalar | None = None
    r"""G of ``mean_m ||grad F_m||^2 <= G^2 + B^2 ||grad F||^2``; ``zeta_mean`` if B is 1."""
    dissimilarity_factor: Scalar | None = None
    """B of the same inequality, at least 1."""
    B: Scalar | None = None
    """Initial distance ``||x_0 - x*||``."""
    B_h: Scalar | None = None
    """``B_h^2 = D_h(x*, x_0)``, a Bregman divergence: ``B / sqrt(2)`` for ``h = ||x||^2 / 2``."""
    Delta: Scalar | None = None
    """Initial suboptimality ``F(x_0) - inf F``."""
    lojasiewicz_mu: Scalar | None = None
    r"""mu of ``||grad F_m||^2 >= mu (F_m - inf F_m)^alpha``, at the visited models."""
    lojasiewicz_alpha: Scalar | None = None
    """alpha of the same inequality, from [1, 2]."""

    @property
    def known(self) -> dict[str, Any]:
        """Known constants by name."""
        return {name: value for name, value in self._asdict().items() if is_known(value)}


def is_known(value: Any) -> bool:
    """Returns whether a constant has a value: neither None nor a concrete NaN."""
    if value is None:
        return False
    return isinstance(value, Tracer) or not bool(np.any(np.isnan(np.asarray(value))))
