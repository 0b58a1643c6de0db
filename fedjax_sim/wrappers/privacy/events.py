"""Events for an accountant: one per rule by which clients are sampled.

Nothing is derived here: events are objects of the library dp-accounting, which computes epsilon, or
of the two classes of events that it lacks.
A timeline whose rule has no known amplification counts by the largest number of visits of one
client.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.timelines import Sampling, overflow_probability
from fedjax_sim.types import Timeline, shown
from fedjax_sim.wrappers.privacy.participation import check_independent_of_data, most_visits

# Neighbouring populations: one client is absent; one client's upload becomes 0; one client has
# other data.
Adjacency = Literal["add_or_remove_one", "zero_out", "replace_one"]
Accountant = Literal["pld", "rdp", "monte_carlo"]


@shown
class Mechanism(NamedTuple):
    """All releases of a run, as an accountant counts them.

    Under ``replace_one`` the event has the noise multiplier per unit of sensitivity, z / 2, as the
    RDP accountant of dp-accounting expects it; its PLD accountant would double the sensitivity of
    other events itself.
    """

    event: Any  # dp_accounting.DpEvent of all rounds
    adjacency: Adjacency
    rule: str  # the sampling rule in words
    accountants: tuple[Accountant, ...] = ("pld", "rdp")  # that may count it, the default first
    extra_delta: float = 0.0  # probability of a run that the event does not cover
    cut: float = 0.0  # bound of the probability that a cohort is cut to the slots


def sampled_gaussian(noise_multiplier: float, timeline: Timeline, num_clients: int) -> Mechanism:
    r"""Returns the mechanism of Gaussian noise that is independent in every round.

    ==================== ================================================= =================
    timeline             event, with the noise multiplier z                adjacency
    ==================== ================================================= =================
    ``bernoulli``        Poisson sampling, z                               add or remove one
    ``poisson``          Poisson sampling cut to the slots, z              zero-out
    ``uniform``          without replacement, S of M clients, z / 2        replace one
    ``stratified``       the same, of the smallest stratum                 replace one
    ``balls_in_bins``    one of b rounds, z, or once z / sqrt(passes)      add or remove one
    ``b_min_sep``        Monte Carlo, z                                    add or remove one
    all others           Gaussian, z, once per visit of one client         zero-out
    ==================== ================================================= =================

    ``dropout`` lowers the probability of Poisson sampling; elsewhere it is not counted, which is
    safe, except that it makes empty rounds more probable.  A cohort that takes part in r rounds in
    a row counts as one draw with :math:`z / \sqrt r`.  Groups of clients that take turns
    (``grouped_bernoulli``) count once per turn of a client's group.  Rounds that were cut from a
    longer timeline count every cohort and every pass that they meet.

    The engine discards the update of an empty round, so that a reader sees that it was empty.  One
    client decides this only if all others are absent, in any of T rounds with a probability of at
    most :math:`T (1 - q)^{M - 1}`, which is ``extra_delta``.  Under the other two adjacencies the
    cohorts of neighbours are equal.
    """
    dp, rule = import_extra("dp_accounting", "privacy"), timeline.sampling
    if rule is None or rule.kind in ("fixed", "durations"):
        return _per_visit(noise_multiplier, timeline)
    draws = math.ceil(_met(timeline, rule.repeats) / rule.groups)
    if rule.redrawn:
        draws = _met(timeline, rule.repeats * rule.groups)
    z = noise_multiplier / math.sqrt(rule.repeats)
    if rule.kind == "without_replacement":
        event = dp.SampledWithoutReplacementDpEvent(
            rule.population, rule.size, dp.GaussianDpEvent(z / 2)
        )
        words = f"{rule.size} of {rule.population} clients without replacement"
        event = dp.SelfComposedDpEvent(event, draws)
        return Mechanism(event, "replace_one", words)
    if rule.kind == "bins":
        # All passes show one place of the client, with a less noisy sum, unless it is redrawn.
        times, z = (draws, z) if rule.redrawn else (1, z / math.sqrt(draws))
        event = dp.SelfComposedDpEvent(allocation_event()(rule.groups, z), times)
        again = "drawn in every pass" if rule.redrawn else f"the same in {draws} passes"
        words = f"one of {rule.groups} rounds at random, {again}"
        extra = empty_round(rule, timeline.num_rounds)
        return Mechanism(event, "add_or_remove_one", words, ("pld",), extra_delta=extra)
    if rule.kind == "separated":
        return sampled_losses(z, (1.0,), timeline)
    if rule.slots is not None:
        event = dp.TruncatedSubsampledGaussianDpEvent(
            rule.population, rule.probability, rule.slots, z
        )
        words = f"Poisson sampling at {rule.probability:g}, at most {rule.slots} clients"
        cut = draws * overflow_probability(rule.population, rule.probability, rule.slots)
        return Mechanism(dp.SelfComposedDpEvent(event, draws), "zero_out", words, cut=cut)
    event = dp.PoissonSampledDpEvent(rule.probability, dp.GaussianDpEvent(z))
    words = f"Poisson sampling at {rule.probability:g}"
    event = dp.SelfComposedDpEvent(event, draws)
    # Rounds of one cohort are empty together, unless reports fail one by one.
    rounds = draws if rule.reports == 1 else draws * rule.repeats
    return Mechanism(event, "add_or_remove_one", words, extra_delta=empty_round(rule, rounds))


def sampled_losses(z: float, coefficients: tuple[float, ...], timeline: Timeline) -> Mechanism:
    """Returns the mechanism of banded noise whose losses are sampled, for clients that return late.

    ``coefficients`` have norm 1.  Rounds that are repeated count as one with less noise.
    """
    rule = timeline.sampling
    assert rule is not None
    rounds = _met(timeline, rule.repeats)
    bins = rule.kind == "bins"  # which are b-min-separation with probability 1
    separation = rule.groups if bins else rule.separation
    event = losses_event()(rounds, separation, rule.probability, z, coefficients)
    words = f"one of {separation} rounds at random, the same in every pass"
    if not bins:
        words = f"sampling at {rule.probability:g}, at least {separation} rounds between visits"
    extra = empty_round(rule, timeline.num_rounds)
    return Mechanism(event, "add_or_remove_one", words, ("monte_carlo",), extra_delta=extra)


@functools.cache
def allocation_event() -> Any:
    """Returns the class of events in which a client takes part in one of some rounds, at random."""

    @dataclasses.dataclass(frozen=True)
    class RandomAllocation(import_extra("dp_accounting", "privacy").DpEvent):
        num_rounds: int
        noise_multiplier: float

    return RandomAllocation


@functools.cache
def losses_event() -> Any:
    """Returns the class of events of banded noise under b-min-separation."""

    @dataclasses.dataclass(frozen=True)
    class SeparatedSampling(import_extra("dp_accounting", "privacy").DpEvent):
        num_rounds: int
        separation: int
        probability: float
        noise_multiplier: float
        coefficients: tuple[float, ...]

    return SeparatedSampling


def without_noise() -> Mechanism:
    """Returns the mechanism of a run without noise, whose epsilon is infinite."""
    return Mechanism(
        import_extra("dp_accounting", "privacy").NonPrivateDpEvent(), "zero_out", "no noise"
    )


def _per_visit(noise_multiplier: float, timeline: Timeline) -> Mechanism:
    """Gaussian mechanism composed by the visits of one client: no amplification."""
    check_independent_of_data(timeline)
    rule, visits = timeline.sampling, most_visits(timeline)
    reason = "a sampling rule that is not known" if rule is None else "no amplification"
    dp = import_extra("dp_accounting", "privacy")
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(noise_multiplier), visits)
    return Mechanism(event, "zero_out", f"{reason}, at most {visits} visits per client")


def empty_round(rule: Sampling, num_rounds: int) -> float:
    """Bounds the probability that all clients but one are absent in one of some rounds."""
    share = rule.probability
    if rule.kind == "bins":
        share = 1 / rule.groups
    elif rule.kind == "separated":
        share /= 1 + (rule.separation - 1) * share  # in a single round
    share *= rule.reports
    return min(num_rounds * (1 - share) ** (rule.population - 1), 1.0)


def _met(timeline: Timeline, period: int) -> int:
    """Returns how many periods of consecutive rounds a timeline, maybe a part of one, meets."""
    if period == 1:
        return timeline.num_rounds
    # The number of the first round, from any report of the part that is not late.
    version = np.asarray(timeline.version).max(axis=-1)
    first = int((version - np.arange(timeline.num_rounds)).max())
    return math.ceil((first % period + timeline.num_rounds) / period)
