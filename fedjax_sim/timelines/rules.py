"""Rules by which the clients of a timeline were drawn, as accountants of privacy need them."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from fedjax_sim.checks import is_concrete
from fedjax_sim.types import Scalar, Timeline


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Rule that drew a timeline's clients, without looking at their data.

    ``kind`` is one of

    * ``poisson``: every client takes part independently with ``probability``; with ``slots``, a
      larger cohort is cut to a uniformly random subset of that size; with ``groups``, only in the
      rounds of the client's group, and ``population`` is the smallest group;
    * ``without_replacement``: ``size`` clients of every block of ``population`` clients, uniformly;
    * ``bins``: every client takes part in one of ``groups`` rounds, drawn uniformly; ``redrawn``
      gives it another one in every pass, otherwise it has the same;
    * ``separated``: every client takes part with ``probability`` in a round if it did not in the
      ``separation - 1`` rounds before;
    * ``fixed``: who takes part in which round is decided by neither chance nor data, or by chance
      without a known amplification of privacy;
    * ``durations``: clients report when their simulated work is done.

    The functions of :mod:`fedjax_sim.timelines` set it (``timeline.sampling``); it changes neither
    runs nor digests.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.bernoulli(jax.random.key(0), 3, 100, 0.2, num_steps=1)
        >>> timeline.sampling.kind, timeline.sampling.expected_uploads
        ('poisson', 20.0)
    """

    kind: Literal["poisson", "without_replacement", "bins", "separated", "fixed", "durations"]
    # Expected uploads per round: a public number, by which private runs divide sums.
    expected_uploads: float
    population: int = 0  # clients among which one draw selects
    size: int = 0  # without_replacement: clients that one draw selects
    probability: float = 1.0  # poisson, separated: of taking part
    slots: int | None = None  # poisson: largest cohort; None: the population
    repeats: int = 1  # consecutive rounds of every cohort
    groups: int = 1  # poisson: groups that take turns, one per round; bins: rounds of a pass
    redrawn: bool = False  # bins: clients have a new place in every pass
    separation: int = 1  # separated: fewest rounds from one visit of a client to its next
    reports: float = 1.0  # probability of a visit's report, as far as `probability` lacks it


def thinned(sampling: Sampling | None, keep: Scalar) -> Sampling | None:
    """Returns the rule of a timeline whose slots stay with probability ``keep``, independently.

    None, an unknown rule, for a traced probability.
    """
    if sampling is None or not is_concrete(keep):
        return None
    expected = sampling.expected_uploads * float(keep)
    if sampling.kind == "poisson" and sampling.slots is None and sampling.repeats == 1:
        probability = sampling.probability * float(keep)
        return dataclasses.replace(sampling, probability=probability, expected_uploads=expected)
    reports = sampling.reports * float(keep)
    return dataclasses.replace(sampling, reports=reports, expected_uploads=expected)


def independent_of_data(timeline: Timeline) -> Timeline:
    """Declares that a timeline does not depend on the data of the clients.

    An accountant of privacy then counts the visits of each client, also for an asynchronous
    timeline, whose durations it must know to be independent of the data.  The visits stay the same.

    Args:
        timeline: concrete, ``[T, S]`` or ``[n, T, S]``.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> slow = fs.timelines.arrivals(
        ...     jax.random.key(0), fs.timelines.deterministic(np.array([1.0, 2.0])),
        ...     horizon=9.0, num_clients=2, num_steps=1)
        >>> slow.sampling.kind, independent_of_data(slow).sampling.kind
        ('durations', 'fixed')
    """
    expected = float(np.asarray(timeline.arrived).sum(-1).mean())
    return dataclasses.replace(timeline, sampling=Sampling("fixed", expected))
