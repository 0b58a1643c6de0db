"""Test problems that satisfy an alpha-Lojasiewicz inequality with known constants."""

from fedjax_sim.problems.lojasiewicz.families import (
    logistic,
    power,
    quadratic,
    sine_quadratic,
    softplus_tilted,
)
from fedjax_sim.problems.lojasiewicz.family import (
    Family,
    FamilyConstants,
    gap,
    gaussian,
    gradients,
    noisy_task,
    sphere,
)
from fedjax_sim.problems.lojasiewicz.policies import softmax_bandit, softmax_mdp, two_armed_bandit

__all__ = [
    "Family",
    "FamilyConstants",
    "gap",
    "gaussian",
    "gradients",
    "logistic",
    "noisy_task",
    "power",
    "quadratic",
    "sine_quadratic",
    "softmax_bandit",
    "softmax_mdp",
    "softplus_tilted",
    "sphere",
    "two_armed_bandit",
]
