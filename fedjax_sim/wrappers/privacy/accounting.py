"""Epsilon of a private run, and noise multipliers for a target epsilon.

Accountants and events are those of the library dp-accounting (extra ``privacy``).  The default is
its accountant of privacy loss distributions (PLD), to which cohorts of fixed size and random rounds
of a pass are added (:mod:`~fedjax_sim.wrappers.privacy.fixed_size`,
:mod:`~fedjax_sim.wrappers.privacy.allocation`), where that supports the event; otherwise the one
of Renyi differential privacy (RDP), or sampled losses
(:mod:`~fedjax_sim.wrappers.privacy.sampled`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.checks import (
    check_count,
    check_one_number,
    check_positive,
    import_extra,
    last_wrapper,
)
from fedjax_sim.types import FedAlgorithm, Setup, Timeline, shown
from fedjax_sim.wrappers.privacy import allocation, fixed_size, sampled
from fedjax_sim.wrappers.privacy.events import Accountant, Adjacency, Mechanism, allocation_event
from fedjax_sim.wrappers.privacy.noise import NoiseLaw, independent

_RELATIONS: dict[Adjacency, str] = {
    "add_or_remove_one": "ADD_OR_REMOVE_ONE",
    "zero_out": "REPLACE_SPECIAL",
    "replace_one": "REPLACE_ONE",
}
# Width of the intervals of privacy losses. A noise multiplier that is calibrated with it exceeds
# that of 1e-4 by about 3e-5, ten times as fast; the epsilon of a coarser width is an upper bound.
INTERVAL = 1e-3
_MOST_INTERVALS = 2**18  # of the losses of one release
_MOST_OF_ALL = 2**22  # of the losses of all releases, where those of one need wider intervals
_SMALLEST, _LARGEST = 0.2, 2.0**30  # noise multipliers that are tried
_SPARE = 0.01  # largest part of delta for runs that the event does not cover


@shown
class Guarantee(NamedTuple):
    """Differential privacy of a run, at the level of clients.

    Example:
        >>> print(Guarantee(2.0, 1e-6, "add_or_remove_one", "pld", "Poisson sampling at 0.001"))
        epsilon 2 at delta 1e-06 (add_or_remove_one; Poisson sampling at 0.001; pld)
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: Accountant
    rule: str  # the sampling rule that was counted

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} "
            f"({self.adjacency}; {self.rule}; {self.accountant})"
        )


def epsilon(
    algorithm: FedAlgorithm,
    setup: Setup,
    delta: float,
    *,
    accountant: Accountant | None = None,
    interval: float = INTERVAL,
) -> Guarantee:
    """Returns the epsilon of the whole run of a private algorithm.

    It holds for the released models, if the timeline and everything that is computed from the
    clients' data apart from the models stay secret: see docs/howto/privacy.md.

    Args:
        algorithm: of :func:`~fedjax_sim.wrappers.privacy.privatize`, with a concrete noise
            multiplier.
        setup: of one run or of several seeds, for which the largest number of visits counts.
        delta: in (0, 1), well below one over the number of clients.
        accountant: "pld", "rdp" or "monte_carlo"; default: the first that supports the event.
        interval: width of the intervals of privacy losses, of "pld"; positive.  Losses of little
            noise, of which one release has more than 2^18 intervals, get wider ones, with which
            epsilon is an upper bound, too.

    Raises:
        ValueError: an algorithm that is not private or that has a selection, a number out of range,
            an accountant that does not support the event, or a sampling rule whose guarantee needs
            more than a hundredth of delta for empty rounds.
        ImportError: dp-accounting is not installed.

    Example:
        >>> import jax, numpy as np
        >>> import fedjax_sim as fs
        >>> task = fs.Task(lambda client, key, max_steps: None, np.ones(100), np.ones(100, int))
        >>> timeline = fs.timelines.uniform(jax.random.key(0), 100, 100, 10, task.num_steps)
        >>> setup = fs.Setup(task, timeline, np.zeros(3))
        >>> private = fs.privacy.privatize(fs.fedavg(0.1), clip=0.5, noise_multiplier=3.0,
        ...                                expected_uploads=10)
        >>> print(epsilon(private, setup, delta=1e-4))
        epsilon 3.327 at delta 0.0001 (replace_one; 10 of 100 clients without replacement; pld)
    """
    (result,) = _of_prefixes(algorithm, setup, delta, [None], accountant, interval)
    return result


