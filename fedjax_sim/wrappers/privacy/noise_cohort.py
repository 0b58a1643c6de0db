"""Noise of a larger cohort than the simulated one, as simulators of private learning add it.

References:
    pfl-research, https://github.com/apple/pfl-research (``noise_cohort_size``).
"""

from __future__ import annotations

from typing import NamedTuple

from fedjax_sim.checks import check_at_most, check_count, import_extra
from fedjax_sim.types import plain_integers, shown
from fedjax_sim.wrappers.privacy.accounting import (
    INTERVAL,
    Accountant,
    Guarantee,
    accountant_of,
    calibrate,
)
from fedjax_sim.wrappers.privacy.events import Mechanism


@shown
class NoiseCohort(NamedTuple):
    """Noise that forecasts a run with a larger cohort.

    Example:
        >>> forecast = NoiseCohort(0.03, Guarantee(2.0, 1e-6, "add_or_remove_one", "pld", "..."))
        >>> print(forecast)
        forecast of epsilon 2 at delta 1e-06 (...); the simulated run is not private at that epsilon
    """

    noise_multiplier: float  # of the simulated cohort, for privatize
    guarantee: Guarantee  # of the run with the larger cohort

    def __str__(self) -> str:
        return f"forecast of {self.guarantee}; the simulated run is not private at that epsilon"


@plain_integers
def noise_cohort(
    epsilon: float,
    delta: float,
    *,
    num_rounds: int,
    cohort_size: int,
    noise_cohort_size: int,
    population: int,
    accountant: Accountant | None = None,
    interval: float = INTERVAL,
) -> NoiseCohort:
    r"""Returns the noise multiplier with which a small cohort has a larger one's signal to noise.

    A run with Poisson cohorts of :math:`\tilde m` clients needs z for a target epsilon at
    :math:`q = \tilde m / M`.  Its mean has noise :math:`z C / \tilde m`, and so has that of m
    clients with the noise multiplier :math:`z m / \tilde m`.  The result is a forecast of the
    larger run: the simulated one has less noise than its own cohort needs, and
    :func:`~fedjax_sim.wrappers.privacy.epsilon` returns the epsilon that it has itself.

    Args:
        epsilon: target of the larger run.
        delta: target, in (0, 1).
        num_rounds: T.
        cohort_size: m, simulated clients per round.
        noise_cohort_size: :math:`\tilde m`, clients per round of the larger run.
        population: M, clients of the larger run.
        accountant, interval: as in :func:`~fedjax_sim.wrappers.privacy.noise_multiplier`.

    Raises:
        ValueError: sizes that decrease from ``cohort_size`` to ``population``, a number below 1, or
            a target that no noise multiplier meets.
        ImportError: dp-accounting is not installed.

    Example:
        >>> forecast = noise_cohort(2.0, 1e-6, num_rounds=1500, cohort_size=50,
        ...                         noise_cohort_size=1000, population=10**6)
        >>> round(forecast.noise_multiplier * 1000 / 50, 3)
        0.616
    """
    check_count(1, num_rounds=num_rounds, cohort_size=cohort_size)
    check_count(cohort_size, noise_cohort_size=noise_cohort_size)
    check_at_most(population, noise_cohort_size=noise_cohort_size)
    probability = noise_cohort_size / population
    rule = f"cohorts of {noise_cohort_size} of {population} clients, Poisson sampling"

    def mechanism(z: float) -> Mechanism:
        dp = import_extra("dp_accounting", "privacy")
        event = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(z))
        event = dp.SelfComposedDpEvent(event, num_rounds)
        return Mechanism(event, "add_or_remove_one", rule)

    z = calibrate(mechanism, epsilon, delta, accountant=accountant, interval=interval)
    name = accountant_of(mechanism(z), accountant, interval)
    guarantee = Guarantee(epsilon, delta, "add_or_remove_one", name, rule)
    return NoiseCohort(z * cohort_size / noise_cohort_size, guarantee)
