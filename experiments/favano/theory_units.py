"""Units of time of five methods, Table 1 of FAVANO, for quadratics with known constants."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.favano import step_times, units
from experiments.favano.quadratics import FAST, SLOW, problem

EPSILONS = (1e-1, 1e-2, 1e-3)


def unit_table(seed: int, n: int = 100, s: int = 20, K: int = 20, Z: int = 10) -> pd.DataFrame:
    """Table 1 with these quadratics' constants and the paper's clocks, constants taken as 1."""
    constants = problem(seed, n).constants
    rows = []
    for name, fraction in (("1/3", 1 / 3), ("8/9", 8 / 9)):
        speed = np.where(np.arange(n) < np.ceil(fraction * n), SLOW, FAST)
        law = fs.theory.step_counts.renewal(speed, K, int(step_times.clocked_step_time()), s / n)
        known: dict[str, Any] = {
            "constants": constants, "clients": n, "cohort_size": s, "local_steps": K
        }  # fmt: skip
        progress = fs.theory.favano.progress.progress_constants(law, local_steps=K)
        buffered, single = clocks(seed, speed, K, Z)
        delays = np.arange(single.num_rounds)[:, None] - np.asarray(single.version)
        wait = float(buffered.time[-1]) / buffered.num_rounds
        methods: dict[str, tuple[float, Callable[[float], Any]]] = {
            "FedAvg": (
                step_times.fedavg_step_time(speed, cohort_size=s, local_steps=K),
                lambda eps, known=known: units.fedavg_units(eps=eps, **known),
            ),
            "FedBuff": (
                wait,
                lambda eps, tau=buffered.max_staleness: units.fedbuff_units(
                    constants, eps=eps, clients=n, cohort_size=Z, max_staleness=tau
                ),
            ),
            "AsyncSGD": (
                step_times.async_sgd_step_time(1 / speed),
                lambda eps, d=delays: units.async_sgd_units(
                    constants,
                    eps=eps,
                    cohort_size=n,
                    mean_staleness=float(d.mean()),
                    max_staleness=int(d.max()),
                ),
            ),
            "QuAFL": (
                step_times.clocked_step_time(),
                lambda eps, known=known, law=law: units.quafl_units(
                    eps=eps, **known, mean_steps=float(law.mean.mean())
                ),
            ),
            "FAVANO": (
                step_times.clocked_step_time(),
                lambda eps, known=known, progress=progress: units.favano_units(
                    eps=eps, **known, progress=progress
                ),
            ),
        }
        for method, (wait, steps) in methods.items():
            values = {f"eps = {eps:g}": float(steps(eps)) * wait for eps in EPSILONS}
            rows.append({"slow": name, "method": method, "time per step": wait, **values})
    return pd.DataFrame(rows)


def clocks(seed: int, speed: np.ndarray, K: int, Z: int) -> tuple[fs.Timeline, fs.Timeline]:
    """Long schedules of FedBuff and asynchronous SGD."""
    key, n = jax.random.key(seed), len(speed)
    buffered = fs.timelines.arrivals(
        key, fs.timelines.geometric(speed), horizon=10_000.0, num_clients=n, num_steps=K, buffer=Z,
        interaction=3.0,
    )  # fmt: skip
    single = fs.timelines.arrivals(
        key, fs.timelines.geometric(speed), horizon=500.0, num_clients=n, num_steps=1
    )
    return buffered, single
