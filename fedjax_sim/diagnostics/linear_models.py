r"""Constants of linear models, computed from the data; they hold at every model.

If a loss depends only on the scores ``z = W x`` (x contains a 1 for the intercept), its derivatives
with respect to W are its derivatives with respect to z times the features. Therefore bounds on the
latter (:class:`Link`) bound gradients, Hessians and third derivatives at every model and not only
at visited models.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.objectives import as_float
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import shown


@shown
class Link(NamedTuple):
    """Suprema of the norms of a loss function's derivatives with respect to the scores.

    Example:
        >>> squared_error = Link(gradient=math.inf, hessian=2.0, third=0.0)  # (z - y)^2
        >>> squared_error.hessian
        2.0
    """

    gradient: float
    hessian: float
    third: float


LOGISTIC = Link(1.0, 1 / 4, 1 / (6 * math.sqrt(3)))
"""``log(1 + e^z) - y z``: derivatives s - y, s (1 - s), s (1 - s) (1 - 2 s) of the sigmoid s."""

SOFTMAX = Link(math.sqrt(2), 1 / 2, math.sqrt(2) / (3 * math.sqrt(3)))
r"""``log sum_c e^(z_c) - z_y``: the gradient ``p - e_y``; second and third derivatives along v are
the variance and the third central moment of ``v_c`` under p. The range of ``v_c`` is at most
``sqrt(2) ||v||``, so the derivatives are at most ``1 / 4`` of its square and ``1 / (6 sqrt(3))`` of
its cube."""

LEAST_SQUARES = Link(math.inf, 1.0, 0.0)
"""``(z - y)^2 / 2``."""


@shown
class LinearModelBounds(NamedTuple):
    """Bounds that hold at every model; sigma is for gradients of one example."""

    L: float  # smoothness of every client's objective
    client_L: np.ndarray  # [M]
    total_L: float  # of the mean objective
    mu: float  # strong convexity of every objective: l2
    Q: float  # Lipschitz constant of every client's Hessian
    G: float  # norm of one example's gradient; infinite with l2
    sigma: float  # root of one example's gradient's second moment, l2 apart
    zeta: float  # ||grad F_m - grad F||, in which l2 cancels

    def constants(self, batch_size: int = 1) -> ProblemConstants:
        """Returns the finite bounds as constants of :mod:`fedjax_sim.theory`.

        Gradients are means over minibatches of ``batch_size`` examples that are drawn with
        replacement.  ``F_m`` is mu-strongly convex, so ``||grad F_m||^2 >= 2 mu (F_m - inf F_m)``.

        Raises:
            ValueError: a batch size below 1.

        Example:
            >>> x = np.array([[3.0], [1.0]])
            >>> bounds = linear_model_bounds(x, [0, 1, 2], LOGISTIC, l2=0.25, intercept=False)
            >>> bounds.constants().L, bounds.constants(batch_size=9).sigma, bounds.constants().G
            (2.5, 1.0, None)
        """
        check_count(1, batch_size=batch_size)
        values = {
            "L": self.L,
            "mu": self.mu,
            "Q": self.Q,
            "G": self.G,
            "sigma": self.sigma / math.sqrt(batch_size),
            "zeta": self.zeta,
            "zeta_mean": self.zeta,
        }
        if self.mu > 0:
            values |= {"lojasiewicz_mu": 2 * self.mu, "lojasiewicz_alpha": 1.0}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        return ProblemConstants(**finite)


def linear_model_bounds(
    features: Any,
    offsets: Any,
    link: Link,
    *,
    l2: float = 0.0,
    intercept: bool = True,
) -> LinearModelBounds:
    r"""Bounds on the derivatives of ``F_m(W) = mean_j loss(W x_mj; y_mj) + l2 / 2 ||W||^2``.

    With c_1, c_2, c_3 of the link, and means over client m's examples:

    .. math:: L_m = c_2 \lambda_{\max}\Bigl(\frac{X_m^\top X_m}{n_m}\Bigr) + l_2, \qquad
        Q_m = c_3 \max_j \|x_{mj}\| \lambda_{\max}\Bigl(\frac{X_m^\top X_m}{n_m}\Bigr), \qquad
        G = c_1 \max \|x\|

    .. math:: \sigma^2 = c_1^2 \max_m \overline{\|x_m\|^2}, \qquad
        \zeta = c_1 \Bigl(\max_m \overline{\|x_m\|}
        + \frac{1}{M} \sum_m \overline{\|x_m\|}\Bigr)

    Minibatches of b examples that are drawn with replacement have ``sigma / sqrt(b)``. Eigenvalues
    are computed in double precision from the smaller of the two Gram matrices.

    Args:
        features: ``[N, ...]``, flattened; :func:`fedjax_sim.objectives.as_float` converts uint8.
        offsets: ``[M + 1]`` first rows of the clients (``FederatedData.offsets``).
        link: :data:`LOGISTIC`, :data:`SOFTMAX` or :data:`LEAST_SQUARES`.
        l2: weight of the regulariser, which includes the intercept.
        intercept: True if the model has an intercept.

    Raises:
        ValueError: a negative l2, a client without examples, offsets that do not begin at 0 or
            end at the number of features.

    Source: Boehning (1992), "Multinomial logistic regression algorithm", for the 1 / 2.

    Example:
        >>> x = np.array([[3.0], [1.0]])
        >>> bounds = linear_model_bounds(x, [0, 1, 2], LOGISTIC, intercept=False)
        >>> bounds.L, bounds.total_L, bounds.G
        (2.25, 1.25, 3.0)
    """
    check_at_least(0, l2=l2)
    offsets = np.asarray(offsets)
    sizes = np.diff(offsets)
    if len(sizes) < 1 or sizes.min() < 1:
        raise ValueError(f"offsets has clients of sizes {sizes.tolist()}; expected at least 1 each")
    num_rows = len(features)
    if (offsets[0], offsets[-1]) != (0, num_rows):
        raise ValueError(
            f"offsets goes from {offsets[0]} to {offsets[-1]}; expected from 0 to {num_rows}, the "
            "rows of features"
        )
    x = np.asarray(as_float(jnp.asarray(features)), np.float64).reshape(num_rows, -1)
    if intercept:
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    norms = np.linalg.norm(x, axis=1)
    parts = [slice(a, b) for a, b in itertools.pairwise(offsets)]
    tops = np.array([_top(x[part]) / (part.stop - part.start) for part in parts])
    # All clients have the same weight in F, independent of their sizes.
    total = _top(x / np.sqrt(np.repeat(sizes, sizes))[:, None]) / len(sizes)
    means = np.array([norms[part].mean() for part in parts])
    squares = np.array([(norms[part] ** 2).mean() for part in parts])
    largest = np.array([norms[part].max() for part in parts])
    return LinearModelBounds(
        L=float(link.hessian * tops.max() + l2),
        client_L=link.hessian * tops + l2,
        total_L=float(link.hessian * total + l2),
        mu=float(l2),
        Q=float((link.third * largest * tops).max()),
        G=float(link.gradient * norms.max()) if l2 == 0 else math.inf,
        sigma=float(link.gradient * math.sqrt(squares.max())),
        zeta=float(link.gradient * (means.max() + means.mean())),
    )


def _top(x: np.ndarray) -> float:
    """The largest eigenvalue of ``x' x``."""
    gram = x @ x.T if len(x) < x.shape[1] else x.T @ x
    return float(np.linalg.eigvalsh(gram)[-1])
