r"""Moments of the number of local steps that a client does between two contacts.

Between two contacts with the server a client does ``E ^ K = min(E, K)`` steps: E steps if its speed
allows no more, at most the cap K.  FAVANO's reweighting and bounds need four moments of this law,
which follow from the tail ``t_j = P(E >= j)``, j = 1 .. K.  All functions use NumPy in double
precision and are vectorized over their arguments, usually one entry per client.  The matching
simulated counts are in :mod:`fedjax_sim.timelines.stepping`.

References:
    "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099, Equation 3, Theorem 1
    and Appendix C.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_sim.types import shown


@shown
class CappedSteps(NamedTuple):
    """Moments of ``S = E ^ K``: arrays of one shape, usually one entry per client."""

    p_active: np.ndarray  # P(S > 0)
    mean: np.ndarray  # E[S]
    second_moment: np.ndarray  # E[S^2]
    inverse: np.ndarray  # E[1(S > 0) / S]


def from_tail(tail: ArrayLike) -> CappedSteps:
    r"""Moments of any law, from ``P(E >= j)``, j = 1 .. K, along the last axis.

    .. math:: E[S] = \sum_{j=1}^K t_j, \quad E[S^2] = \sum_{j=1}^K (2 j - 1) t_j, \quad
        E\Bigl[\frac{1(S > 0)}{S}\Bigr] = \sum_{j=1}^{K-1} \frac{t_j - t_{j+1}}{j} + \frac{t_K}{K}

    Raises:
        ValueError: no axis, an empty last axis, entries outside [0, 1], or entries that increase.

    Example:
        >>> float(from_tail([1.0, 0.5]).mean)  # 1 or 2 steps
        1.5
    """
    tail = np.asarray(tail, np.float64)
    if tail.ndim == 0 or tail.shape[-1] == 0:
        raise ValueError(f"tail has shape {tail.shape}; expected [..., K] with K at least 1")
    if not np.all((tail >= 0) & (tail <= 1 + 1e-12)) or np.any(np.diff(tail) > 1e-12):
        raise ValueError(f"tail is {tail}; expected P(E >= j), from [0, 1] and not increasing")
    steps = np.arange(1, tail.shape[-1] + 1)
    exactly = tail - np.concatenate([tail[..., 1:], np.zeros_like(tail[..., :1])], -1)
    return CappedSteps(tail[..., 0], tail.sum(-1), tail @ (2 * steps - 1), exactly @ (1 / steps))


def from_probabilities(probabilities: ArrayLike, cap: int) -> CappedSteps:
    """Moments of any law, from ``P(E = j)``, j = 0 .. J, along the last axis, which sums to 1.

    Raises:
        ValueError: no axis, negative entries, a sum other than 1 (to 1e-9), ``cap`` below 1.

    Example:
        >>> float(from_probabilities([0.25, 0.25, 0.5], cap=1).p_active)
        0.75
    """
    _check_cap(cap)
    mass = np.asarray(probabilities, np.float64)
    if mass.ndim == 0 or not np.all(mass >= 0) or np.any(np.abs(mass.sum(-1) - 1) > 1e-9):
        raise ValueError(
            f"probabilities is {mass}; expected non-negative numbers along the last axis, sum 1"
        )
    mass = mass / mass.sum(-1, keepdims=True)  # a sum of 1 to rounding
    tail = np.flip(np.cumsum(np.flip(mass, -1), -1), -1)[..., 1 : cap + 1]
    missing = np.zeros((*mass.shape[:-1], cap - tail.shape[-1]))
    return from_tail(np.concatenate([tail, missing], -1))


def empirical(counts: ArrayLike, cap: int) -> CappedSteps:
    """Empirical moments of simulated counts E, integers ``[..., samples]``: one law per row.

    Raises:
        ValueError: no samples, negative or fractional counts, ``cap`` below 1.

    Example:
        >>> float(empirical([0, 1, 7, 2], cap=3).mean)  # capped: 0, 1, 3, 2
        1.5
    """
    _check_cap(cap)
    counts = np.asarray(counts)
    if counts.ndim == 0 or counts.shape[-1] == 0:
        raise ValueError(f"counts has shape {counts.shape}; expected [..., samples], at least one")
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise ValueError(
            f"counts has dtype {counts.dtype} and smallest entry {counts.min()}; "
            "expected integers from 0"
        )
    return from_tail(np.stack([(counts >= j).mean(-1) for j in range(1, cap + 1)], -1))


def geometric(success: ArrayLike, cap: int, first: int = 1) -> CappedSteps:
    r"""Moments of a geometric count, drawn afresh at every contact: the model of FAVANO's theory.

    ``P(E >= j) = (1 - success)^(j - first)``, so that with :math:`r = 1 - success`

    .. math:: E[S] = P(E > 0) \frac{1 - r^K}{1 - r}

    Args:
        success: probability of stopping after a step; a slow client has a LARGE one.
        cap: K.
        first: the smallest value of E, 1 or 0.

    Raises:
        ValueError: ``success`` outside (0, 1], ``cap`` below 1, another ``first``.

    References:
        Appendix C.2, the literal reading.

    Example:
        >>> round(float(geometric(1 / 16, cap=20).mean), 6)
        11.599059
    """
    _check_cap(cap)
    if first not in (0, 1):
        raise ValueError(f"first is {first}; expected 0 or 1")
    stop = _probabilities("success", success)[..., None]
    return from_tail((1 - stop) ** (np.arange(1, cap + 1) - first))


def renewal(
    success: ArrayLike, cap: int, window: int, probability: ArrayLike, strict: bool = False
) -> CappedSteps:
    r"""Moments for geometric step durations and a geometric number of windows between contacts.

    A step lasts j time units with probability ``success (1 - success)^(j - 1)``, so a step ends in
    every time unit with probability ``success``.  The server acts every ``window`` time units and
    contacts the client with ``probability`` each time, which is s / n for a uniform cohort of s out
    of n clients:

    .. math:: P(R = r) = p (1 - p)^{r - 1}, \qquad E \mid R \sim \mathrm{Bin}(w R, \lambda)

    whose generating function is ``p G / (1 - (1 - p) G)``, ``G(z) = (1 - success + success z)^w``.
    The tail is computed exactly, by conditioning on the first window.

    Args:
        success: lambda, in (0, 1]; the mean duration of a step is its inverse.
        cap: K.
        window: w, time units between two actions of the server.
        probability: p, in (0, 1].
        strict: steps that end at the moment of the contact do not count, ``Bin(w R - 1, .)``.

    Raises:
        ValueError: ``success`` or ``probability`` outside (0, 1], ``cap`` or ``window`` below 1.

    References:
        Appendix C.2, with the geometric law for the durations.

    Example:
        >>> law = renewal([1 / 2, 1 / 16], cap=20, window=7, probability=0.2)
        >>> [round(float(mean), 3) for mean in law.mean]
        [12.493, 2.187]
    """
    _check_cap(cap)
    if window < 1 or int(window) != window:
        raise ValueError(f"window is {window}; expected a whole number of time units, at least 1")
    rate, p = np.broadcast_arrays(
        _probabilities("success", success), _probabilities("probability", probability)
    )
    shorter = _bernoulli(rate, cap, int(window) - 1)
    full = _bernoulli(rate, cap, int(window))
    tail = _until_contact(full, p)
    return from_tail(_last_window(shorter, tail, p) if strict else tail)


def poisson_renewal(
    mean: ArrayLike, cap: int, window: float, probability: ArrayLike
) -> CappedSteps:
    r"""Moments for exponential step durations: ``E | R`` is Poisson with mean ``w R / mean``.

    The number R of windows between two contacts is geometric, as in :func:`renewal`.

    Args:
        mean: mean duration of a step, positive.
        cap: K.
        window: w, positive.
        probability: p, in (0, 1].

    Raises:
        ValueError: ``mean`` or ``window`` not positive, ``probability`` outside (0, 1], ``cap``
            below 1.

    Example:
        >>> round(float(poisson_renewal(2.0, cap=1, window=2.0, probability=1.0).mean), 3)
        0.632
    """
    _check_cap(cap)
    mean = np.asarray(mean, np.float64)
    for name, value in (("mean", mean), ("window", np.asarray(window))):
        if not np.all((value > 0) & (value < np.inf)):
            raise ValueError(f"{name} is {value}; expected positive numbers")
    expected, p = np.broadcast_arrays(window / mean, _probabilities("probability", probability))
    return from_tail(_until_contact(_poisson(expected, cap), p))


class _Window(NamedTuple):
    """Law of the number A of steps that end within one window."""

    mass: np.ndarray  # [..., K] P(A = j), j = 0 .. K - 1
    tail: np.ndarray  # [..., K + 1] P(A >= j), j = 0 .. K


def _bernoulli(rate: np.ndarray, cap: int, trials: int) -> _Window:
    """Binomial counts, trial by trial: without logarithms or differences, so no digit is lost."""
    rate = rate[..., None]
    mass, tail = (np.zeros((*rate.shape[:-1], length)) for length in (cap, cap + 1))
    mass[..., 0] = tail[..., 0] = 1
    for _ in range(trials):
        mass[..., 1:] = (1 - rate) * mass[..., 1:] + rate * mass[..., :-1]
        mass[..., 0] *= 1 - rate[..., 0]
        tail[..., 1:] = (1 - rate) * tail[..., 1:] + rate * tail[..., :-1]
    return _Window(mass, tail)


def _poisson(expected: np.ndarray, cap: int) -> _Window:
    """Poisson counts; the tail beyond ten standard deviations and sixty steps rounds to 0."""
    largest = expected.max(initial=0.0)
    last = cap + int(largest + 10 * np.sqrt(largest)) + 60
    logs = np.cumsum(np.log(expected[..., None] / np.arange(1, last + 1)), -1)
    mass = np.exp(np.concatenate([np.zeros_like(logs[..., :1]), logs], -1) - expected[..., None])
    tail = np.flip(np.cumsum(np.flip(mass, -1), -1), -1)
    return _Window(mass[..., :cap], tail[..., : cap + 1])


def _until_contact(window: _Window, p: np.ndarray) -> np.ndarray:
    r"""Tail ``t_j = P(E >= j)``, j = 1 .. K, of the count over all windows until the contact.

    ``E = A + E'`` with probability 1 - p, else A.  So ``t_j = P(A >= j) + (1 - p) sum_{i < j}
    P(A = i) t_{j-i}``, solved for the t_j of i = 0.
    """
    mass, tail = window
    on = 1 - p
    # 1 - (1 - p) P(A = 0), without the difference
    left = p + on * tail[..., 1]
    total = np.zeros((*p.shape, mass.shape[-1]))
    for j in range(1, mass.shape[-1] + 1):
        earlier = np.sum(mass[..., 1:j] * np.flip(total[..., : j - 1], -1), -1)
        total[..., j - 1] = (tail[..., j] + on * earlier) / left
    return total


def _last_window(window: _Window, tail: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The tail if one of the windows follows another law."""
    steps = range(1, tail.shape[-1] + 1)
    later = [np.sum(window.mass[..., :j] * np.flip(tail[..., :j], -1), -1) for j in steps]
    return window.tail[..., 1:] + (1 - p)[..., None] * np.stack(later, -1)


def _probabilities(name: str, value: ArrayLike) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if not np.all((array > 0) & (array <= 1)):
        raise ValueError(f"{name} is {value}; expected probabilities above 0")
    return array


def _check_cap(cap: int) -> None:
    if cap < 1 or int(cap) != cap:
        raise ValueError(f"cap is {cap}; expected a whole number of steps, at least 1")
