"""FedAvg on the lower-bound instance: no rate makes it fast.

    python -m experiments.local_methods.lower_bound
    python -m experiments.local_methods.lower_bound --repetitions 50 --rates 9

Section 2.3.1 of the thesis: the expected value E F of the last model, at every rate of a
logarithmic grid up to 2 / L, and mu B^2.
"""

import dataclasses
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness.options import settings
from experiments.harness.report import Report
from experiments.harness.tables import at_edge
from fedjax_sim.checks import check_at_least
from fedjax_sim.problems.lower_bound import (
    Instance,
    coordinate_losses,
    hard_instance,
    initial_model,
    lower_bound_task,
    noiseless_coordinates,
)

SMOOTHNESS, DISTANCE = 1.0, 1.0  # L, B
PARTS = ("F1", "F2", "F3", "F4")


class Case(NamedTuple):
    """Budget and heterogeneity of a sweep over rates."""

    clients: int  # M
    local_steps: int  # K
    rounds: int  # R
    std: float  # sigma
    zeta: float  # zeta_*

    @property
    def constants(self) -> Instance:
        """The instance for this budget."""
        return hard_instance(
            DISTANCE, self.std, self.zeta, self.local_steps, self.rounds, SMOOTHNESS
        )


CASES = (Case(8, 16, 32, 1.0, 0.0), Case(8, 16, 32, 1.0, 1.0), Case(8, 64, 32, 4.0, 0.0))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    repetitions: int = 400
    rates: int = 25  # from 1e-3 to 2 / L
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/local_methods")

    def __post_init__(self) -> None:
        check_at_least(2, repetitions=self.repetitions, rates=self.rates)


def finals(case: Case, lrs: np.ndarray, repetitions: int, seed: int) -> np.ndarray:
    """The last models ``[rates, repetitions, 4]``; all rates see the same noise."""
    timeline = fs.timelines.full(case.rounds, case.clients, case.local_steps)
    task = lower_bound_task(case.constants, case.clients, case.local_steps)

    def one(task: fs.Task, lr: jax.Array, key: jax.Array) -> jax.Array:
        final, _ = fs.run(
            fs.fedavg(lr),
            fs.Setup(task, timeline, initial_model(DISTANCE)),
            key,
            execution=fs.execution.vmapped(),
        )
        return final.server.params

    over = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None)))
    keys = jax.random.split(jax.random.key(seed), repetitions)
    return np.asarray(over(task, jnp.asarray(lrs, jnp.result_type(float)), keys))


def sweep(case: Case, options: Options) -> pd.DataFrame:
    """A row per rate: E F, its standard error and its parts, and those in closed form."""
    lrs = np.geomspace(1e-3, 2 / SMOOTHNESS, options.rates)
    models = finals(case, lrs, options.repetitions, options.seed).astype(np.float64)
    constants = case.constants
    parts = np.asarray(coordinate_losses(jnp.asarray(models), constants))
    exact = [
        noiseless_coordinates(constants, lr, DISTANCE, case.local_steps, case.rounds) for lr in lrs
    ]
    closed = np.asarray(coordinate_losses(jnp.pad(jnp.stack(exact), ((0, 0), (1, 0))), constants))
    total = parts.sum(-1)
    return pd.DataFrame(
        case._asdict()
        | {"mu": constants.mu, "lr": lrs, "E F": total.mean(1)}
        | {"standard error": total.std(1) / options.repetitions**0.5}
        | {name: parts[..., i].mean(1) for i, name in enumerate(PARTS)}
        | {f"{name} closed": closed[:, i] for i, name in enumerate(PARTS) if i}
        | {"E x1": models[..., 0].mean(1)}
        | {"E F / (2 mu B^2)": total.mean(1) / (2 * constants.mu * DISTANCE**2)}
    )


def figure(tables: list[pd.DataFrame]) -> Any:
    """E F and its parts against the rate, a panel per case."""
    drawn, axes = plt.subplots(1, len(tables), figsize=(14, 4.2), layout="constrained", sharey=True)
    for axis, table in zip(np.atleast_1d(axes), tables, strict=True):
        case = table.to_dict("records")[0]
        axis.loglog(table["lr"], table["E F"], "k", lw=2, label="E F")
        for i, name in enumerate(PARTS):
            axis.loglog(table["lr"], table[name].clip(lower=1e-8), f"C{i}", ls="--", label=name)
        axis.axhline(case["mu"] * DISTANCE**2, color="0.5", ls=":", label="mu B^2")
        title = "K = {local_steps}, R = {rounds}, sigma = {std:g}, zeta = {zeta:g}".format(**case)
        axis.set(title=title, xlabel="rate", ylim=(1e-5, 1))
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    np.atleast_1d(axes)[0].set(ylabel="value after the last round")
    return drawn


def main(options: Options) -> None:
    """Sweeps and writes the report."""
    tables = [sweep(case, options) for case in CASES]
    best = pd.concat([table.loc[[table["E F"].idxmin()]] for table in tables])
    shown = [*Case._fields, "mu", "lr", "E F", "standard error", *PARTS, "E F / (2 mu B^2)"]
    best = best.loc[:, shown].assign(
        **{"at the grid's edge": [at_edge(lr, list(tables[0]["lr"])) for lr in best["lr"]]}
    )
    report = Report(
        "FedAvg on the lower-bound instance",
        f"L = B = 1, {options.repetitions} repetitions, {options.rates} rates from 0.001 to 2; the "
        "best of them.  F1 to F4 are the means of the four coordinates' parts of F.",
        best,
    )
    folder, drawn = options.output / "lower_bound", {"lower_bound": figure(tables)}
    history = pd.concat(tables, ignore_index=True)
    report.save(folder, "lower_bound", history, drawn, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
