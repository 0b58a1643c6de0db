"""FedAc against FedAvg and minibatch SGD on logistic regression: the tables of the FedAc paper.

    python -m experiments.fedac_a9a --setting a9a-1e-3 --data-dir DATA
    python -m experiments.fedac_a9a --setting a9a-1e-4 --clients 64 1024 --local-steps 1 32

Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020, section 5; Yuan, "On
Principled Local Optimization Methods for Federated Learning", 2023, section 3.7.  M clients draw
one row a step, with replacement, of the same data; 4,096 steps, K of them a round; the objective is
evaluated every 512 steps; the score of a rate is the best value less the optimum, that of an
algorithm that of its best rate.  All rates of a cell are one compiled program; finished cells are
kept in ``--runs`` and not repeated.

The authors' numbers are read, if present, from the ``out/<run>/summary.csv`` of their program,
saved as ``summary_<dataset>_<l2>.csv`` in the folder that FEDAC_PUBLISHED names.
"""

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial
from rich.console import Console

import fedjax_sim as fs
from experiments import fedac_report
from experiments.fedac_numpy import numpy_seconds
from fedjax_sim import datasets, transforms
from fedjax_sim.cli.console import sweep_progress
from fedjax_sim.diagnostics.optimum import optimum
from fedjax_sim.execution.devices import use_all_cores

NUM_STEPS, EVALUATED = 4096, 512  # parallel steps; steps between evaluations

Method = Callable[[Any, float, int], fs.FedAlgorithm]  # (lr, l2, K)
LOCAL: dict[str, Method] = {
    "fedavg": lambda lr, l2, K: fs.fedavg(lr),
    "fedac_i": lambda lr, l2, K: fs.fedac(lr, l2, K),
    "fedac_ii_code": lambda lr, l2, K: fs.fedac(lr, l2, K, "II_code"),
    "fedac_ii": lambda lr, l2, K: fs.fedac(lr, l2, K, "II"),
    "vanilla_fedac": lambda lr, l2, K: fs.fedac(lr, l2, K, "vanilla"),
}
MINIBATCH: dict[str, Method] = {
    "mb_sgd": lambda lr, l2, K: fs.mb_sgd(lr),
    "mb_ac_sgd": lambda lr, l2, K: fs.mb_ac_sgd(lr, l2),
}
_FOUR = ("fedavg", "fedac_i", "mb_sgd", "mb_ac_sgd")


class Setting(NamedTuple):
    """A figure of the paper."""

    dataset: str
    l2: float  # also the estimate of the strong convexity
    lrs: tuple[float, ...]
    methods: tuple[str, ...]
    optimum: float  # F*, as the authors' program has it


