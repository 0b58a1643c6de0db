"""Test problems: optima in closed form, planted models and attained bounds."""

from fedjax_sim.problems import (
    asymmetric,
    quadratics,
    recovery,
    synthetic,
)

__all__ = [
    "asymmetric",
    "quadratics",
    "recovery",
    "synthetic",
]
