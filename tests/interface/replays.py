"""The same families as eager NumPy loops over clients, written from the papers' pseudo-code.

Every function takes ``rounds``, per round the (client, version, steps) of those who report, and
returns the server's model after each round, ``[T, d]``, in double precision.  Nothing here is
shared with the library or with ``families.py``.
"""

import numpy as np
from regression import START, grad


def _soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


def _synchronous(rounds, one_round):
    """``one_round(x, visits) -> x``; a round in which nobody reports is skipped."""
    x, path = START, []
    for visits in rounds:
        x = one_round(x, [(i, steps) for i, _, steps in visits]) if visits else x
        path.append(x)
    return np.array(path)


def fedmid(rounds, lr, server_lr, lam):
    def one_round(x, visits):
        ends = []
        for i, n in visits:
            y = x
            for k in range(n):
                y = _soft(y - lr * grad(i, y, k), lr * lam)
            ends.append(y)
        spent = server_lr * lr * np.mean([n for _, n in visits])
        return _soft(x + server_lr * (np.mean(ends, axis=0) - x), spent * lam)

    return _synchronous(rounds, one_round)


def feddualavg(rounds, lr, server_lr, lam):
    dual, elapsed = START, 0.0

    def one_round(x, visits):
        nonlocal dual, elapsed
        ends = []
        for i, n in visits:
            z = dual
            for k in range(n):
                z = z - lr * grad(i, _soft(z, (elapsed + lr * k) * lam), k)
            ends.append(z)
        dual = dual + server_lr * (np.mean(ends, axis=0) - dual)
        elapsed += server_lr * lr * np.mean([n for _, n in visits])
        return _soft(dual, elapsed * lam)

    return _synchronous(rounds, one_round)
