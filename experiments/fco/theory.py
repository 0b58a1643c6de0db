"""FedDualAvg and FedMiD beside their theorems: quadratics with an l1 penalty or in an l1 ball.

    python -m experiments.fco.theory
    python -m experiments.fco.theory --repetitions 4 --rounds 8 32

Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Theorems 4.3, 4.4
and 4.7.  M clients with F_m(x) = x' A x / 2 + c_m' x and additive noise of fixed length, so that L,
sigma, zeta, G and B are known exactly; every bound at the rate that its theorem prescribes.
"""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.fco.composite_optimum import composite_optimum
from experiments.fco.quadratics import (
    DIM,
    NUM_CLIENTS,
    Problem,
    make_problem,
    oracle,
    smooth,
)
from experiments.fco.theorems import Theorem, theorems
from experiments.fco.theory_report import save
from experiments.harness.options import check_grid, settings
from fedjax_sim.checks import check_at_least

LOCAL_STEPS = (1, 4, 16)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: tuple[int, ...] = (8, 32, 128, 512)
    repetitions: int = 16
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/fco")

    def __post_init__(self) -> None:
        check_grid(rounds=self.rounds)
        check_at_least(2, repetitions=self.repetitions)


def objective(problem: Problem, regularizer: fs.prox.Composite, x: Any) -> Any:
    """The objective Phi; averages of points of the ball are in the ball, to rounding."""
    return smooth(problem, x) + regularizer.value(x)


def gaps(
    problem: Problem, theorem: Theorem, optimum: float, K: int, R: int, lr: float, options: Options
) -> np.ndarray:
    """Phi - Phi* of the averaged output after R rounds, of every repetition."""
    ones = np.ones(NUM_CLIENTS, np.int32)
    timeline = fs.timelines.full(R, NUM_CLIENTS, K)

    def one(problem: Problem, lr: Any, key: Any) -> Any:
        task = fs.Task(Partial(oracle, problem), ones, K * ones)
        start = jnp.zeros(DIM)
        final, _ = fs.run(theorem.algorithm(lr), fs.Setup(task, timeline, start), key)
        return objective(problem, theorem.regularizer, final.server.params)

    keys = jax.random.split(jax.random.key(options.seed), options.repetitions)
    over = jax.jit(jax.vmap(one, (None, None, 0)))
    return np.asarray(over(problem, jnp.asarray(lr), keys)) - optimum


def rows(problem: Problem, options: Options) -> pd.DataFrame:
    """A row per theorem, K and R."""
    found = []
    for theorem in theorems(problem):
        best = composite_optimum(
            Partial(smooth, problem), theorem.regularizer, jnp.zeros(DIM), tolerance=1e-11
        )
        distance = float(np.linalg.norm(best.params))
        constants = theorem.constants._replace(B_h=distance / 2**0.5)  # B_h^2 = D_h(x*, 0)
        for K in LOCAL_STEPS:
            for R in options.rounds:
                sizes = {"local_steps": K, "rounds": R, "clients": NUM_CLIENTS}
                lr = float(theorem.lr(constants, **sizes))
                measured = gaps(problem, theorem, best.value, K, R, lr, options)
                error = measured.std(ddof=1) / options.repetitions**0.5
                bound = float(theorem.bound(constants, lr=lr, **sizes))
                found.append(
                    {
                        "theorem": theorem.name, "K": K, "R": R, "lr": lr,
                        "gap": measured.mean(), "standard error": error,
                        "bound": bound, "tuned bound": float(theorem.tuned(constants, **sizes)),
                        "bound / gap": bound / measured.mean(),
                        "holds": bool(measured.mean() - 3 * error <= bound),
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def main(options: Options) -> None:
    """Runs, compares and writes the report."""
    with jax.enable_x64(True):
        table = rows(make_problem(options.seed), options)
    save(options.output / "theory", table, settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
