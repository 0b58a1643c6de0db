"""FAVANO on clients f_i = x' A x / 2 + c_i' x, in the model of its analysis, in NumPy."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.theory.step_counts import geometric

CLIENTS, DIM, CAP, SIGMA = 5, 3, 4, 0.5
SUCCESS = np.array([0.5, 0.5, 0.2, 0.2, 0.2])  # of the geometric numbers of steps
LAW = geometric(SUCCESS, CAP)
HESSIAN = np.array([1.0, 0.6, 0.3])


class Measured(NamedTuple):
    """Means over repetitions, for every server step t < T."""

    gradient: np.ndarray  # [T] ||grad f(mu_t)||^2
    potential: np.ndarray  # [T + 1]
    progress: np.ndarray  # [T] sum_i ||h_i / alpha_i||^2
    descent: np.ndarray  # [T] sum_i <grad f(mu_t), -h_i / alpha_i>
    mean_step: np.ndarray  # [T] ||mu_{t+1} - mu_t||^2
    distance: np.ndarray  # [T, n] ||w_i - mu_t||^2
    client_gradient: np.ndarray  # [T, n] ||grad f_i(mu_t)||^2
    used: np.ndarray  # [T, n, K] ||h_q^i||^2
    stochastic: np.ndarray  # [T, n, K] the stochastic gradient's square
    error: np.ndarray  # [T, n, K] ||grad f_i(mu_t) - h_q^i||^2


def simulate(
    rng: np.random.Generator, lr: float, s: int, T: int, repetitions: int, version: str
) -> tuple[Measured, dict[str, Any], float]:
    """Measured means, constants of the problem by symbol, and F = f(mu_0) - inf f."""
    n, d, K = CLIENTS, DIM, CAP
    c = rng.normal(size=(n, d))
    shape = (repetitions, n, d)
    server, clients = np.full((repetitions, d), 2.0), np.full(shape, 2.0)
    rows: dict[str, list] = {name: [] for name in Measured._fields}

    def square(x: np.ndarray) -> np.ndarray:
        return (x**2).sum(-1).mean(0)

    def mean_model() -> np.ndarray:
        return (server + clients.sum(1)) / (n + 1)

    mu = mean_model()
    for _ in range(T):
        gradient, each = HESSIAN * mu + c.mean(0), (HESSIAN * mu)[:, None] + c
        # All K steps of everyone: the gradients do not depend on how many a client does.
        x, exact, drawn = clients, [], []
        for _ in range(K):
            exact.append(HESSIAN * x + c)
            drawn.append(exact[-1] + SIGMA / d**0.5 * rng.normal(size=shape))
            x = x - lr * drawn[-1]
        exact, drawn = np.stack(exact, 2), np.stack(drawn, 2)  # [R, n, K, d]
        steps = np.minimum(rng.geometric(SUCCESS, (repetitions, n)), K)
        done = np.arange(K) < steps[..., None]
        alpha = LAW.p_active * steps if version == "stochastic" else LAW.mean
        total = (drawn * done[..., None]).sum(2) / (alpha * np.ones((repetitions, n)))[..., None]
        rows["gradient"].append(square(gradient))
        rows["potential"].append(square(server - mu) + square(clients - mu[:, None]).sum())
        rows["progress"].append(square(total).sum())
        rows["descent"].append(-(total * gradient[:, None]).sum((1, 2)).mean())
        rows["distance"].append(square(clients - mu[:, None]))
        rows["client_gradient"].append(square(each))
        rows["used"].append(square(exact))
        rows["stochastic"].append(square(drawn))
        rows["error"].append(square(each[:, :, None] - exact))
        chosen = rng.permuted(np.tile(np.arange(n), (repetitions, 1)), axis=1) < s
        sent = np.where(chosen[..., None], clients - lr * total, 0).sum(1)
        server = (server + sent) / (s + 1)
        clients = np.where(chosen[..., None], server[:, None], clients)
        before, mu = mu, mean_model()
        rows["mean_step"].append(square(mu - before))
    rows["potential"].append(square(server - mu) + square(clients - mu[:, None]).sum())

    spread = ((c - c.mean(0)) ** 2).sum(1).mean()  # mean ||grad f_i||^2 - ||grad f||^2, at all x
    start, best = 2 * np.ones(d), -c.mean(0) / HESSIAN
    F = start @ (HESSIAN * start) / 2 + c.mean(0) @ start
    F -= best @ (HESSIAN * best) / 2 + c.mean(0) @ best
    constants = {"L": 1.0, "sigma": SIGMA, "G": spread**0.5, "B": 1.0, "n": n, "s": s, "K": K}
    return Measured(**{name: np.array(values) for name, values in rows.items()}), constants, F
