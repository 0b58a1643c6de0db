"""Published bounds as functions of the named constants of a problem.

All bounds have the form ``bound(constants, *, lr, local_steps, rounds, clients)``: constants of the
problem are fields of :class:`ProblemConstants`, which
:func:`fedjax_sim.diagnostics.constants.measure` measures, and numbers of the run are keyword
arguments.  Prescribed learning rates and tuned bounds have the same form without ``lr``.  "Needs"
in the docstring of a function or of its module lists the fields of ``constants`` that it uses; the
others may be unknown.

* A constant that a bound needs and that is unknown raises a ValueError that names it; so does a
  constant or number that is negative (or 0, where it must be positive), a share above 1, and an
  unknown regime, method or variant.
* Where the condition of a theorem does not hold the value is NaN, with a warning that states the
  condition.  Traced values are not checked and do not warn.
* Misprints of the papers are corrected; docs/errata.md lists each of them.
"""

from fedjax_sim.theory import (
    compression,
    conditions,
    favano,
    fedac,
    fedavg,
    feddualavg,
    fedswa,
    lojasiewicz,
    orders,
    step_counts,
    step_sizes,
)
from fedjax_sim.theory.conditions import at_most, check_choice, non_negative, positive, where_valid
from fedjax_sim.theory.favano.progress import ProgressConstants, Version, checked, moments_of
from fedjax_sim.theory.favano.rates import POSSIBLE, possible, rate_terms
from fedjax_sim.theory.fedavg import SMALL_LR
from fedjax_sim.theory.feddualavg import VALID_LR, dual_discrepancy
from fedjax_sim.theory.fedswa.convergence import cohort_variance
from fedjax_sim.theory.lojasiewicz import ONE_ROUND, exponent, one_round, one_round_condition
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar, is_known
from fedjax_sim.theory.step_counts import CappedSteps
from fedjax_sim.theory.step_sizes import best_lr, optimal_lr, smallest

__all__ = [
    "ProblemConstants",
    "best_lr",
    "compression",
    "favano",
    "fedac",
    "fedavg",
    "feddualavg",
    "fedswa",
    "lojasiewicz",
    "optimal_lr",
    "orders",
    "step_counts",
    "step_sizes",
]
