r"""Epsilon of cohorts of fixed size against clients who choose their uploads by the models so far.

    python -m experiments.privacy.fixed_size_gap --cells 24

The accountant composes, for every round, the largest divergence at each alpha.  No choice of
uploads attains all of them, so this is more than clients can reach.  Here the choice of every round
is the maximum of a value iteration: V_0(alpha) = max(0, 1 - alpha), and V_n(alpha) is the largest
E[V_{n - 1}(alpha exp(-L))] over the privacy losses L of the pairs that one round may show.

One round.  Given the rest of the cohort, it shows (1 - q) N(u) + q N(x) or (1 - q) N(u) + q N(x'),
with the clip as the unit.  V is convex, so averages over u only lower the expectation.  With
a = (alpha - 1) (1 - q) / q, b = alpha and any weight w, for alpha >= 1

    H_alpha / q = E (N(x) - a N(u) - b N(x'))_+
               <= w D_{a / w}(|x - u|) + (1 - w) D_{b / (1 - w)}(|x - x'|),

where D(d) is the divergence of Gaussians at the distance d.  Below 1 the pair is reversed, and x'
has the place of x.  The bound grows in the three distances.

All rounds.  Three points in a ball are no farther apart, pair by pair, than three points on its
circle whose arcs are at most pi: an acute triangle grows until its circle is that of the ball; the
longest side of another one grows to the diameter, and the vertex opposite to it moves out.  Arcs
pi (1 - i / m), rounded up, cover all of them with m (m - 1) / 2 cells, each of which has the pair
of its bound.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tyro
from dp_accounting.pld import pld_pmf
from scipy.fft import irfft, next_fast_len, rfft

from fedjax_sim.checks import check_at_least, check_at_most, check_positive
from fedjax_sim.wrappers.privacy.fixed_size import gaussian_profile

_WEIGHTS = np.concatenate([[0.0], np.linspace(0, 1, 41)[1:-1], [1.0]])
_ROUNDING = 1e-13  # of one Fourier transform of numbers in [0, 1]


@dataclasses.dataclass(frozen=True)
class Options:
    """A run, and how finely it is counted."""

    clients: int = 1000
    cohort: int = 100
    rounds: int = 100
    noise: float = 1.0
    delta: float = 1e-5
    cells: int = 24  # m
    interval: float = 0.02  # of losses
    largest: float = 60.0  # loss

    def __post_init__(self) -> None:
        check_at_least(1, cohort=self.cohort, rounds=self.rounds)
        check_at_least(2, cells=self.cells)
        check_at_most(self.clients, cohort=self.cohort)
        check_positive(noise=self.noise, delta=self.delta, interval=self.interval)


def one_round(losses: np.ndarray, share: float, near: float, far: float, z: float) -> np.ndarray:
    """Returns the bound of H_alpha / q for alpha = exp(losses) >= 1.

    ``near`` is |x - u|, ``far`` is |x - x'|; both in clips.
    """
    a, b = np.expm1(losses) * (1 - share) / share, np.exp(losses)
    # At the weight a and equal points u and x the bound is attained.
    weights = np.concatenate([np.repeat(_WEIGHTS[:, None], len(losses), 1), [np.minimum(a, 1)]])
    weights = np.concatenate([weights, [a / (a + b)]])  # equal orders
    return np.min(_part(weights, a, near, z) + _part(1 - weights, b, far, z), axis=0)


def _part(weight: np.ndarray, order: np.ndarray, distance: float, z: float) -> np.ndarray:
    """Returns w D_{order / w} of Gaussians; its limit 0 or, at the order 0, w."""
    if distance == 0:
        return np.maximum(weight - order, 0.0)
    order = np.broadcast_to(order, weight.shape)
    inside = (weight > 0) & (order > 0)
    ratio = np.where(inside, order, 1.0) / np.where(inside, weight, 1.0)
    value = weight * gaussian_profile(np.log(ratio), z / distance)
    return np.where(inside, value, np.where(order > 0, 0.0, weight))


def profile(x: np.ndarray, share: float, sides: tuple[float, float, float], z: float) -> np.ndarray:
    """Returns the bound of H at exp(x), for the sides |x - u|, |x' - u| and |x - x'|."""
    first, second, far = sides
    above = share * one_round(np.abs(x), share, first, far, z)
    below = share * one_round(np.abs(x), share, second, far, z)
    size = np.abs(x)
    return np.where(x >= 0, above, -np.expm1(-size) + np.exp(-size) * below)


def cells(m: int) -> Iterator[tuple[float, float, float]]:
    """Yields the sides of the largest triangle of every cell."""
    sides = 2 * np.sin(np.pi / 2 * (1 - np.arange(m) / m))
    for i in range(m - 1):
        for j in range(m - 1 - i):
            yield sides[i], sides[j], sides[m - 2 - i - j]


def epsilon(options: Options, triangles: list[tuple[float, float, float]]) -> float:
    """Returns the epsilon of the value iteration over the pairs of some triangles."""
    h, share = options.interval, options.cohort / options.clients
    n = round(options.largest / h)
    x = np.arange(-n, n + 1) * h
    last = int(np.ceil((2 / options.noise + 10) * 2 / options.noise / h))
    losses = np.arange(-last, last + 1) * h
    profiles = np.array([profile(losses, share, sides, options.noise) for sides in triangles])
    profiles = np.minimum.accumulate(np.clip(profiles, 0, 1), axis=1)
    length = next_fast_len(2 * n + 1 + 4 * last, real=True)
    spectra, infinite = [], []
    for values in profiles[_largest(profiles)]:
        # Where the bound is not convex, masses below 0 count as 0, which makes divergences larger.
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(h, -last, last, values)
        dense, probs = pmf.to_dense_pmf(), np.zeros(2 * last + 1)
        probs[dense._lower_loss + last :][: len(dense._probs)] = dense._probs
        spectra.append(rfft(probs, length))
        infinite.append(dense._infinity_mass)
    value = np.maximum(0, -np.expm1(x))
    for _ in range(options.rounds):
        # Losses beyond the grid: V is at most 1 on the left, and falls on the right.
        padded = np.pad(value, last, constant_values=(1.0, value[-1]))
        after = np.asarray(irfft(rfft(padded, length) * np.array(spectra), length))
        after = after[:, 2 * last :][:, : 2 * n + 1] + np.array(infinite)[:, None]
        value = np.minimum(after.max(0) + _ROUNDING, 1)
    return float(x[np.flatnonzero(value > options.delta)[-1] + 1])


def _largest(profiles: np.ndarray) -> list[int]:
    """Returns the rows that no other row exceeds everywhere."""
    kept: list[int] = []
    for row in np.argsort(-profiles.sum(1), kind="stable"):
        if not any((profiles[row] <= profiles[other]).all() for other in kept):
            kept.append(int(row))
    return kept


def main(options: Options) -> None:
    """Prints the bound beside those of the accountant and of two fixed choices."""
    extremes = [(2.0, 0.0, 2.0), (0.0, 2.0, 2.0)]
    print("every alpha at its worst:", epsilon(options, [(2.0, 2.0, 2.0)]))
    print("the same uploads in all rounds:", epsilon(options, extremes[:1]))
    print("one of two extremes:", epsilon(options, extremes))
    triangles = [*extremes, *cells(options.cells)]
    print(f"all uploads, {options.cells} cells:", epsilon(options, triangles))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
