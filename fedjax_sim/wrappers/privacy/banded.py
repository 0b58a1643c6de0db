r"""Noise of banded Toeplitz matrix factorisations (DP-FTRL).

The strategies come from the package jax-privacy, on the host.

References:
    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu, "(Amplified) Banded Matrix
        Factorization: A Unified Approach to Private Training", 2023,
        https://arxiv.org/abs/2306.08153.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, import_extra
from fedjax_sim.timelines import Sampling
from fedjax_sim.types import Timeline, Upload, plain_integers, specified
from fedjax_sim.wrappers.privacy.events import (
    Mechanism,
    empty_round,
    sampled_gaussian,
    sampled_losses,
)
from fedjax_sim.wrappers.privacy.noise import NoiseLaw, NoiseState, normal
from fedjax_sim.wrappers.privacy.participation import (
    check_independent_of_data,
    min_separation,
    most_visits,
    num_draws,
)

Check = Callable[[Timeline, int], None]
MechanismOf = Callable[[float, Timeline, int], Mechanism]

_FIXED_CLIP = "a draw counts in several rounds, whose uploads must have the same bound"


@specified(static=["coefficients"])
def banded(
    coefficients: Sequence[float] | np.ndarray,
    num_rounds: int,
    *,
    separation: int | None = None,
    visits: int | None = None,
) -> NoiseLaw:
    r"""Noise :math:`y = C^{-1} \xi` of a lower triangular, banded Toeplitz matrix C.

    With the prefix sums A = B C of the uploads' sums, round t adds

    .. math:: y_t = \Big( \xi_t - \sum_{j=1}^{b-1} c_j y_{t-j} \Big) / c_0, \qquad
        \xi_t \sim N(0, (z C \operatorname{sens}(C))^2 I)

    so that the noise of the sums over rounds partly cancels.  The state has the last b - 1 draws.
    The sensitivity is that of a client with at most k visits, each at least ``separation`` rounds
    after the one before: for a separation of at least b, whose columns are orthogonal,
    :math:`\sqrt k \|c\|`.  Both bounds are checked on the timeline.  Rounds in which nobody reports
    do not count.

    Args:
        coefficients: c, ``[b]``, not negative and not increasing (:func:`banded_coefficients`).
        num_rounds: T, rounds of the run.
        separation: fewest rounds from one visit of a client to its next; default b.
        visits: k, most visits of one client; default as many as fit, ceil(T / separation).

    Raises:
        ValueError: coefficients that are negative, increase or outnumber the rounds; a number
            below 1.

    Example:
        >>> noise = banded([1.0, 0.5], num_rounds=4)
        >>> noise.init(jnp.zeros(3)).shape
        (1, 3)
    """
    c = _checked(coefficients, num_rounds)
    separation = len(c) if separation is None else separation
    check_count(1, separation=separation)
    most = math.ceil(num_rounds / separation) if visits is None else visits
    check_count(1, visits=most)
    factor = sensitivity(c, num_rounds, separation=separation, visits=most)

    def check(timeline: Timeline, num_clients: int) -> None:
        _check_rounds(timeline, num_rounds)
        check_independent_of_data(timeline)
        fewest, largest = min_separation(timeline), most_visits(timeline)
        if fewest is not None and fewest < separation:
            raise ValueError(
                f"timeline has a client that returns after {fewest} rounds; expected at least "
                f"separation = {separation} rounds between two visits of a client"
            )
        if largest > most:
            raise ValueError(
                f"timeline has a client with {largest} visits; expected at most visits = {most}"
            )

    def mechanism(noise_multiplier: float, timeline: Timeline, num_clients: int) -> Mechanism:
        check(timeline, num_clients)
        dp = import_extra("dp_accounting", "privacy")
        rule = f"at least {separation} rounds between visits, at most {most} per client"
        event = dp.GaussianDpEvent(noise_multiplier)
        return Mechanism(event, "zero_out", f"{rule}, no amplification")

    return _noise(c, factor, mechanism, check)


@specified(static=["coefficients"])
def amplified_banded(coefficients: Sequence[float] | np.ndarray, num_rounds: int) -> NoiseLaw:
    r"""Noise of :func:`banded` whose privacy is amplified by sampling of clients that return late.

    The clients form at least b groups that take turns
    (:func:`~fedjax_sim.timelines.grouped_bernoulli`).  The columns of C of a client's visits are
    then orthogonal, so a run costs as much as one Gaussian mechanism with Poisson sampling per turn
    of the client's group, with :math:`\xi_t \sim N(0, (z C \|c\|)^2 I)`.

    Under :func:`~fedjax_sim.timelines.balls_in_bins` with the same place in every pass, or
    :func:`~fedjax_sim.timelines.b_min_sep`, of at least b rounds, a client's possible rounds share
    draws of the noise, and its losses are sampled with jax-privacy.  That epsilon is too small with
    a probability of at most 1e-6 over the samples.

    The noise does not move in a round in which nobody reports, of whatever group, and the later
    visits of a client then no longer meet orthogonal columns.  Where every round has a report of
    another client, the accounting holds exactly; the probability of the other runs, at most
    :math:`T (1 - q)^{M_g - 1}` for T rounds, a smallest group of :math:`M_g` clients and the
    sampling probability q, is added to delta (``Mechanism.extra_delta``).

    Args:
        coefficients: c, ``[b]``, not negative and not increasing (:func:`banded_coefficients`).
        num_rounds: T, rounds of the run.

    Raises:
        ValueError: coefficients that are negative, increase or outnumber the rounds.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.grouped_bernoulli(
        ...     jax.random.key(0), 16, 4000, 0.05, num_steps=1, num_groups=4)
        >>> noise = amplified_banded([1.0, 0.5, 0.4, 0.3], num_rounds=16)
        >>> mechanism = noise.mechanism(1.0, timeline, num_clients=4000)
        >>> mechanism.event.count, mechanism.event.event.sampling_probability
        (4, 0.05)
    """
    c = _checked(coefficients, num_rounds)

    def check(timeline: Timeline, num_clients: int) -> None:
        _check_rounds(timeline, num_rounds)
        rule = timeline.sampling
        if rule is None or not _is_in_turn(rule, len(c)):
            raise ValueError(
                f"timeline has the sampling rule {rule}; expected "
                f"timelines.grouped_bernoulli(..., num_groups={len(c)}) or more groups, "
                f"balls_in_bins without redraw or b_min_sep of {len(c)} or more rounds, so that a "
                "client's visits meet orthogonal columns of the matrix"
            )

    def mechanism(noise_multiplier: float, timeline: Timeline, num_clients: int) -> Mechanism:
        check(timeline, num_clients)
        rule = timeline.sampling
        if rule.kind != "poisson" and len(c) > 1:
            return sampled_losses(
                noise_multiplier, tuple(map(float, c / np.linalg.norm(c))), timeline
            )
        independent = sampled_gaussian(noise_multiplier, timeline, num_clients)
        # An empty round moves all later visits to earlier rows of the matrix.
        return independent._replace(extra_delta=empty_round(rule, timeline.num_rounds))

    return _noise(c, float(np.linalg.norm(c)), mechanism, check)


@plain_integers
def banded_coefficients(num_rounds: int, bands: int) -> np.ndarray:
    """Returns the coefficients with the smallest mean squared error of the prefix sums, ``[b]``.

    They have norm 1.  The error is that of b-banded Toeplitz matrices for one visit per b rounds.

    Args:
        num_rounds: T.
        bands: b, at most T.

    Raises:
        ValueError: a number below 1, or more bands than rounds.
        ImportError: jax-privacy is not installed.

    Example:
        >>> banded_coefficients(16, 4).round(4).tolist()
        [0.7949, 0.4384, 0.3293, 0.2599]
    """
    check_count(1, num_rounds=num_rounds, bands=bands)
    if bands > num_rounds:
        raise ValueError(f"bands is {bands}; expected at most num_rounds = {num_rounds}")
    toeplitz = import_extra("jax_privacy.matrix_factorization.toeplitz", "privacy")
    with _host():
        return np.asarray(toeplitz.optimize_banded_toeplitz(num_rounds, bands))


def sensitivity(
    coefficients: Sequence[float] | np.ndarray, num_rounds: int, *, separation: int, visits: int
) -> float:
    r"""Returns the sensitivity of a banded Toeplitz matrix to one client's uploads of norm 1.

    Args:
        coefficients: c, ``[b]``, not negative and not increasing.
        num_rounds: T.
        separation: fewest rounds from one visit of a client to its next.
        visits: most visits of one client.
    """
    toeplitz = import_extra("jax_privacy.matrix_factorization.toeplitz", "privacy")
    with _host():
        squared = toeplitz.minsep_sensitivity_squared(
            np.asarray(coefficients, np.float64), separation, visits, num_rounds
        )
        return math.sqrt(float(squared))


@contextlib.contextmanager
def _host() -> Iterator[None]:
    """Setting in which jax-privacy computes: not inside a trace, in double precision."""
    promotion = jax.numpy_dtype_promotion("standard")
    with jax.ensure_compile_time_eval(), jax.enable_x64(True), promotion:
        yield


def _is_in_turn(rule: Sampling, bands: int) -> bool:
    """Returns True for random visits of a client that are at least ``bands`` rounds apart."""
    distances = {"poisson": rule.groups, "bins": rule.groups, "separated": rule.separation}
    whole = rule.slots is None and rule.repeats == 1 and not rule.redrawn
    return distances.get(rule.kind, 0) >= bands and whole


def _noise(c: np.ndarray, factor: float, mechanism: MechanismOf, check: Check) -> NoiseLaw:
    """Returns the noise of coefficients whose independent draws have the std ``factor z C``."""

    bands = len(c)

    def init(like: Upload) -> NoiseState:
        return jax.tree.map(lambda x: jnp.zeros((bands - 1, *x.shape), x.dtype), like)

    def draw(
        key: Array, past: NoiseState, std: Array | float, number: Array, like: Upload
    ) -> tuple[Upload, NoiseState]:
        independent = normal(key, factor * jnp.asarray(std), like)
        if bands == 1:
            return tree.divide(independent, c[0]), past

        def solve(xi: Array, y: Array) -> Array:
            past = jnp.tensordot(jnp.asarray(c[1:], xi.dtype), y, 1, precision="highest")
            return (xi - past) / c[0]

        drawn = jax.tree.map(solve, independent, past)
        past = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y])[: len(y)], drawn, past)
        return drawn, past

    return NoiseLaw(init if bands > 1 else None, draw, mechanism, _FIXED_CLIP, check)


def _checked(coefficients: Sequence[float] | np.ndarray, num_rounds: int) -> np.ndarray:
    c = np.asarray(coefficients, np.float64)
    check_count(1, num_rounds=num_rounds)
    valid = c.ndim == 1 and 1 <= len(c) <= num_rounds and np.isfinite(c).all()
    if not valid or c[0] <= 0 or (c < 0).any() or (np.diff(c) > 0).any():
        raise ValueError(
            f"coefficients is {coefficients!r:.100}; expected 1 .. num_rounds = {num_rounds} "
            "numbers that start above 0, do not increase and are not negative"
        )
    return c


def _check_rounds(timeline: Timeline, num_rounds: int) -> None:
    draws = num_draws(timeline)
    if draws > num_rounds:
        raise ValueError(
            f"timeline has {draws} rounds with a report; expected at most num_rounds = {num_rounds}"
        )
