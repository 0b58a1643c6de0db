"""The same families as eager NumPy loops over clients, written from the papers' pseudo-code.

Every function takes ``rounds``, per round the (client, version, steps) of those who report, and
returns the server's model after each round, ``[T, d]``, in double precision.  Nothing here is
shared with the library or with ``families.py``.
"""

import numpy as np
from schedules import IS_BIAS, START, M, full_grad, grad


def _zeros():
    return np.zeros((M, START.size))


def _soft(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0)


def _unit(v, eps):
    return v / (np.linalg.norm(v) + eps)


def descend(x, steps, lr, g):
    for k in range(steps):
        x = x - lr * g(x, k)
    return x


def _synchronous(rounds, one_round):
    """``one_round(x, visits) -> x``; a round in which nobody reports is skipped."""
    x, path = START, []
    for visits in rounds:
        x = one_round(x, [(i, steps) for i, _, steps in visits]) if visits else x
        path.append(x)
    return np.array(path)


def _of_sam(radius):
    def g(i, x, k):
        return grad(i, x + radius * _unit(grad(i, x, k), 1e-12), k)

    return g


def fedavg(rounds, lr, gradient=grad):
    def one_round(x, visits):
        ends = [descend(x, n, lr, lambda y, k, i=i: gradient(i, y, k)) for i, n in visits]
        return np.mean(ends, axis=0)

    return _synchronous(rounds, one_round)


def fedsam(rounds, lr, radius):
    return fedavg(rounds, lr, _of_sam(radius))


def fedasam(rounds, lr, radius, eta):
    def g(i, x, k):
        t = np.where(IS_BIAS, 1, np.abs(x) + eta)
        ascent = grad(i, x, k)
        return grad(i, x + radius * t**2 * ascent / np.linalg.norm(t * ascent), k)

    return fedavg(rounds, lr, g)


def dithered_fedavg(rounds, noise, lr, unit):
    """``noise[t][client]`` in [0, 1)^d: the dither of that visit."""
    x, path = START, []
    for t, visits in enumerate(rounds):
        sent = []
        for i, _, n in visits:
            delta = x - descend(x, n, lr, lambda y, k, i=i: grad(i, y, k))
            sent.append(unit * np.floor(delta / unit + noise[t][i]))
        x = x - np.mean(sent, axis=0) if sent else x
        path.append(x)
    return np.array(path)


def fedac(rounds, eta, gamma, alpha, beta):
    x = ag = START
    path = []
    for visits in rounds:
        pairs = []
        for i, _, n in visits:
            y, y_ag = x, ag
            for k in range(n):
                middle = y / beta + (1 - 1 / beta) * y_ag
                g = grad(i, middle, k)
                y_ag = middle - eta * g
                y = (1 - 1 / alpha) * y + middle / alpha - gamma * g
            pairs.append((y, y_ag))
        if pairs:
            x, ag = np.mean(pairs, axis=0)
        path.append(ag)
    return np.array(path)


def _mean_of_all_gradients(x, visits):
    """Over all (client, step) pairs of the round."""
    return np.mean([grad(i, x, k) for i, n in visits for k in range(n)], axis=0)


def mb_sgd(rounds, lr):
    return _synchronous(rounds, lambda x, visits: x - lr * _mean_of_all_gradients(x, visits))


def mb_ac_sgd(rounds, eta, gamma, alpha, beta):
    other = START

    def one_round(ag, visits):
        nonlocal other
        middle = other / beta + (1 - 1 / beta) * ag
        g = _mean_of_all_gradients(middle, visits)
        other = (1 - 1 / alpha) * other + middle / alpha - gamma * g
        return middle - eta * g

    return _synchronous(rounds, one_round)


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


def fedswa(rounds, lr, rho, alpha):
    def one_round(x, visits):
        ends = []
        for i, n in visits:
            y = x
            for k in range(n):
                y = y - (lr * (1 - k / n) + k / n * rho * lr) * grad(i, y, k)
            ends.append(y)
        return x + alpha * (np.mean(ends, axis=0) - x)

    return _synchronous(rounds, one_round)