def epsilon_per_round(
    algorithm: FedAlgorithm,
    setup: Setup,
    delta: float,
    rounds: Iterable[int],
    *,
    accountant: Accountant | None = None,
    interval: float = INTERVAL,
) -> np.ndarray:
    """Returns epsilon after the given numbers of rounds, for example those of ``history.round``.

    The value for 0 rounds is 0.  The other arguments are those of :func:`epsilon`.

    Raises:
        ValueError: as :func:`epsilon`, or a number of rounds that the timeline does not have.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> task = fs.Task(lambda client, key, max_steps: None, np.ones(9), np.ones(9, int))
        >>> setup = fs.Setup(task, fs.timelines.full(4, 9, task.num_steps), np.zeros(3))
        >>> private = fs.privacy.privatize(fs.fedavg(0.1), 0.5, 5.0, expected_uploads=9)
        >>> epsilon_per_round(private, setup, 1e-5, [0, 1, 4]).round(2).tolist()
        [0.0, 0.73, 1.55]
    """
    rounds = list(rounds)
    last = setup.timeline.num_rounds
    for number in rounds:
        check_count(rounds=number)
        if number > last:
            raise ValueError(f"rounds has {number}; expected 0 .. {last}, rounds of the timeline")
    rounds = [int(number) for number in rounds]
    wanted = sorted({number for number in rounds if number})
    results = _of_prefixes(algorithm, setup, delta, wanted, accountant, interval)
    values = {0: 0.0} | {n: r.epsilon for n, r in zip(wanted, results, strict=True)}
    return np.array([values[number] for number in rounds])


def noise_multiplier(
    setup: Setup,
    epsilon: float,
    delta: float,
    *,
    noise: NoiseLaw | None = None,
    accountant: Accountant | None = None,
    interval: float = INTERVAL,
) -> float:
    """Returns the smallest noise multiplier z with which a run is (epsilon, delta) private.

    Args:
        setup: of the run; its timeline decides the event.
        epsilon: target, positive.
        delta, accountant, interval: as in :func:`epsilon`.
        noise: law of the noise; default :func:`~fedjax_sim.wrappers.privacy.independent`.

    Raises:
        ValueError: a target that no noise multiplier meets, or as :func:`epsilon`.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> task = fs.Task(lambda client, key, max_steps: None, np.ones(9), np.ones(9, int))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 9, task.num_steps), np.zeros(3))
        >>> round(noise_multiplier(setup, epsilon=1.0, delta=1e-5), 2)
        3.73
    """
    timeline, clients = setup.timeline, setup.task.num_clients
    law = noise or independent()

    def mechanism(z: float) -> Mechanism:
        return law.mechanism(z, timeline, clients)

    return calibrate(mechanism, epsilon, delta, accountant=accountant, interval=interval)


def calibrate(
    mechanism: Callable[[float], Mechanism],
    epsilon: float,
    delta: float,
    *,
    accountant: Accountant | None = None,
    interval: float = INTERVAL,
) -> float:
    """Returns the smallest noise multiplier with which a mechanism is (epsilon, delta) private."""
    _check_numbers(delta, interval)
    check_one_number(epsilon=epsilon)
    if not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon is {epsilon}; expected a positive number")
    first = mechanism(1.0)
    if not _inner(first.event)[1]:
        raise ValueError(
            f"mechanism has no release ({first.rule}); expected some, since without any each noise "
            "multiplier gives epsilon 0"
        )
    name = accountant_of(first, accountant, interval)
    rest = _rest_of_delta(first, delta)
    _warn_of_cuts(first, delta)
    dp = import_extra("dp_accounting.mechanism_calibration", "privacy")

    def spent(z: float) -> float:
        return _fresh(name, first, interval).compose(mechanism(z).event).get_epsilon(rest)

    smallest = _SMALLEST
    while not _fresh(name, first, interval).supports(mechanism(smallest).event):
        smallest = min(1.1 * smallest, 1.0)  # that of 1 is supported
    try:
        z = dp.calibrate_dp_mechanism(
            lambda: _fresh(name, first, interval),
            lambda z: mechanism(z).event,
            epsilon,
            rest,
            dp.LowerEndpointAndGuess(smallest, max(1.0, 2 * smallest)),
            tol=1e-4,
        )
    except dp.NoBracketIntervalFoundError as error:
        high, low = spent(smallest), spent(_LARGEST)
        raise ValueError(
            f"epsilon is {epsilon} at delta {delta:g}; expected a number in {low:.3g} .. "
            f"{high:.3g}, which noise multipliers in {_LARGEST:g} .. {smallest:g} give with "
            f"{first.rule}"
        ) from error
    return float(z)


