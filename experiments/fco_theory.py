"""FedDualAvg and FedMiD beside their theorems: quadratics with an l1 penalty or in an l1 ball.

    python -m experiments.fco_theory
    python -m experiments.fco_theory --repetitions 4 --rounds 8 32

Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Theorems 4.3, 4.4
and 4.7.  M clients with F_m(x) = x' A x / 2 + c_m' x and additive noise of fixed length, so that L,
sigma, zeta, G and B are known exactly; every bound at the rate that its theorem prescribes.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.output import write
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.composite_optimum import composite_optimum
from fedjax_sim.prox import L1, Composite, L1Ball, composite
from fedjax_sim.theory import feddualavg, feddualavg_regimes

DIM, NUM_CLIENTS, CONDITION = 20, 16, 20.0
WEIGHT, RADIUS = 0.1, 1.0  # of the l1 penalty, of the l1 ball
NOISE = 0.5  # length of every client's gradient noise
SPREAD = 0.5  # standard deviation of the entries of c_m
LOCAL_STEPS = (1, 4, 16)
# Stated without a proof, and false: see fedjax_sim.theory.feddualavg.
NOT_A_THEOREM = "4.3 (FedMiD)"
SMALL = 1e-3  # share of the client rate in the product of rates, for "small enough"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: tuple[int, ...] = (8, 32, 128, 512)
    repetitions: int = 16
    seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        if not self.rounds or min(self.rounds) < 1:
            raise ValueError(f"rounds is {self.rounds}; expected positive numbers of rounds")
        if self.repetitions < 2:
            raise ValueError(f"repetitions is {self.repetitions}; expected at least 2")


class Problem(NamedTuple):
    """The clients' quadratics."""

    hessian: np.ndarray  # A, [d, d]
    linear: np.ndarray  # c_m, [M, d]

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue."""
        return float(np.linalg.eigvalsh(self.hessian)[-1])


def problem(seed: int) -> Problem:
    """Eigenvalues from 1 / CONDITION to 1; clients differ in their linear terms."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    hessian = basis * np.geomspace(1 / CONDITION, 1, DIM) @ basis.T
    truth = np.where(np.arange(DIM) < DIM // 4, 1.0, 0.0)
    linear = -hessian @ truth + SPREAD * rng.normal(size=(NUM_CLIENTS, DIM))
    return Problem(hessian, linear)


def oracle(problem: Problem, client: Any, key: Any, max_steps: int) -> fs.Oracle:
    """Gradients with noise of random signs: its length never varies."""
    del max_steps
    a, c = jnp.asarray(problem.hessian), jnp.asarray(problem.linear)[client]

    def grad(x: Any, k: Any) -> Any:
        signs = jax.random.rademacher(jax.random.fold_in(key, k), (DIM,), x.dtype)
        return a @ x + c + NOISE / DIM**0.5 * signs

    return fs.Oracle(grad, lambda x, k: x @ a @ x / 2 + c @ x, lambda x: a @ x + c)


def smooth(problem: Problem, x: Any) -> Any:
    """F."""
    a, c = jnp.asarray(problem.hessian), jnp.asarray(problem.linear.mean(0))
    return x @ a @ x / 2 + c @ x


def dual_norm(problem: Problem, y: np.ndarray) -> np.ndarray:
    """That of Theorem 4.7, over the last axis: sqrt(||A|| y' A^-1 y)."""
    solved = np.linalg.solve(problem.hessian, y[..., None])[..., 0]
    return np.sqrt(problem.smoothness * np.sum(y * solved, axis=-1))


class Theorem(NamedTuple):
    """A theorem on an instance."""

    name: str
    regularizer: Composite
    lr: Callable  # prescribed, of the constants
    bound: Callable  # of the constants and lr
    tuned: Callable  # of the constants
    constants: dict[str, float]
    algorithm: Callable[[Any], fs.FedAlgorithm]  # of the prescribed rate


# Theorem 4.3: the rate, the bound at a rate, the bound at that rate.
SMALL_RATE = (
    feddualavg_regimes.small_client_rate_lr,
    feddualavg_regimes.small_client_rate_bound,
    feddualavg_regimes.tuned_small_client_rate_bound,
)


def theorems(problem: Problem) -> list[Theorem]:
    """The three theorems with the exact constants of the problem, but B."""
    penalty, ball = composite(L1(WEIGHT)), composite(L1Ball(RADIUS))
    deviations = problem.linear - problem.linear.mean(0)
    zeta = float(dual_norm(problem, deviations).max())
    # The noise has covariance NOISE^2 / d I.
    inverse = float(np.trace(np.linalg.inv(problem.hessian)))
    sigma_a = NOISE * (problem.smoothness * inverse / DIM) ** 0.5
    corners = RADIUS * np.concatenate([problem.hessian, -problem.hessian])
    largest = np.linalg.norm(corners[:, None] + problem.linear, axis=-1).max() + NOISE
    L = problem.smoothness
    return [
        Theorem(
            "4.3",
            penalty,
            *SMALL_RATE,
            {"L": L, "sigma": NOISE},
            lambda lr: fs.average_rounds(fs.feddualavg(SMALL * lr, penalty, 1 / SMALL)),
        ),
        Theorem(
            "4.3 (OSP)",
            penalty,
            *SMALL_RATE,
            {"L": L, "sigma": NOISE},
            lambda lr: fs.average_rounds(fs.fedmid_osp(SMALL * lr, penalty, 1 / SMALL)),
        ),
        Theorem(
            NOT_A_THEOREM,
            ball,
            *SMALL_RATE,
            {"L": L, "sigma": NOISE},
            lambda lr: fs.average_rounds(fs.fedmid(SMALL * lr, ball, 1 / SMALL)),
        ),
        Theorem(
            "4.4",
            ball,
            feddualavg.bounded_gradient_lr,
            feddualavg.bounded_gradient_bound,
            feddualavg.tuned_bounded_gradient_bound,
            {"L": L, "sigma": NOISE, "G": float(largest)},
            lambda lr: fs.averaged_feddualavg(lr, ball),
        ),
        Theorem(
            "4.7",
            penalty,
            feddualavg_regimes.quadratic_lr,
            feddualavg_regimes.quadratic_bound,
            feddualavg_regimes.tuned_quadratic_bound,
            {"L": L, "sigma": sigma_a, "zeta": zeta},
            lambda lr: fs.averaged_feddualavg(lr, penalty),
        ),
    ]


def objective(problem: Problem, regularizer: Composite, x: Any) -> Any:
    """Phi; averages of points of the ball are in the ball, to rounding."""
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
        final, _ = fs.run(theorem.algorithm(lr), task, timeline, start, key)
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
        constants = theorem.constants | {"B": distance / 2**0.5}  # B^2 = D_h(x*, 0)
        for K in LOCAL_STEPS:
            for R in options.rounds:
                known = constants | {"M": NUM_CLIENTS, "K": K, "R": R}
                lr = float(theorem.lr(**known))
                measured = gaps(problem, theorem, best.value, K, R, lr, options)
                error = measured.std(ddof=1) / options.repetitions**0.5
                bound = float(theorem.bound(lr=lr, **known))
                found.append(
                    {
                        "theorem": theorem.name, "K": K, "R": R, "lr": lr,
                        "gap": measured.mean(), "standard error": error,
                        "bound": bound, "tuned bound": float(theorem.tuned(**known)),
                        "bound / gap": bound / measured.mean(),
                        "holds": bool(measured.mean() - 3 * error <= bound),
                    }
                )  # fmt: skip
    return pd.DataFrame(found)


def figure(table: pd.DataFrame) -> Any:
    """Gaps and bounds against rounds, a panel a theorem."""
    names = list(dict.fromkeys(table["theorem"]))
    drawn, axes = plt.subplots(1, len(names), figsize=(15, 3.6), layout="constrained", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for i, K in enumerate(LOCAL_STEPS):
            part = table.loc[(table["theorem"] == name) & (table["K"] == K)]
            axis.loglog(part["R"], part["gap"], f"C{i}o-", label=f"K = {K}")
            axis.loglog(part["R"], part["bound"], f"C{i}--")
        axis.set(title=f"Theorem {name}", xlabel="rounds")
    axes[0].legend(frameon=False)
    axes[0].set(ylabel="Phi - Phi*; dashed: bound")
    return drawn


def main(options: Options) -> None:
    """Runs, compares, writes and draws."""
    with jax.enable_x64(True):
        table = rows(problem(options.seed), options)
    setting = (
        f"d = {DIM}, M = {NUM_CLIENTS}, L = 1, condition number {CONDITION:g}, l1 weight {WEIGHT} "
        f"(4.3, 4.7) or l1 radius {RADIUS} (4.4, FedMiD); {options.repetitions} "
        f"repetitions; rates as prescribed, for 4.3 a client rate of {SMALL:g} of the product."
    )
    proved = table["theorem"] != NOT_A_THEOREM
    count = " ".join(
        f"{name}: {np.count_nonzero(part['holds'])} of {len(part)} bounds hold."
        for name, part in (("Theorems", table[proved]), ("FedMiD", table[~proved]))
    )
    text = f"# FedDualAvg beside its theorems\n\n{setting}\n\n{markdown(table)}\n\n{count}"
    print(text, flush=True)
    folder = options.output / "fco_theory"
    write(folder, "fco_theory", table, text, options=dataclasses.asdict(options))
    drawn = figure(table)
    drawn.savefig(folder / "fco_theory.png", dpi=90)
    plt.close(drawn)


if __name__ == "__main__":
    main(tyro.cli(Options))
