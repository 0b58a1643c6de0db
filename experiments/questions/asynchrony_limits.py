r"""Limits of asynchronous methods on quadratics, from the clients' rates of contribution.

The clients are :math:`F_i(x) = \tfrac12 \sum_j a_{ij} (x_j - b_{ij})^2`, so that a visit of E exact
gradient steps of the rate :math:`\eta` from w ends at :math:`w - q_i(E)(w - b_i)` with
:math:`q_i(E) = 1 - (1 - \eta a_i)^E`, elementwise.  Timelines depend neither on models nor on data,
and expectations of a linear recursion are again linear.  The mean of each method's stationary law
is therefore a weighted mean of the clients' minimisers,

.. math:: m = \Bigl(\sum_i H_i\Bigr)^{-1} \sum_i H_i b_i,

which is the optimum if :math:`H_i \propto a_i`.  :func:`influence` returns H.

* **Contacts** (FAVANO, QuAFL).  Cohorts are independent of the past, and the number of steps of a
  visit is independent of the model that it started from.  With :math:`Q_i = E[q_i(E)]` and cohorts
  of s out of n clients:

  - QuAFL: the server's rule gives :math:`m = \frac1n \sum_i E[y_i]`, the clients' rule
    :math:`(s + 1) E[w_i] = m + s E[y_i]`, the local steps
    :math:`E[y_i] = (1 - Q_i) E[w_i] + Q_i b_i`.  So :math:`E[y_i] - m = (s + 1) H_i (b_i - m)` with
    :math:`H_i = Q_i / (1 + s Q_i)`.
  - FAVANO: :math:`m = \frac1n \sum_i U_i` with the mean uploads
    :math:`U_i = (1 - G_i) V_i + G_i b_i` and :math:`G_i = E[q_i(E) / \alpha_i]`.  A contacted
    client receives a model that contains its own upload, with the mean
    :math:`V_i = (1 - c) m + c\, U_i`,
    :math:`c = (n - s) / ((n - 1)(s + 1))`.  So :math:`H_i = G_i / (1 - c + c\, G_i)`.

  Both are exact at every rate.
* **Arrivals** (FedBuff, FedAsync).  An upload changes the server's model by a rate times
  :math:`-s(\tau)\, q_i(K)(w^\tau - b_i)`, and the changes add up to nothing in the long run, so
  :math:`H_i = r_i\, E_i[s(\tau)]\, q_i(K)` with :math:`r_i` the client's uploads per unit of time.
  This takes the models that clients start from to have one mean for all clients, which holds up to
  the order of the server's rate.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats


class System(NamedTuple):
    """Speeds and sizes that decide how often and how far clients move the server's model."""

    success: np.ndarray  # [M] chance that a step ends in a unit of time
    steps: int  # the cap K of contacts, the steps K of arrivals
    cohort: int  # clients s per contact
    interval: int  # units of time between contacts
    buffer: int  # uploads Z per update of arrivals


def count_law(system: System) -> np.ndarray:
    """Law of the number of steps at a contact, ``[M, K + 1]``: Bin(interval R, success), capped."""
    chance = system.cohort / len(system.success)
    windows = np.arange(1, int(np.ceil(np.log(1e-12) / np.log1p(-chance))) + 1)
    weights = chance * (1 - chance) ** (windows - 1)
    success, inverse = np.unique(system.success, return_inverse=True)
    counts = np.arange(system.steps)
    below = stats.binom.pmf(
        counts, system.interval * windows[:, None], success[:, None, None]
    )  # [speeds, windows, K]
    law = np.einsum("r,prk->pk", weights, below)
    return np.concatenate([law, 1 - law.sum(axis=1, keepdims=True)], axis=1)[inverse]


def expected_steps(system: System) -> np.ndarray:
    """FAVANO's deterministic alpha, ``[M]``, Equation 3: the mean number of steps at a contact."""
    return count_law(system) @ np.arange(system.steps + 1)