def _of_prefixes(
    algorithm: FedAlgorithm,
    setup: Setup,
    delta: float,
    ends: Iterable[int | None],
    accountant: Accountant | None,
    interval: float,
) -> list[Guarantee]:
    """Returns the guarantees after increasing numbers of rounds; None: all rounds."""
    _check_numbers(delta, interval)
    mechanism_of = _mechanism_of(algorithm, setup)
    counted, running = None, None  # (inner event, compositions) of the running accountant
    results = []
    mechanisms = [mechanism_of(setup.timeline[:end]) for end in ends]
    if mechanisms:
        _warn_of_cuts(mechanisms[-1], delta)
    width = wide_enough(mechanisms[-1], interval) if mechanisms else interval
    for mechanism in mechanisms:
        name = accountant_of(mechanism, accountant, width)
        event, count = _inner(mechanism.event)
        if running is None or counted is None or counted[0] != event or counted[1] > count:
            counted, running = (event, 0), _fresh(name, mechanism, width)
        if count > counted[1]:
            running.compose(event, count - counted[1])
        counted = event, count
        rest = _rest_of_delta(mechanism, delta)
        value = float(running.get_epsilon(rest))
        if value == np.inf and accountant is None and "rdp" in mechanism.accountants:
            # Losses leave out 1e-15 of probability; Renyi divergences serve any delta.
            renyi = _fresh("rdp", mechanism, width)
            if renyi.supports(mechanism.event):
                name, value = "rdp", float(renyi.compose(mechanism.event).get_epsilon(rest))
        results.append(Guarantee(value, delta, mechanism.adjacency, name, mechanism.rule))
    return results


def is_private(algorithm: FedAlgorithm) -> bool:
    """Returns True for an algorithm whose epsilon :func:`epsilon` returns."""
    last = last_wrapper(algorithm)
    return last is not None and last.mechanism is not None


def _mechanism_of(algorithm: FedAlgorithm, setup: Setup) -> Callable[[Timeline], Mechanism]:
    """Returns the mechanism of any part of the run, as a function of that part's timeline."""
    last = last_wrapper(algorithm)
    if last is None or last.mechanism is None:
        raise ValueError(
            "algorithm is not private; expected fs.privacy.privatize(...) as the last wrapper"
        )
    if algorithm.selection is not None:
        raise ValueError(
            "algorithm has a selection; expected none: no accountant knows a choice that depends "
            "on the clients' data"
        )
    return functools.partial(last.mechanism, num_clients=setup.task.num_clients)


def _inner(event: Any) -> tuple[Any, int]:
    """Returns an event and the number of its compositions."""
    dp = import_extra("dp_accounting", "privacy")
    return (event.event, event.count) if isinstance(event, dp.SelfComposedDpEvent) else (event, 1)


def _fresh(name: Accountant, mechanism: Mechanism, interval: float) -> Any:
    """Returns an accountant that has counted nothing."""
    dp = import_extra("dp_accounting", "privacy")
    relation = getattr(dp.NeighboringRelation, _RELATIONS[mechanism.adjacency])
    if name == "rdp":
        return _renyi_accountant(relation)
    if name == "monte_carlo":
        return sampled.MonteCarlo()
    return _loss_accountant()(relation, interval)


def wide_enough(mechanism: Mechanism, interval: float) -> float:
    """Returns the width of intervals, at least ``interval``, with which losses take few of them.

    Only losses with more than 2^18 intervals per release get wider ones.
    """
    event, count = _inner(mechanism.event)
    while not hasattr(event, "noise_multiplier") and hasattr(event, "event"):
        event = event.event
    z = getattr(event, "noise_multiplier", 0.0)
    if z <= 0 or (most := fixed_size.largest_loss(z)) <= _MOST_INTERVALS * interval:
        return interval
    return most * max(1.001 / _MOST_INTERVALS, count / _MOST_OF_ALL)


