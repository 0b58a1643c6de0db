r"""Second moments of quadratic federated learning with random cohorts, exactly; and a law.

One coordinate of clients ``F_i(x) = a_i (x - b_i)^2 / 2`` has the state z = (1, x, m, c_1 .. c_M):
the model, the server's control and the clients' controls.  A visit of client i with the correction
``u = m - c_i`` (0 in FedAvg) has the mean gradient, weighted by its rates,

.. math::
    v_i = q_i\,(a_i (x - b_i) + u) - u + \zeta_i, \qquad
    q_i = \frac{1 - \prod_k (1 - \eta_k a_i)}{a_i E}, \quad E = \sum_k \eta_k

and moves the model by ``-alpha E (v_i + u) / s``, so a round is ``z <- (A + sum_{i in S} B_i) z``
with a random cohort S of s clients, and the mean of ``z z^T`` follows a linear recursion.

The law is the stationary variance in continuous time: x, m and the mean of the controls are three
linear equations that are driven by the mean of a cohort's minimisers, white noise of the variance
``(1/s - 1/M) var(b)``.  With ``h = alpha E q a`` and ``r = s / M``

.. math::
    E (x - x^*)^2 \approx \frac{h}{2} \left(\frac1s - \frac1M\right) \operatorname{var}(b)\;
    \frac{(r + \gamma)(r + h)}{(r + \gamma)(r + 2 h) + 2 h^2}

whose first factors are FedAvg's floor, and whose last one is 1 where h is small beside r.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

Method = Literal["FedAvg", "SCAFFOLD", "FedMo", "FedMoSWA"]


class Sizes(NamedTuple):
    """Numbers that all methods have."""

    cohort: int  # s
    rates: np.ndarray  # [K], of the steps of a visit
    server_lr: float  # alpha
    gamma: float  # only of FedMo and FedMoSWA
    noise: float = 0.0  # standard deviation of a gradient


class Maps(NamedTuple):
    """A round: ``z + fixed z``, and for every visiting client i three rows that are added.

    Controls of FedAvg stay 0.  ``spread`` is the standard deviation of ``zeta_i``, and ``per_zeta``
    its factors in x, m and c_i.
    """

    fixed: np.ndarray  # [n]: added to m by every round, n = 3 + M
    model: np.ndarray  # [M, n]
    control: np.ndarray  # [M, n]
    own: np.ndarray  # [M, n]
    spread: np.ndarray  # [M]
    per_zeta: np.ndarray  # [3]


def progress(a: np.ndarray, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``q_i`` and the factors of a gradient's standard deviation in ``zeta_i``, ``[M]``."""
    kept = np.cumprod((1 - rates[:, None] * a)[::-1], axis=0)[::-1]
    after = np.concatenate([kept[1:], np.ones((1, len(a)))])
    total = rates.sum()
    q = (1 - kept[0]) / (a * total)
    return q, np.sqrt(np.square(rates[:, None] * after).sum(axis=0)) / total


def maps(method: Method, a: np.ndarray, b: np.ndarray, sizes: Sizes) -> Maps:
    """The round of one coordinate whose clients have curvatures a and minimisers b, ``[M]``."""
    clients = np.arange(len(a))
    q, spread = progress(a, sizes.rates)
    correction = np.zeros((len(a), 3 + len(a)))
    gradient = np.zeros_like(correction)
    gradient[:, 0], gradient[:, 1] = -a * b, a
    if method != "FedAvg":
        correction[:, 2], correction[clients, 3 + clients] = 1, -1
    moved = q[:, None] * (gradient + correction)  # the displacement over E
    new = moved - correction  # the client's next control
    change = new.copy()
    change[clients, 3 + clients] -= 1
    step = -sizes.server_lr * sizes.rates.sum() / sizes.cohort
    fixed = np.zeros(3 + len(a))
    if method == "FedAvg":
        nothing = np.zeros_like(moved)
        parts, per_zeta = (step * moved, nothing, nothing), (step, 0, 0)
    elif method == "SCAFFOLD":
        parts, per_zeta = (step * moved, change / len(a), change), (step, 1 / len(a), 1)
    else:
        share = sizes.gamma / sizes.cohort
        fixed[2] = -sizes.gamma
        parts, per_zeta = (step * moved, share * new, change), (step, share, 1)
    return Maps(fixed, *parts, sizes.noise * spread, np.asarray(per_zeta, np.float64))


def distances(
    method: Method, a: np.ndarray, b: np.ndarray, sizes: Sizes, rounds: int
) -> np.ndarray:
    """Mean square distance of x from the optimum after each round, ``[rounds]``, from z = 0."""
    optimum = (a * b).sum() / a.sum()
    one = maps(method, a, b - optimum, sizes)
    num_clients, s = len(a), sizes.cohort
    p = s / num_clients
    pairs = s * (s - 1) / (num_clients * max(num_clients - 1, 1))  # two clients in one cohort
    total = np.zeros((3 + num_clients, 3 + num_clients))  # the sum of the B_i
    total[1], total[2], total[3:] = one.model.sum(0), one.control.sum(0), one.own
    mean = np.eye(len(total)) + p * total
    mean[2] += one.fixed
    fresh = np.zeros_like(total)
    _add_own(fresh, np.square(one.spread)[:, None, None] * np.outer(one.per_zeta, one.per_zeta))
    rows = np.stack([one.model, one.control, one.own], axis=1)  # [M, 3, n]
    start = np.zeros(len(total))
    start[:2] = 1, -optimum
    moments = np.outer(start, start)
    found = np.empty(rounds)
    for t in range(rounds):
        new = mean @ moments @ mean.T + (pairs - p**2) * (total @ moments @ total.T) + p * fresh
        by_client = (rows.reshape(-1, len(total)) @ moments).reshape(rows.shape)
        _add_own(new, (p - pairs) * by_client @ rows.transpose(0, 2, 1))
        moments = new
        found[t] = moments[1, 1]
    return found


def _add_own(moments: np.ndarray, blocks: np.ndarray) -> None:
    """Adds the blocks ``[M, 3, 3]`` of (x, m, c_i) to moments of (1, x, m, c_1 .. c_M)."""
    places = 3 + np.arange(len(blocks))
    moments[1:3, 1:3] += blocks[:, :2, :2].sum(axis=0)
    moments[1:3, places] += blocks[:, :2, 2].T
    moments[places, 1:3] += blocks[:, 2, :2]
    moments[places, places] += blocks[:, 2, 2]


def law(h: ArrayLike, r: ArrayLike, gamma: ArrayLike) -> np.ndarray:
    """The floor over FedAvg's, a number between 0 and 1."""
    step, share, momentum = (np.asarray(value, np.float64) for value in (h, r, gamma))
    sums = share + momentum
    return sums * (share + step) / (sums * (share + 2 * step) + 2 * step**2)
