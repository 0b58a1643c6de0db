"""Published bounds as functions of their constants, to put beside measurements."""

from fedjax_sim.theory import fedswa, fedswa_rates

__all__ = ["fedswa", "fedswa_rates"]