def accountant_of(
    mechanism: Mechanism, accountant: Accountant | None, interval: float = INTERVAL
) -> Accountant:
    """Returns the wanted accountant of an event; None: the first that supports it."""
    supporting: list[Accountant] = [
        name
        for name in mechanism.accountants
        if _fresh(name, mechanism, interval).supports(mechanism.event)
    ]
    for name in supporting:
        if accountant in (None, name):
            return name
    expected = f"expected {' or '.join(supporting)}" if supporting else "there is no other"
    raise ValueError(
        f"accountant is {accountant!r}, which does not support {mechanism.rule} "
        f"({mechanism.adjacency}); {expected}"
    )


def _check_numbers(delta: float, interval: float) -> None:
    check_positive(interval=interval)
    if np.ndim(delta) or isinstance(delta, str) or not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r:.60}; expected a number in (0, 1)")
    if not interval < np.inf:
        raise ValueError(f"interval is {interval}; expected a positive number")


def _rest_of_delta(mechanism: Mechanism, delta: float) -> float:
    """Returns delta without the probability of runs that the event does not cover."""
    if mechanism.extra_delta > _SPARE * delta:
        raise ValueError(
            f"delta is {delta:g}; expected at least {mechanism.extra_delta / _SPARE:.3g}: rounds "
            "without uploads, which one client's report can prevent, show with a probability of "
            f"{mechanism.extra_delta:.3g}; sample more clients per round"
        )
    return delta - mechanism.extra_delta


def _warn_of_cuts(mechanism: Mechanism, delta: float) -> None:
    """Warns where too few slots for Poisson sampling make epsilon larger."""
    if mechanism.cut > delta / 10:
        warnings.warn(
            f"{mechanism.rule}, cuts a cohort with a probability of {min(mechanism.cut, 1):.3g}; "
            f"expected at most {delta / 10:g}, a tenth of delta, since cuts make epsilon larger: "
            "fs.timelines.slots_for returns the slots",
            stacklevel=3,
        )


@functools.cache
def _loss_accountant() -> Any:
    """Returns dp-accounting's accountant of loss distributions, with two more events."""
    dp, pld = import_extra("dp_accounting", "privacy"), import_extra("dp_accounting.pld", "privacy")

    class Losses(pld.PLDAccountant):
        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            width = self._value_discretization_interval
            if isinstance(event, allocation_event()):
                noise = event.noise_multiplier
                one = functools.partial(
                    allocation.loss_distribution, event.num_rounds, noise, width
                )
            elif isinstance(event, dp.SampledWithoutReplacementDpEvent) and isinstance(
                event.event, dp.GaussianDpEvent
            ):
                share = event.sample_size / event.source_dataset_size
                noise = event.event.noise_multiplier
                one = functools.partial(fixed_size.loss_distribution, share, noise, width)
            else:
                return super()._maybe_compose(event, count, do_compose)
            if fixed_size.largest_loss(noise) > _MOST_INTERVALS * width:
                return self.CompositionErrorDetails(event, "too little noise for these intervals")
            if do_compose:
                self._pld = self._pld.compose(one().self_compose(count))
            return None

    return Losses


def _renyi_accountant(relation: Any) -> Any:
    r"""Returns dp-accounting's accountant of Renyi differential privacy with the smaller bound.

    Its bound of Wang, Balle and Kasiviswanathan ("Subsampled Renyi Differential Privacy and
    Analytical Moments Accountant", 2019) assumes a small sampling rate: at 19 of 20 clients it
    exceeds four times the divergence of the mechanism that everybody enters.

    A run with sampled cohorts is a mixture over the cohorts, with the same weights for both
    neighbours.  Renyi divergences are jointly quasi-convex, so that of the mixtures is at most that
    of the worst cohort, :math:`\alpha / (2 \sigma^2)` at every order :math:`\alpha`.
    """
    return _capped()(neighboring_relation=relation)


@functools.cache
def _capped() -> Any:
    dp, rdp = import_extra("dp_accounting", "privacy"), import_extra("dp_accounting.rdp", "privacy")

    class Capped(rdp.RdpAccountant):
        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            before = np.array(self._rdp)
            error = super()._maybe_compose(event, count, do_compose)
            if do_compose and isinstance(event, dp.SampledWithoutReplacementDpEvent):
                sampled, self._rdp = self._rdp, before
                super()._maybe_compose(event.event, count, do_compose)
                self._rdp = np.minimum(sampled, self._rdp)
            return error

    return Capped