def rates(first: float, count: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... times ``first``, which is a power of 10 or 5 times one."""
    steps = [float(f"{m}e{e}") for e in range(-4, 3) for m in (1, 2, 5)]
    start = steps.index(first)
    return tuple(steps[start : start + count])


_SIX = (*_FOUR, "fedac_ii_code", "vanilla_fedac")
SETTINGS = {
    "a9a-1e-2": Setting("a9a", 1e-2, rates(1e-3, 13), _FOUR, 0.3727237615595949),
    "a9a-1e-3": Setting("a9a", 1e-3, rates(1e-3, 13), _SIX, 0.3333407530091771),
    "a9a-1e-4": Setting("a9a", 1e-4, rates(1e-3, 12), _SIX, 0.3245069255709821),
    "epsilon-1e-4": Setting("epsilon", 1e-4, rates(5e-3, 13), _FOUR, 0.47130400753628965),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    setting: str = "a9a-1e-3"
    clients: tuple[int, ...] = tuple(2**i for i in range(2, 14))  # M
    local_steps: tuple[int, ...] = tuple(2**i for i in range(9))  # K
    few_rounds: tuple[int, ...] = ()  # further M, only for K of at least 32
    methods: tuple[str, ...] = ()  # default: the setting's
    data_dir: pathlib.Path | None = None  # default: FEDJAX_SIM_DATA
    runs: pathlib.Path = pathlib.Path("results/fedac")  # of finished cells
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise ValueError(f"setting is {self.setting!r}; expected one of {', '.join(SETTINGS)}")
        for steps in self.local_steps:
            if steps < 1 or EVALUATED % steps:
                raise ValueError(
                    f"local_steps has {steps}; expected divisors of {EVALUATED}, the steps between "
                    "evaluations"
                )
        for name in ("clients", "few_rounds"):
            if min(getattr(self, name), default=1) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected numbers of at least 1")
        if not self.clients:
            raise ValueError("clients is (); expected some")
        for name in self.methods:
            if name not in LOCAL | MINIBATCH:
                known = ", ".join(LOCAL | MINIBATCH)
                raise ValueError(f"methods has {name!r}; expected some of {known}")

    @property
    def grids(self) -> list[dict[str, tuple]]:
        """The cells, as grids of a sweep."""
        lrs, few = SETTINGS[self.setting].lrs, tuple(k for k in self.local_steps if k >= 32)
        parts = [(self.clients, self.local_steps), (self.few_rounds, few)]
        return [{"lr": lrs, "clients": m, "local_steps": k} for m, k in parts if m and k]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The methods that run."""
        return self.methods or SETTINGS[self.setting].methods


def losses(w: jax.Array, batch: dict[str, jax.Array], key: Any) -> jax.Array:
    """Logistic losses; the models first in the product, as in :mod:`fedjax_sim.models.dense`."""
    del key
    z = w @ batch["x"].T
    return jax.nn.softplus(z) - batch["y"] * z


def initial(num_features: int) -> np.ndarray:
    """The common start of the authors' runs."""
    return np.random.RandomState(1).randn(num_features)


def make_setup(
    data: dict[str, np.ndarray], name: str, l2: float, clients: int, local_steps: int
) -> fs.Setup:
    """A cell: all clients in every round; a minibatch method's K gradients are one batch of K rows,
    which are those that K steps of the others draw."""
    if name in LOCAL:
        method, steps, batches = LOCAL[name], local_steps, fs.with_replacement(1, local_steps)
    else:
        method, steps, batches = MINIBATCH[name], 1, fs.with_replacement(local_steps, 1)
    regular = functools.partial(transforms.add_decayed_weights, weight=l2)
    start = initial(data["x"].shape[1]).astype(np.float32)
    return fs.Setup(
        algorithm=lambda lr: transforms.transform_oracle(method(lr, l2, local_steps), regular),
        task=fs.shared_task(losses, data, clients, batches),
        timeline=fs.timelines.full(NUM_STEPS // local_steps, clients, steps),
        params=jnp.asarray(start)[None],
        eval_fn=lambda w: {"model": w},  # its value is taken in double precision, afterwards
        eval_every=EVALUATED // local_steps,
    )


def objective(data: dict[str, np.ndarray], l2: float) -> Callable[[np.ndarray], np.ndarray]:
    """F in double precision, of models ``[..., d]``; infinite where a model is not finite."""
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    mean_x_of_ones = x.T @ y / len(y)

    def value(models: np.ndarray) -> np.ndarray:
        flat = models.reshape(-1, models.shape[-1]).astype(np.float64)
        finite = np.isfinite(flat).all(-1)
        # Beyond 1e100 squares would overflow; such a model is no better than an infinite one.
        finite &= np.abs(np.where(np.isfinite(flat), flat, 0)).max(-1) < 1e100
        w = np.where(finite[:, None], flat, 0)
        logistic = np.logaddexp(0, x @ w.T).mean(0) - w @ mean_x_of_ones
        found = logistic + l2 / 2 * np.square(w).sum(-1)
        return np.where(finite, found, np.inf).reshape(models.shape[:-1])

    return value


def minimum(data: dict[str, np.ndarray], l2: float) -> float:
    """F* by Newton's method in double precision."""
    loss = Partial(functools.partial(_regularised, l2), data["x"], data["y"])
    return optimum(loss, jnp.zeros(data["x"].shape[1])).value


def _regularised(l2: float, x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.mean(losses(w, {"x": x, "y": y}, None)) + l2 / 2 * w @ w


def measure(options: Options, data: dict[str, np.ndarray], least: float) -> pd.DataFrame:
    """A row per (algorithm, M, K, rate): its score, and in which round it diverged (0: not)."""
    setting = SETTINGS[options.setting]
    value = objective(data, setting.l2)
    at_start = float(value(initial(data["x"].shape[1])))
    rows = []
    for grid, name in itertools.product(options.grids, options.chosen):
        with sweep_progress(Console(stderr=True)) as on_progress:
            result = fs.sweep(
                functools.partial(make_setup, data, name, setting.l2),
                grid,
                jax.random.split(jax.random.key(1), 1),
                static=("clients", "local_steps"),
                directory=options.runs / options.setting / name,
                on_progress=on_progress,
            )
        if result.interrupted:
            raise KeyboardInterrupt
        found = value(np.stack([run.history.metrics["model"] for run in result.runs]))
        for run, values in zip(result.runs, found, strict=True):
            c = run.configuration
            rows.append(
                {"algorithm": name, "M": c["clients"], "K": c["local_steps"], "lr": c["lr"]}
                | {"score": min(values.min(), at_start) - least, "diverged_at": run.diverged_at}
            )
    return pd.DataFrame(rows)


def timing(options: Options, data: dict[str, np.ndarray]) -> pd.DataFrame:
    """Seconds of a run, in a sweep over the rates, beside a NumPy loop of the same algorithm.

    For the two local methods at the cell of at most 1,024 clients and 64 steps that is run.
    """
    setting = SETTINGS[options.setting]
    clients = max((m for m in options.clients if m <= 1024), default=min(options.clients))
    steps = max((k for k in options.local_steps if k <= 64), default=min(options.local_steps))
    rows = []
    for name in ("fedavg", "fedac_i"):
        cell = make_setup(data, name, setting.l2, clients, steps)
        keys = jax.random.split(jax.random.key(1), 1)
        found = fs.sweep(cell, {"lr": setting.lrs}, keys)
        ours = found.run_seconds / len(setting.lrs)
        theirs = numpy_seconds(data, name, setting.l2, clients, steps, NUM_STEPS)
        rows.append(
            {"algorithm": name, "M": clients, "K": steps, "seconds a run, of a sweep": ours}
            | {"NumPy loop": theirs, "ratio": theirs / ours, "compiling": found.compile_seconds}
        )
    return pd.DataFrame(rows)


def main(options: Options) -> None:
    """Runs the cells, compares with the authors' numbers, writes and draws."""
    use_all_cores()
    setting = SETTINGS[options.setting]
    loaded = datasets.load(setting.dataset, options.data_dir)
    data = {"x": loaded.train["x"], "y": loaded.train["y"].astype(np.float32)}
    least = minimum(data, setting.l2)
    seconds = timing(options, data)
    table = measure(options, data, least)
    published = fedac_report.published(
        os.environ.get("FEDAC_PUBLISHED"), setting.dataset, setting.l2, setting.lrs, setting.optimum
    )
    facts = {
        "rows": len(data["y"]),
        "F*": least,
        "F* - authors": least - setting.optimum,
        "options": json.loads(json.dumps(dataclasses.asdict(options), default=str)),
    }
    for private in ("data_dir", "runs", "output"):
        facts["options"].pop(private)
    fedac_report.write_report(
        options.output / "fedac", options.setting, table, published, seconds, facts
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