def fedmoswa(rounds, lr, rho, alpha, gamma, option="II", start=None):
    """``start`` [M, d]: the clients' first controls, whose mean is the server's."""
    c = _zeros() if start is None else start.copy()
    m = c.mean(axis=0)

    def one_round(x, visits):
        nonlocal m
        ends, news = [], []
        for i, n in visits:
            rates = [lr * (1 - k / n) + k / n * rho * lr for k in range(n)]
            y = x
            for k, eta in enumerate(rates):
                y = y - eta * (grad(i, y, k) - c[i] + m)
            c[i] = full_grad(i, x) if option == "I" else c[i] - m + (x - y) / sum(rates)
            ends.append(y)
            news.append(c[i] - m)
        m = m + gamma * np.mean(news, axis=0)
        return x + alpha * (np.mean(ends, axis=0) - x)

    return _synchronous(rounds, one_round)


def feddyn(rounds, lr, weight):
    u, h = _zeros(), np.zeros_like(START)

    def one_round(x, visits):
        nonlocal h
        deltas = []
        for i, n in visits:
            y = descend(x, n, lr, lambda y, k, i=i: grad(i, y, k) - u[i] + weight * (y - x))
            deltas.append(y - x)
            u[i] -= weight * deltas[-1]
        h = h - weight / M * np.sum(deltas, axis=0)
        return x + np.mean(deltas, axis=0) - h / weight

    return _synchronous(rounds, one_round)


def mofedsam(rounds, lr, radius, mix):
    past, sam = np.zeros_like(START), _of_sam(radius)

    def one_round(x, visits):
        nonlocal past
        ends = [
            descend(x, n, lr, lambda y, k, i=i: mix * sam(i, y, k) + (1 - mix) * past)
            for i, n in visits
        ]
        past = np.mean([(x - y) / (lr * n) for y, (_, n) in zip(ends, visits, strict=True)], axis=0)
        return np.mean(ends, axis=0)

    return _synchronous(rounds, one_round)


def fedgamma(rounds, lr, radius):
    ci, c, sam = _zeros(), np.zeros_like(START), _of_sam(radius)

    def one_round(x, visits):
        nonlocal c
        ends, change = [], np.zeros_like(START)
        for i, n in visits:
            y = descend(x, n, lr, lambda y, k, i=i: sam(i, y, k) - ci[i] + c)
            new = ci[i] - c + (x - y) / (n * lr)
            change += new - ci[i]
            ci[i] = new
            ends.append(y)
        c = c + change / M
        return np.mean(ends, axis=0)

    return _synchronous(rounds, one_round)


def fedlesam(rounds, lr, radius):
    received = {}

    def one_round(x, visits):
        ends = []
        for i, n in visits:
            e = radius * _unit(received.get(i, x) - x, 1e-7)
            received[i] = x
            ends.append(descend(x, n, lr, lambda y, k, i=i, e=e: grad(i, y + e, k)))
        return np.mean(ends, axis=0)

    return _synchronous(rounds, one_round)


def fedacg(rounds, lr, decay, weight):
    momentum = np.zeros_like(START)

    def one_round(x, visits):
        nonlocal momentum
        x0 = x + decay * momentum
        ends = []
        for i, n in visits:
            y = descend(x0, n, lr, lambda y, k, i=i: grad(i, y, k) + weight * (y - x0))
            ends.append(y)
        momentum = decay * momentum + np.mean(ends, axis=0) - x0
        return np.mean(ends, axis=0)

    return _synchronous(rounds, one_round)


def fedsmoo(rounds, lr, weight, radius):
    h, mu, s = _zeros(), _zeros(), np.zeros_like(START)

    def one_round(x0, visits):
        nonlocal s
        ends = []
        for i, n in visits:
            x = x0
            for k in range(n):
                e = radius * _unit(grad(i, x, k) - mu[i] - s, 1e-7)
                mu[i] = mu[i] + e - s
                x = x - lr * (grad(i, x + e, k) + weight * (h[i] - x0 + x))
            h[i] = h[i] + x - x0
            ends.append(x)
        s = radius * _unit(np.mean([mu[i] for i, _ in visits], axis=0), 1e-7)
        return np.mean(ends, axis=0) + h.mean(axis=0)

    return _synchronous(rounds, one_round)
