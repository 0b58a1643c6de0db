"""The asynchronous families as eager NumPy loops that keep every old model; see ``replays.py``."""

import numpy as np
from replays import descend
from schedules import START, M, grad


def _stale(rounds, one_round):
    """``one_round(x, visits, past) -> x``; past[v] is the model after v updates."""
    past = [START]
    for visits in rounds:
        past.append(one_round(past[-1], visits, past) if visits else past[-1])
    return np.array(past[1:])


def _end(start, i, n, lr):
    return descend(start, n, lr, lambda y, k: grad(i, y, k))


def favano(rounds, lr, scale, alpha):
    """``alpha(client, steps)``."""

    def one_round(w, visits, past):
        total = w
        for i, v, n in visits:
            progress = _end(past[v], i, n, lr) - past[v]
            total = total + past[v] + (progress / (scale * alpha(i, n)) if n else 0)
        return total / (len(visits) + 1)

    return _stale(rounds, one_round)


def quafl(rounds, lr, through=lambda x, near: x):
    own = np.tile(START, (M, 1))

    def one_round(w, visits, past):
        s, total = len(visits), w
        for i, _, n in visits:
            y = _end(own[i], i, n, lr)
            total = total + through(y, w)
            own[i] = (through(w, y) + s * y) / (s + 1)
        return total / (s + 1)

    return _stale(rounds, one_round)


def nearest_multiple(cell):
    """What the lattice channel must give as long as the two vectors are close enough."""
    return lambda x, near: cell * np.round(x / cell)


def fedbuff(rounds, lr, server_lr, power):
    def one_round(w, visits, past):
        # len(past) - 1 updates were done: the staleness is that minus v.
        deltas = [
            (past[v] - _end(past[v], i, n, lr)) * float(len(past) - v) ** -power
            for i, v, n in visits
        ]
        return w - server_lr * np.mean(deltas, axis=0)

    return _stale(rounds, one_round)


def fedasync(rounds, lr, mix, power, weight):
    def one_round(w, visits, past):
        ((i, v, n),) = visits
        x0 = past[v]
        y = descend(x0, n, lr, lambda y, k: grad(i, y, k) + weight * (y - x0))
        share = mix * float(len(past) - v) ** -power
        return (1 - share) * w + share * y

    return _stale(rounds, one_round)


def async_sgd(rounds, lr, bound, patience=1):
    def one_round(w, visits, past):
        ((i, v, _),) = visits
        delay = len(past) - 1 - v
        return w - (lr if delay <= patience else min(lr, bound / delay)) * grad(i, past[v], 0)

    return _stale(rounds, one_round)
