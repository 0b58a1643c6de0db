"""Length of one server step of synchronous and asynchronous methods.

The constants C of Table 1 in the runtime model of Appendix C.2 (see
:mod:`fedjax_sim.theory.favano`).  FedBuff's has no closed form: it is the long-run mean over a
simulated clock.  NumPy in double precision on the host.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def clocked_step_time(waiting: float = 4.0, interaction: float = 3.0) -> float:
    """Server step of FAVANO and QuAFL, which do not wait for clients: ``waiting + interaction``."""
    for name, value in (("waiting", waiting), ("interaction", interaction)):
        _check_time(name, value)
    return waiting + interaction


def async_sgd_step_time(durations: ArrayLike) -> float:
    """Server step of asynchronous SGD: mean time between gradients of clients that never pause.

    ``1 / sum_i (1 / duration_i)``

    Args:
        durations: mean duration of a local step for each client, positive.
    """
    times = np.asarray(durations, np.float64)
    if times.size == 0 or not np.all(times > 0):
        raise ValueError(f"durations is {durations}; expected positive numbers, one per client")
    return float(1 / np.sum(1 / times))


def fedavg_step_time(
    success: ArrayLike, *, cohort_size: int, local_steps: int, interaction: float = 3.0
) -> float:
    r"""Server step of FedAvg, which waits for the slowest client of its cohort.

    .. math:: C = interaction + E \max_{i \in S} (\tau_{i1} + \dots + \tau_{iK})

    S is a uniform cohort of s clients without replacement, the durations ``tau_ik`` are independent
    and geometric: a step ends in every time unit with probability ``success_i``.  Exact: the sums
    are negative binomial, and the probability that all of a random cohort have finished by t is
    built up client by client.

    Args:
        success: for each of the n clients, in (0, 1]; the inverse of its steps' mean duration.
        cohort_size: s, 1 .. n.
        local_steps: K.
        interaction: time that the server itself takes.
    """
    rates, s, K = np.asarray(success, np.float64), cohort_size, local_steps
    if rates.ndim != 1 or not np.all((rates > 0) & (rates <= 1)):
        raise ValueError(f"success is {success}; expected probabilities above 0, one per client")
    if not 1 <= s <= rates.size:
        raise ValueError(f"cohort_size is {s}; expected 1 .. {rates.size}, the number of clients")
    if K < 1:
        raise ValueError(f"local_steps is {K}; expected at least 1")
    _check_time("interaction", interaction)
    # Until then the slowest client has done about 12 standard deviations more than K steps.
    horizon = math.ceil((K + 12 * K**0.5 + 60) / rates.min())
    distinct, which = np.unique(rates, return_inverse=True)
    finished = np.stack([_finished(rate, K, horizon) for rate in distinct])
    # all_of[k]: of a random subset of k of the clients so far, at times 0 .. horizon - 1.  The
    # client added last is in it with probability k / clients.
    all_of = np.zeros((s + 1, horizon))
    all_of[0] = 1
    for clients, client in enumerate(which, start=1):
        share = np.arange(1, min(s, clients) + 1)[:, None] / clients
        size = len(share)
        with_it = share * finished[client] * all_of[:size]
        all_of[1 : size + 1] = with_it + (1 - share) * all_of[1 : size + 1]
    return interaction + float(np.sum(1 - all_of[s]))


def _finished(rate: float, K: int, horizon: int) -> np.ndarray:
    """Probability that K steps took at most t = 0 .. horizon - 1 time units."""
    law = np.zeros(horizon)
    law[K] = 1.0
    if rate < 1:  # C(t - 1, K - 1) rate^K (1 - rate)^(t - K), by its ratios
        t = np.arange(K, horizon - 1)
        logs = np.concatenate([[0.0], np.cumsum(np.log(t / (t - K + 1) * (1 - rate)))])
        law[K:] = np.exp(logs + K * math.log(rate))
    return np.minimum(np.cumsum(law), 1.0)


def _check_time(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} is {value}; expected a non-negative time")
