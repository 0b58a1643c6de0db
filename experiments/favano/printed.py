"""Bounds of FAVANO's paper as printed, beside the corrected ones (docs/errata.md)."""

from typing import Any

import fedjax_sim as fs


def largest_lr(
    constants: fs.theory.ProblemConstants,
    *,
    progress: fs.theory.favano.progress.ProgressConstants,
    local_steps: int,
    clients: int,
    cohort_size: int,
) -> float:
    """Theorem 1's largest rate, ``1 / (20 B^2 b K L s)``."""
    del clients
    L, B = fs.theory.conditions.positive(constants, "L", "dissimilarity_factor")
    return float(1 / (20 * B**2 * progress.b * local_steps * L * cohort_size))


def mean_gradient_bound(
    constants: fs.theory.ProblemConstants,
    *,
    lr: float,
    progress: fs.theory.favano.progress.ProgressConstants,
    local_steps: int,
    rounds: int,
    clients: int,
    cohort_size: int,
) -> float:
    """Theorem 1, without the terms in K^2 and with 5600 for 5760."""
    del local_steps
    (L,), s, (a, b, _) = fs.theory.conditions.positive(constants, "L"), cohort_size, progress
    sigma, G, Delta = fs.theory.conditions.non_negative(
        constants, "sigma", "dissimilarity", "Delta"
    )
    start = 2 * (clients + 1) * Delta / (rounds * s * lr)
    linear = L * s / (clients + 1) * (a * sigma**2 + 8 * b * G**2)
    quadratic = L**2 * s**2 * (720 * a * sigma**2 + 5600 * b * G**2)
    return float(start + linear * lr + quadratic * lr**2)


def potential_bound(
    *, potential: Any, squared_progress: Any, lr: float, clients: int, cohort_size: int
) -> Any:
    """Equation 6 with the contraction ``s (n - s) / (2 n (n + 1) (s + 1))``."""
    n, s = clients, cohort_size
    kappa = s * (n - s) / (2 * n * (n + 1) * (s + 1))
    return (1 - kappa) * potential + 3 * (s * lr) ** 2 / n * squared_progress
