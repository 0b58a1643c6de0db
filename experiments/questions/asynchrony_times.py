r"""Share of slow clients in the uploads over time, and when it is stationary.

All clients begin at time 0.  A visit of K steps whose durations are geometric takes the time of a
negative binomial law f on the whole numbers, and the expected uploads of a client at time t follow
from the renewal equation :math:`u = f + f * u`.  A visit's relative spread is
:math:`\sqrt{(1 - p) / K}` for the chance p of a step's end, so its oscillations fade like
:math:`2 \exp(-2 \pi^2 p (1 - p) t / K^2)`.
"""

import numpy as np
from scipy import signal, stats

TOLERANCE = 0.1  # relative, of a share that counts as stationary


def uploads(success: float, steps: int, horizon: int) -> np.ndarray:
    """Expected uploads of one client at the times 0 .. horizon, without waits."""
    law = stats.nbinom.pmf(np.arange(horizon + 1) - steps, steps, success)
    impulse = np.zeros(horizon + 1)
    impulse[0] = 1.0
    return np.asarray(signal.lfilter(law, np.concatenate([[1.0], -law[1:]]), impulse))


def windowed(counts: np.ndarray, window: int) -> np.ndarray:
    """Sums over successive windows, ``[T // window]``, from those of each unit of time, ``[T]``."""
    whole = counts[: len(counts) // window * window]
    return whole.reshape(-1, window).sum(axis=1)


def expected_share(
    slow_fraction: float, slow: float, fast: float, steps: int, horizon: int, window: int
) -> np.ndarray:
    """Slow clients' share of the expected uploads in every window."""
    of_slow = slow_fraction * windowed(uploads(slow, steps, horizon)[1:], window)
    of_fast = (1 - slow_fraction) * windowed(uploads(fast, steps, horizon)[1:], window)
    total = of_slow + of_fast
    return np.divide(of_slow, total, out=np.zeros_like(total), where=total > 0)


def stationary_from(shares: np.ndarray, limit: float, window: int) -> float:
    """End of the last window whose share is off its limit by more than the tolerance."""
    off = np.flatnonzero(abs(shares / limit - 1) > TOLERANCE)
    return float(window * (off[-1] + 1)) if len(off) else 0.0


def law_of_time(slow: float, steps: int, limit: float) -> float:
    """Time at which the first harmonic of slow clients' uploads has faded to the tolerance."""
    amplitude = 2 * (1 - limit) / TOLERANCE
    return steps**2 * np.log(amplitude) / (2 * np.pi**2 * slow * (1 - slow))


def contact_shares(
    slow_fraction: float,
    slow: float,
    fast: float,
    steps: int,
    chance: float,
    interval: int,
    count: int,
) -> np.ndarray:
    """Slow clients' share of the expected local steps at contacts 1 .. count.

    The time since the last contact is cut at the start, which all clients share.
    """
    done = []
    for success in (slow, fast):
        windows = np.arange(1, count + 1)
        law = stats.binom.pmf(np.arange(steps), interval * windows[:, None], success)
        mean = law @ np.arange(steps) + steps * (1 - law.sum(axis=1))  # [count] after R windows
        ended = chance * (1 - chance) ** (windows - 1)
        before = np.concatenate([[0.0], np.cumsum(ended * mean)[:-1]])
        done.append(before + (1 - chance) ** (windows - 1) * mean)
    of_slow, of_fast = slow_fraction * done[0], (1 - slow_fraction) * done[1]
    return of_slow / (of_slow + of_fast)
