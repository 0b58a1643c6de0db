r"""Advice from theory on a user's own task, and its gap to practice.

:func:`fedjax_sim.advise` measures the constants of a task, checks the conditions of convergence
theorems, and computes the rates, numbers of local steps and rounds that they prescribe.  It adds
nothing to the theory: constants come from :mod:`fedjax_sim.diagnostics`, bounds from
:mod:`fedjax_sim.theory`, runs from :func:`fedjax_sim.sweep` and the engine.
"""

from fedjax_sim.studies.advice.conditions import Condition, Sizes
from fedjax_sim.studies.advice.gap import Gap, SettingRun
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Prediction, Setting
from fedjax_sim.studies.advice.result import Advice
from fedjax_sim.studies.advice.sources import Source
from fedjax_sim.studies.advice.theorems import THEOREMS, Theorem

__all__ = [
    "THEOREMS",
    "Advice",
    "Condition",
    "Gap",
    "Measurement",
    "Prediction",
    "Setting",
    "SettingRun",
    "Sizes",
    "Source",
    "Theorem",
]
