"""FedAvg and FedAc-I as NumPy loops: the speed of compiled runs beside them."""

import functools
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedac.problem import NUM_STEPS, make_algorithm, make_setup

MEASURED_STEPS = 256  # that are timed; all steps are the same work


def numpy_run(
    data: dict[str, np.ndarray],
    name: str,
    l2: float,
    lr: float,
    start: np.ndarray,
    local_steps: int,
    rows: Callable[[int], np.ndarray],
    num_steps: int,
) -> np.ndarray:
    """The model after ``num_steps``; ``rows(step)`` gives each client's row ``[M]``.

    ``name`` is "fedavg" or "fedac_i".  Models and data have the data's precision.
    """
    x, y = data["x"], data["y"]
    real = x.dtype.type
    gamma = max((lr / (l2 * local_steps)) ** 0.5, lr)
    alpha = 1 / (gamma * l2)
    beta = alpha + 1
    main = np.tile(start.astype(x.dtype), (len(rows(0)), 1))
    aggregate = main.copy()

    def gradient(w: np.ndarray, step: int) -> np.ndarray:
        xb, yb = x[rows(step)], y[rows(step)]
        residual = 1 / (1 + np.exp(-np.einsum("md,md->m", w, xb))) - yb
        return residual[:, None] * xb + real(l2) * w

    for step in range(num_steps):
        if step % local_steps == 0:
            main[:], aggregate[:] = main.mean(0), aggregate.mean(0)
        if name == "fedavg":
            main -= real(lr) * gradient(main, step)
            continue
        middle = real(1 / beta) * main + real(1 - 1 / beta) * aggregate
        g = gradient(middle, step)
        aggregate = middle - real(lr) * g
        main = real(1 - 1 / alpha) * main + real(1 / alpha) * middle - real(gamma) * g
    return (main if name == "fedavg" else aggregate).mean(0)


def numpy_seconds(
    data: dict[str, np.ndarray],
    name: str,
    l2: float,
    clients: int,
    local_steps: int,
    num_steps: int,
    lr: float = 0.1,
) -> float:
    """Seconds that ``num_steps`` take, extrapolated from a part of them."""
    measured = min(num_steps, max(MEASURED_STEPS, local_steps))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(data["y"]), size=(measured, clients))
    start = np.zeros(data["x"].shape[1])
    began = time.perf_counter()
    numpy_run(data, name, l2, lr, start, local_steps, lambda step: drawn[step], measured)
    return (time.perf_counter() - began) * num_steps / measured


def timing(
    data: dict[str, np.ndarray],
    l2: float,
    lrs: Sequence[float],
    clients: Sequence[int],
    local_steps: Sequence[int],
) -> pd.DataFrame:
    """Seconds of one run of a sweep over the rates, beside a NumPy loop of the same algorithm.

    The cell is the largest one with at most 1,024 clients and 64 local steps.
    """
    M = max((m for m in clients if m <= 1024), default=min(clients))
    K = max((k for k in local_steps if k <= 64), default=min(local_steps))
    rows = []
    for name in ("fedavg", "fedac_i"):
        setup = make_setup(data, name, M, K)
        factory = functools.partial(make_algorithm, name, l2, local_steps=K)
        result = fs.sweep(factory, setup, {"lr": lrs}, jax.random.split(jax.random.key(1), 1))
        compiled = result.run_seconds / len(lrs)
        loop = numpy_seconds(data, name, l2, M, K, NUM_STEPS)
        rows.append(
            {"algorithm": name, "M": M, "K": K}
            | {"seconds per run of a sweep": compiled, "NumPy loop": loop}
            | {"ratio": loop / compiled, "compiling": result.compile_seconds}
        )
    return pd.DataFrame(rows)
