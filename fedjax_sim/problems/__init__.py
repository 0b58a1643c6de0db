"""Test problems: optima in closed form, attained bounds, and instances on which methods fail."""

from fedjax_sim.problems import (
    agd_instability,
    asymmetric,
    fmri,
    lojasiewicz,
    lower_bound,
    quadratics,
    recovery,
    synthetic,
)

__all__ = [
    "agd_instability",
    "asymmetric",
    "fmri",
    "lojasiewicz",
    "lower_bound",
    "quadratics",
    "recovery",
    "synthetic",
]
