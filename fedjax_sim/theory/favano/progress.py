r"""Constants a and b of FAVANO's bounds, and variances, from the law of the local steps.

Source: Equations 9, 10, 35 and 139 to 148 (see :mod:`fedjax_sim.theory.favano`).  A client's
progress is divided by alpha, so that fast and slow clients count alike.

Equations 139 to 148 apply the variance of independent draws of one mean to the gradients of a
moving model.  Conditioning on S and bounding how much a gradient depends on earlier noise,
``E||h||^2 <= S^2 B_t / 2 + S sigma^2 + S (sigma^2 + B_t / 4) / 12`` if ``eta <= 1 / (4 L K^2)``:
the theorem is proven with 13/12 of ``sigma^2``.  The functions leave that to the caller.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.theory.conditions import check_choice, positive
from fedjax_sim.theory.problem_constants import Scalar
from fedjax_sim.theory.step_counts import CappedSteps
from fedjax_sim.types import shown

__all__ = ["ProgressConstants", "progress_constants"]

Version = Literal["stochastic", "deterministic"]


@shown
class ProgressConstants(NamedTuple):
    """``mean_i E||h_i / alpha_i||^2 <= a sigma^2 + b (16 L^2 Phi / n + 8 G^2 + 8 B^2 g^2)``.

    In double precision; g is the length of the gradient at ``mu_t``.
    """

    a: Scalar  # mean of a_i
    b: Scalar
    clients: np.ndarray | None = None  # a_i


def progress_constants(
    steps: CappedSteps, *, local_steps: int, version: Version = "stochastic"
) -> ProgressConstants:
    r"""The constants a and b for a law of the local steps.

    Stochastic, :math:`\alpha_i = P_i S_i` with :math:`P_i = P(S_i > 0)`:

    .. math:: a_i = \frac{1}{K^2 P_i} + \frac{1}{P_i^2} E\Bigl[\frac{1(S_i > 0)}{S_i}\Bigr],
        \qquad b = \max_i \frac{1}{P_i}

    Deterministic, :math:`\alpha_i = E[S_i]`:

    .. math:: a_i = \frac{1}{E[S_i]} + \frac{E[S_i^2]}{K^2 E[S_i]^2},
        \qquad b = \max_i \frac{E[S_i^2]}{E[S_i]^2}

    Args:
        steps: the law of S for each client.
        local_steps: the cap K that the law was computed with.
        version: the reweighting.

    Raises:
        ValueError: a client that never does a step; ``local_steps`` below 1 or below ``E[S]``; an
            unknown version.

    References:
        Equations 9, 10 and 148 (see the errata).

    Example:
        >>> from fedjax_sim.theory.step_counts import geometric
        >>> slow = geometric(1 / 16, cap=20)
        >>> round(progress_constants(slow, local_steps=20, version="deterministic").b, 3)
        1.364
    """
    check_choice("version", version, Version)
    p, mean, second, inverse = moments_of(steps)
    if local_steps < 1 or np.any(mean > local_steps * (1 + 1e-12)):
        raise ValueError(
            f"local_steps is {local_steps}; expected the cap of steps, whose mean is {mean}"
        )
    if version == "stochastic":
        a, b = 1 / (local_steps**2 * p) + inverse / p**2, 1 / p
    else:
        b = second / mean**2
        a = 1 / mean + b / local_steps**2
    return ProgressConstants(float(a.mean()), float(b.max()), a)


def checked(progress: ProgressConstants) -> tuple[Array, Array]:
    """a and b as floating arrays."""
    a, b = positive(a=progress.a, b=progress.b)
    return a, b


def moments_of(steps: CappedSteps) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the four moments ``[n]`` of clients that do steps, in double precision."""
    p, mean, second, inverse = (np.asarray(x, np.float64) for x in steps)
    if not np.all(p > 0):
        raise ValueError(f"steps.p_active is {p}; expected clients that do steps")
    return p, mean, second, inverse
