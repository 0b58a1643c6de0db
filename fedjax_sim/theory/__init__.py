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
    lojasiewicz,
    lojasiewicz_rounds,
    orders,
    overlays,
    prescribed,
    step_sizes,
)
from fedjax_sim.theory.overlays import overlay
from fedjax_sim.theory.prescribed import optimal_lr

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
    "lojasiewicz",
    "lojasiewicz_rounds",
    "optimal_lr",
    "orders",
    "overlay",
    "overlays",
    "prescribed",
    "step_sizes",
]
