"""Test problems: optima in closed form, planted models and attained bounds."""

from fedjax_sim.problems import asymmetric, quadratics, recovery

__all__ = ["asymmetric", "quadratics", "recovery"]
