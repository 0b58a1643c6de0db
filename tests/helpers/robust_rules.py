"""Robust rules in NumPy, from their definitions: uploads ``[n, d]``, all of which arrived.

Uploads that are not finite are rows of infinities.
"""

import numpy as np


def reference_uploads():
    """Twelve uploads of five numbers; the last three are far from the others."""
    i, j = np.arange(1, 13)[:, None], np.arange(1, 6)
    x = np.sin(i * j) + 0.1 * j
    x[9:] = (x[9:] + 4 * np.array([1, -1, 1, -1, 1])) * np.array([[1], [1.5], [2]])
    return x


def zero_if_infinite(x):
    return np.where(np.isfinite(x), x, 0.0)


def are_finite(x):
    return np.isfinite(x).all(axis=1)


def mean(x, weights=None):
    weights = (np.ones(len(x)) if weights is None else weights) * are_finite(x)
    return weights @ zero_if_infinite(x) / weights.sum() if weights.any() else np.zeros(x.shape[1])


def median(x):
    ordered = np.sort(x, axis=0)
    middle = [len(x) // 2] if len(x) % 2 else [len(x) // 2 - 1, len(x) // 2]
    return np.mean([zero_if_infinite(ordered[k]) for k in middle], axis=0)


def weighted_median(x, weights):
    result = []
    for column in x.T:
        order = [k for k in np.argsort(column, kind="stable") if weights[k] > 0]
        until, half = np.cumsum(weights[order]), weights.sum() / 2
        first = next(k for k, total in enumerate(until) if total >= half)
        values = [column[order[first]]]
        if until[first] == half:
            values.append(column[order[first + 1]])
        result.append(np.mean(zero_if_infinite(np.array(values))))
    return np.array(result)


def trimmed_mean(x, f):
    return zero_if_infinite(np.sort(x, axis=0)[f : len(x) - f]).mean(axis=0)


def squared_distances(x):
    finite, result = are_finite(x), np.full((len(x), len(x)), np.inf)
    for a in np.flatnonzero(finite):
        for b in np.flatnonzero(finite):
            result[a, b] = ((x[a] - x[b]) ** 2).sum()
    return result


def scores(x, neighbours):
    distances = squared_distances(x)
    return np.array(
        [np.sort(np.delete(row, k))[:neighbours].sum() for k, row in enumerate(distances)]
    )


def multi_krum(x, f, m):
    order = np.argsort(scores(x, len(x) - f - 2), kind="stable")
    return zero_if_infinite(x[order[:m]]).mean(axis=0)


def krum(x, f):
    return multi_krum(x, f, 1)


def bulyan_picks(x, f):
    left, picks = list(range(len(x))), []
    while len(picks) < len(x) - 2 * f:
        among = scores(x[left], max(len(left) - f - 2, 1))
        picks.append(left.pop(int(np.argmin(among))))
    return picks


def bulyan(x, f):
    selected = x[sorted(bulyan_picks(x, f))]
    beta = len(selected) - 2 * f
    result = []
    for column, centre in zip(selected.T, median(selected), strict=True):
        far = np.abs(np.where(np.isfinite(column), column, np.inf) - centre)
        nearest = np.argsort(far, kind="stable")[:beta]
        result.append(zero_if_infinite(column[nearest]).mean())
    return np.array(result)


def geometric_median(x, iterations, nu=1e-5, weights=None):
    start = median(x) if weights is None else weighted_median(x, weights)
    return weiszfeld(x, start, iterations, nu, weights)


def rfa(x, iterations, nu=1e-5, weights=None):
    return weiszfeld(x, mean(x, weights), iterations, nu, weights)


def weiszfeld(x, z, iterations, nu, weights):
    weights = np.ones(len(x)) if weights is None else weights
    for _ in range(iterations):
        distances = np.linalg.norm(zero_if_infinite(x) - z, axis=1)
        z = mean(x, weights / np.maximum(nu, distances))
    return z


def centred_clipping(x, previous, tau, iterations, weights=None):
    weights = np.ones(len(x)) if weights is None else weights
    v = previous
    for _ in range(iterations):
        rows = [
            (row - v) * min(1.0, tau / max(np.linalg.norm(row - v), 1e-300))
            if np.isfinite(row).all()
            else np.full_like(row, np.inf)
            for row in x
        ]
        v = v + mean(np.array(rows), weights)
    return v


def nnm(x, f):
    result = x.copy()
    for k, row in enumerate(squared_distances(x)):
        if np.isfinite(x[k]).all():
            nearest = np.argsort(row, kind="stable")[: len(x) - f]
            result[k] = zero_if_infinite(x[nearest]).mean(axis=0)
    return result


def bucketing(x, order, size, weights=None):
    weights = np.ones(len(x)) if weights is None else weights
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    return np.array(
        [
            mean(x[part], weights[part])
            if (are_finite(x[part]) & (weights[part] > 0)).any()
            else np.full(x.shape[1], np.inf)
            for part in parts
        ]
    )
