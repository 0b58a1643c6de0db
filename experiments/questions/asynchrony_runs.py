"""Options and parts of the study of asynchrony, which are kept in a folder."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import (
    MACHINE,
    Folders,
    check_choice,
    settings,
)
from experiments.questions import asynchrony_limits as limits
from experiments.questions import asynchrony_times as times
from experiments.questions.asynchrony_problem import factory, measured, setup_maker
from experiments.questions.asynchrony_setting import (
    BUFFERED,
    FAST,
    INTERVAL,
    METHODS,
    SLOW,
    STEPS,
    slow_clients,
)
from fedjax_sim import timelines
from fedjax_sim.checks import check_at_least
from fedjax_sim.runs import digest, replacing


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    fractions: tuple[float, ...] = (1 / 3, 2 / 3, 0.9)  # of slow clients, with 100 clients
    sizes: tuple[int, ...] = (1000, 10_000)  # further M, with two thirds slow
    seeds: int = 10  # of problems and timelines; also groups of timelines without training
    horizon: float = 40_000.0  # of simulated time for contacts; a quarter of it for arrivals
    clocks: tuple[int, ...] = (100, 1000, 10_000, 100_000)  # M of the timelines without training
    clock_steps: tuple[int, ...] = (5, 10, 40)  # further K, with clock_clients
    clock_clients: int = 10_000  # least number of clients behind a share over time
    part: Literal["all", "limits", "clocks"] = "all"  # one part is only kept, for a later "all"
    work: pathlib.Path = pathlib.Path("results/questions")  # finished parts, to continue from

    def __post_init__(self) -> None:
        check_at_least(2, seeds=self.seeds)
        check_at_least(1000.0, horizon=self.horizon)
        check_choice(part=(self.part, Literal["all", "limits", "clocks"]))
        check_at_least(20, **{f"sizes[{i}]": size for i, size in enumerate(self.sizes)})


def trained(options: Options) -> pd.DataFrame:
    """The limits of all methods: over shares of slow clients, then over numbers of clients."""
    rows = []
    grids: list[tuple[tuple[str, ...], int, float, int, float]] = [
        (METHODS, 100, slow, options.seeds, options.horizon) for slow in options.fractions
    ]
    large = ("FAVANO", *BUFFERED)
    horizon = 0.4 * options.horizon
    grids += [(large, size, 2 / 3, options.seeds, horizon) for size in options.sizes]
    for methods, size, slow, seeds, horizon in grids:
        grid = {"method": methods, "corrected": [0.0, 1.0], "clients": [size], "slow": [slow]}
        result = fs.sweep(factory, setup_maker(seeds, horizon), grid, fs.presets.keys(seeds))
        took = f"compiling {result.compile_seconds:.0f} s, running {result.run_seconds:.0f} s"
        print(f"M = {size}, {slow:.2g} slow: {len(result.runs)} runs, {took}", flush=True)
        rows += [measured(run) for run in result.runs]
    return pd.concat(rows, ignore_index=True)


def shares(clients: int, steps: int, replicas: int, root: int, slow: float = 1 / 3) -> pd.DataFrame:
    """Slow clients' share in FedBuff's uploads over time: a row per window, all replicas pooled."""
    is_slow = slow_clients(clients, slow)
    durations = timelines.geometric(np.where(is_slow, SLOW, FAST))
    window = int(steps / FAST)
    horizon = 1.6 * times.law_of_time(SLOW, steps, 0.06)
    counts = np.zeros((2, int(horizon // window)))
    for key in jax.random.split(jax.random.key(root), replicas):
        timeline = timelines.arrivals(
            key, durations, horizon=horizon, num_clients=clients, num_steps=steps,
            buffer=max(clients // 10, 1),
        )  # fmt: skip
        at = np.minimum(np.asarray(timeline.time) // window, counts.shape[1] - 1).astype(int)
        of_slow = is_slow[np.asarray(timeline.clients)].sum(axis=1)
        np.add.at(counts[0], at, of_slow)
        np.add.at(counts[1], at, timeline.cohort_size)
    fast = np.where(is_slow, SLOW, FAST)
    rates = limits.upload_rates(limits.System(fast, steps, 1, INTERVAL, max(clients // 10, 1)))
    limit = rates[is_slow].sum() / rates.sum()
    share = counts[0] / np.maximum(counts[1], 1)
    expected = times.expected_share(slow, SLOW, FAST, steps, int(horizon) + 1, window)
    rows = {"time": window * (np.arange(len(share)) + 1), "share": share, "limit": limit}
    rows |= {"expected": expected[: len(share)], "updates per time": rates.sum() / (clients // 10)}
    ids = {"clients": clients, "steps": steps, "group": root}
    return pd.DataFrame(ids | rows)


def clocked(options: Options) -> pd.DataFrame:
    """Shares over time for all sizes, and for other numbers of steps, by groups of replicas."""
    cases = [(clients, STEPS) for clients in options.clocks]
    cases += [(options.clock_clients, steps) for steps in options.clock_steps]
    found = []
    for clients, steps in cases:
        replicas = max(1, options.clock_clients // clients)
        found += [shares(clients, steps, replicas, root) for root in range(options.seeds)]
        print(f"shares of {clients} clients, K = {steps}", flush=True)
    return pd.concat(found, ignore_index=True)


def kept(options: Options, name: str, compute: Callable[[Options], pd.DataFrame]) -> pd.DataFrame:
    """The table in the folder of finished parts; computes and writes it if there is none."""
    identity = settings(options, without=(*MACHINE, "part"))
    path = options.work / f"asynchrony-{digest(identity)}-{name}.csv"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        table = compute(options)
        with replacing(path) as partial:
            table.to_csv(partial, index=False)
    return pd.read_csv(path)
