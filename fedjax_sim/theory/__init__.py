"""Published bounds as functions of their constants, to put beside measurements."""

from fedjax_sim.theory import (
    fedac,
    fedac_convex,
    fedac_ii,
    fedac_ii_convex,
    fedavg,
    fedavg_nonconvex,
    fedavg_strongly_convex,
    fedavg_third_order,
    fedswa,
    fedswa_rates,
    heterogeneity_report,
    iterate_bias,
    orders,
    step_sizes,
)

__all__ = [
    "fedac",
    "fedac_convex",
    "fedac_ii",
    "fedac_ii_convex",
    "fedavg",
    "fedavg_nonconvex",
    "fedavg_strongly_convex",
    "fedavg_third_order",
    "fedswa",
    "fedswa_rates",
    "heterogeneity_report",
    "iterate_bias",
    "orders",
    "step_sizes",
]