def upload_rates(system: System) -> np.ndarray:
    """Uploads per unit of time of clients that do K steps and wait for the buffer, ``[M]``.

    A client waits for half of the buffer on average, ``(Z - 1) / 2`` uploads of all clients.
    """
    visit = system.steps / system.success
    rates = 1 / visit
    for _ in range(100):  # a contraction: the wait is short against a visit
        rates = 1 / (visit + (system.buffer - 1) / 2 / rates.sum())
    return rates


def staleness_weights(system: System, power: float) -> np.ndarray:
    """Mean of ``(1 + tau)^-power`` over a client's uploads, ``[M]``, for a buffer of one upload.

    Staleness tau is the number of the other clients' uploads during a visit.  Its spread around
    their rate times the visit's duration counts to second order, as that of a Poisson number, which
    is an upper bound: uploads are more regular.
    """
    rates = upload_rates(system)
    success, inverse = np.unique(system.success, return_inverse=True)
    found = []
    for p in success:
        others = rates.sum() - p / system.steps
        extra = np.arange(int(stats.nbinom.ppf(1 - 1e-10, system.steps, p)) + 1)
        tau = others * (system.steps + extra)
        spread = 1 + power * (power + 1) / 2 * tau / (1 + tau) ** 2
        law = stats.nbinom.pmf(extra, system.steps, p)
        found.append(float(law @ ((1 + tau) ** -power * spread)))
    return np.array(found)[inverse]


def moved(lr: float, a: np.ndarray, law: np.ndarray) -> np.ndarray:
    """``Q = E[1 - (1 - lr a)^E]``, of the shape ``[M, d]`` of ``a``; ``law`` ``[M, K + 1]``."""
    kept = (1 - lr * a)[..., None] ** np.arange(law.shape[1])
    return 1 - np.einsum("mdk,mk->md", kept, law)


def influence(
    method: str, corrected: bool, system: System, lr: float, a: np.ndarray, power: float
) -> np.ndarray:
    """H, ``[M, d]``, of a method with or without the weights that correct for speeds.

    Args:
        method: "FAVANO", "QuAFL", "FedBuff", "FedAsync" or "FedAsync, stale less", whose weight of
            staleness is ``(1 + tau)^-power``.
        corrected: with FAVANO's alpha (FAVANO, and QuAFL by its clients' rates), or with uploads
            times :func:`correction`; otherwise alpha is 1 and so are the weights.
        a: curvatures, ``[M, d]``.
    """
    count = len(a)
    if method in ("FAVANO", "QuAFL"):
        law = count_law(system)
        alpha = expected_steps(system)[:, None] if corrected else np.ones((count, 1))
        if method == "QuAFL":
            moves = moved(1.0, lr * a / alpha, law)
            return moves / (1 + system.cohort * moves)
        moves = moved(lr, a, law) / alpha
        own = (count - system.cohort) / ((count - 1) * (system.cohort + 1))
        return moves / (1 - own + own * moves)
    moves = 1 - (1 - lr * a) ** system.steps
    return moves if corrected else contributions(method, system, power)[:, None] * moves


def contributions(method: str, system: System, power: float) -> np.ndarray:
    """Share of each client in the uploads, times its mean weight of staleness, ``[M]``."""
    rates = upload_rates(system)
    weights = staleness_weights(system, power) if method == "FedAsync, stale less" else 1.0
    return rates / rates.sum() * weights


def correction(method: str, system: System, power: float) -> np.ndarray:
    """Weights of uploads that make all clients contribute equally, ``[M]``; no larger rate."""
    shares = contributions(method, system, power)
    return shares.sum() / (len(shares) * shares)


def limit(weights: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The weighted mean of the minimisers ``b`` ``[M, d]`` by weights ``[M, d]``."""
    return (weights * b).sum(axis=0) / weights.sum(axis=0)
