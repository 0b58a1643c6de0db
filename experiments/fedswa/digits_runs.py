"""A small problem for whole grids: digits on which a perceptron over-fits.

8 x 8 digits, 30 for each of 20 clients.  Every seed has training digits, clients, cohorts, an
initial model and minibatches of its own, and all configurations of a seed share them.
"""

import dataclasses
import math
import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.fedswa.methods import ALPHA, GAMMA, LR_DECAY, RHO, build
from experiments.fedswa.settings import METRICS
from experiments.harness import check_grid, check_names, seed_keys, split_keys, swept
from fedjax_sim.checks import check_at_least

PARTICIPATIONS = ("partial", "full")  # Tables 4, 6 and Figure 5; Table 5
NUM_EPOCHS, BATCH_SIZE = 5, 6


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: int = 1000
    full_rounds: int = 300  # of Table 5, with all clients in each
    seeds: int = 10
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    skews: tuple[float, ...] = (0.1, 0.6)
    rhos: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 1.0)
    alphas: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5)
    gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)
    participations: tuple[str, ...] = PARTICIPATIONS
    clients: int = 20
    cohort: int = 2
    examples: int = 30  # per client
    hidden: int = 32
    eval_every: int = 10
    work: pathlib.Path = pathlib.Path("results/fedswa")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        counts = "rounds full_rounds seeds clients cohort examples hidden eval_every"
        check_at_least(1, **{name: getattr(self, name) for name in counts.split()})
        grids = "lrs skews rhos alphas gammas"
        check_grid(**{name: getattr(self, name) for name in grids.split()})
        check_names("participations", self.participations, PARTICIPATIONS)


def make_setup(skew: float, participation: str, seed: int, options: Options) -> fs.Setup:
    """The setup of one seed; all clients take part in every round if participation is full."""
    digits = fs.datasets.load("digits")
    x, y = (np.concatenate([digits.train[key], digits.test[key]]) for key in ("x", "y"))
    images = {"x": x.reshape(-1, 64) / np.float32(255), "y": y}
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    train, test = np.split(order, [options.clients * options.examples])
    if not len(test):
        raise ValueError(
            f"clients x examples is {options.clients} x {options.examples}; expected fewer than "
            f"{len(y)} digits, since the rest is for testing"
        )
    rows = fs.data.partition.dirichlet(y[train], options.clients, skew, rng, prior="uniform")
    data = fs.from_assignment(images, [train[part] for part in rows], disjoint=False)
    model = fs.models.mlp(64, (options.hidden,), 10)
    metrics = fs.objectives.classification_metrics(model.apply)
    batches = fs.epochs(NUM_EPOCHS, BATCH_SIZE)
    task = fs.empirical_task(fs.objectives.cross_entropy(model.apply), data, batches)
    rounds, cohort = options.rounds, options.cohort
    if participation == "full":
        rounds, cohort = options.full_rounds, options.clients
    draw_key, init_key = jax.random.split(jax.random.key(seed))
    timeline = fs.timelines.uniform(draw_key, rounds, task.num_clients, cohort, task.num_steps)
    tested = jax.tree.map(lambda leaf: leaf[test], images)
    eval_fn = fs.evaluation.merge_evaluators(
        train=fs.evaluation.evaluator(metrics, data.examples),
        test=fs.evaluation.evaluator(metrics, tested),
    )
    every = math.gcd(options.eval_every, rounds)
    return fs.Setup(task, timeline, model.init(init_key), eval_fn=eval_fn, eval_every=every)


def grid(participation: str, options: Options) -> list[dict[str, Any]]:
    """All configurations: FedSWA over rho, and FedMoSWA over rho, alpha and gamma, each in turn."""
    sides = sorted({1.0, ALPHA})
    if participation == "full":
        swa = [{"rho": rho, "alpha": alpha} for rho, alpha in ((1.0, 1.0), (RHO, ALPHA))]
        momentum = [point | {"gamma": GAMMA} for point in swa]
        others = ("SCAFFOLD", "FedSAM", "MoFedSAM", "FedLESAM")
    else:
        swa = [{"rho": rho, "alpha": alpha} for alpha in sides for rho in options.rhos]
        momentum = [point | {"gamma": GAMMA} for point in swa]
        momentum += [{"rho": RHO, "alpha": alpha, "gamma": GAMMA} for alpha in options.alphas]
        momentum += [{"rho": RHO, "alpha": ALPHA, "gamma": gamma} for gamma in options.gammas]
        others = ("SCAFFOLD", "FedSAM")
    momentum = [point for i, point in enumerate(momentum) if point not in momentum[:i]]
    points = [("FedSWA", point) for point in swa] + [("FedMoSWA", point) for point in momentum]
    points += [(method, {}) for method in others]
    return [
        {"method": method, "skew": skew, "participation": participation, "lr": lr} | point
        for method, point in points
        for skew in options.skews
        for lr in options.lrs
    ]


def histories(options: Options) -> pd.DataFrame:
    """The tidy history of all runs, kept in the folder ``digits`` of the work folder."""
    sizes = ("clients", "cohort", "examples", "hidden", "rounds", "full_rounds")
    identity = {name: getattr(options, name) for name in sizes}
    name = "-".join(f"{value}" for value in identity.values())
    _, keys = split_keys(seed_keys(options.seeds), 2)

    def setup(skew: float, participation: str, seed: int) -> fs.Setup:
        return make_setup(skew, participation, seed, options)

    history = swept(
        factory,
        setup,
        [point for part in options.participations for point in grid(part, options)],
        keys,
        options.work / "digits" / name,
        config=identity,
    )
    return pd.DataFrame(history[history["metric"].isin(METRICS)])


def factory(method: str, lr: Any, **hyper: Any) -> fs.FedAlgorithm:
    """The method at the paper's decay of the rate over rounds."""
    return build(lr, method, LR_DECAY, **hyper)
