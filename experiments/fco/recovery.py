r"""Protocol of the federated LASSO and of low-rank estimation: data, runs, report.

Section 4.5 of the thesis.  Both minimise a mean squared error, without a factor 1/2, of a linear
model with a bias, plus lambda psi of the weights.

Where the paper is silent: lambda (chosen so that the centralised optimum recovers the truth), the
initial model (that of the authors' program, a Keras layer: Glorot-uniform weights and no bias; from
zeros FedMiD has the support of a sparse truth before it has learnt anything), the test set (fresh
examples of the same clients, a quarter as many).  On the data as described a client's largest
curvature is about 2,050, so rates of 3e-3 and more diverge: the grid of client rates is extended
downwards.  ``--feature-scale`` shrinks the features instead, and lambda with them, as the noise of
the gradients.  A lambda that falls as the curvature does not recover the truth: its centralised
optima have the ranks 21, 16, 15 and 23 for 16, 4, 1 and 16.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.fco import methods
from experiments.fco.claims import Statement
from experiments.fco.composite_optimum import composite_optimum
from experiments.fco.selection import Curve
from experiments.harness.options import check_choice, check_names
from fedjax_sim.checks import check_at_least, check_positive

COHORT, BATCH_SIZE, NUM_EPOCHS, ROUNDS = 10, 10, 1, 500
LAST_ROUNDS = 100  # over which runs are compared
# Not the paper's:
SMALLER_LRS = (1e-5, 3e-5, 1e-4, 3e-4)
EVAL_EVERY = 10  # rounds

Start = Literal["glorot", "zeros"]


@dataclasses.dataclass(frozen=True)
class Options(methods.Options):
    """Options of both experiments."""

    known_methods = methods.PENALTY_METHODS

    sets: tuple[str, ...] = ("I", "II", "III", "IV")
    rounds: int = ROUNDS
    problem_seed: int = 0
    weight: Annotated[float | None, tyro.conf.arg(name="lambda")] = None  # default: the set's
    feature_scale: float = 1.0
    start: Start = "glorot"
    lrs: tuple[float, ...] = SMALLER_LRS + methods.LRS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("sets", self.sets, ("I", "II", "III", "IV"))
        check_at_least(1, rounds=self.rounds)
        check_at_least(0, **{"lambda": self.weight or 0.0})
        check_positive(feature_scale=self.feature_scale)
        check_choice(start=(self.start, Start))

    def variant(self) -> str:
        """The values that are not the defaults, for names of folders."""
        given = (
            ("lambda", self.weight, None),
            ("scale", self.feature_scale, 1.0),
            ("problem", self.problem_seed, 0),
        )
        parts = [f"-{name}{value:g}" for name, value, usual in given if value != usual]
        return "".join([*parts, "-zeros" * (self.start == "zeros")])


class DataSet(NamedTuple):
    """One of the paper's data sets."""

    complexity: int  # ones of the truth, or its rank
    size: int  # d, of vectors [d] or matrices [d, d]
    clients: int
    examples: int  # of each client


class Reference(NamedTuple):
    """Results of an independent program from zeros, with other draws, for a pair of rates."""

    method: str
    lr: float
    server_lr: float
    metric: str
    values: dict[int, float]  # by round


class Experiment(NamedTuple):
    """Settings and published numbers of one of the two experiments."""

    name: str
    title: str
    described: str  # a data set, with its fields in braces
    sets: Mapping[str, DataSet]
    generate: Callable[..., fs.problems.recovery.RecoveryProblem]
    psi: Callable[[float], fs.prox.Regularizer]
    weight: float  # lambda
    recovered: Callable[[jax.Array, jax.Array], dict[str, jax.Array]]  # of weights and truth
    score: str  # by which pairs of rates are selected
    mode: fs.analysis.Mode
    shown: tuple[str, ...]  # metrics in tables and figures
    references: Mapping[str, list[Reference]]  # by data set
    structure: str  # the metric of how sparse a model is, or of its rank
    event: str  # what a run is timed by
    reaches: Callable[[DataSet, Curve], np.ndarray]  # in which evaluations the event has happened
    statements: tuple[Statement, ...]

    def penalty_weight(self, options: Options) -> float:
        """lambda: as given, or the experiment's, falling as the features."""
        if options.weight is not None:
            return options.weight
        return self.weight * options.feature_scale


def predict(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """The linear model of a vector or matrix of weights and a bias."""
    return x.reshape(x.shape[0], -1) @ params["weight"].ravel() + params["bias"]


def on_weight(path: str, leaf: Any) -> bool:
    """Selects the weights as the regularised leaves; the bias is not regularised."""
    del leaf
    return path == "weight"


squared_errors = fs.objectives.squared_error(predict)


def mean_squares(params: dict[str, jax.Array], examples: Any) -> dict[str, jax.Array]:
    """The metric of an evaluator."""
    return {"mse": squared_errors(params, examples, None)}


class Measured(NamedTuple):
    """The static part of an evaluation."""

    experiment: Experiment
    composite: fs.prox.Composite

    def __call__(self, means: Partial, truth: jax.Array, params: Any) -> dict[str, jax.Array]:
        values = means(params)
        return {
            "train/loss": values["train/mse"] + self.composite.value(params),
            "test/mse": values["test/mse"],
            **self.experiment.recovered(params["weight"], truth),
        }


class Problem(NamedTuple):
    """A data set and the runs on it; seeds differ in cohorts and minibatches."""

    data: fs.problems.recovery.RecoveryProblem
    shared: methods.Problem

    def measured(self, params: Any) -> dict[str, float]:
        """The metrics of a model."""
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
        values = jax.jit(self.shared.eval_fn)(params)
        return {name: float(value) for name, value in values.items()}

    def initial(self, seed: int = 0) -> Any:
        """The initial model of a seed."""
        return jax.tree.map(lambda x: x[seed], self.shared.params)

    def initial_losses(self) -> np.ndarray:
        """The training loss of every seed's initial model, ``[n]``."""
        seeds = range(len(self.shared.keys))
        return np.array([self.measured(self.initial(seed))["train/loss"] for seed in seeds])

    def optimum(self) -> dict[str, float]:
        """The metrics of the centralised solution."""
        loss = fs.diagnostics.optimum.mean_loss(squared_errors, self.data.train)
        solution = composite_optimum(loss, self.shared.composite, self.initial(), tolerance=1e-6)
        return self.measured(solution.params)


def zeros(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The model 0."""
    return {"weight": np.zeros(shape, np.float32), "bias": np.zeros((), np.float32)}


def glorot(shape: tuple[int, ...], key: jax.Array) -> dict[str, jax.Array]:
    """The initial model of a Keras layer with one output for the features in the shape."""
    weights = methods.glorot_weights(key, math.prod(shape))
    return {"weight": weights.reshape(shape), "bias": jnp.zeros(())}


def make_problem(experiment: Experiment, name: str, options: Options) -> Problem:
    """Generates a data set and what runs on it share."""
    sizes = experiment.sets[name]
    data = experiment.generate(
        sizes.clients, sizes.examples, sizes.complexity, sizes.size, options.problem_seed,
        feature_scale=options.feature_scale,
        test_examples_per_client=max(sizes.examples // 4, 1),
    )  # fmt: skip
    psi = experiment.psi(experiment.penalty_weight(options))
    composite = fs.prox.composite(psi, where=on_weight)
    means = fs.evaluation.merge_evaluators(
        train=fs.evaluation.evaluator(mean_squares, data.train.examples),
        test=fs.evaluation.evaluator(mean_squares, data.test.examples),
    )
    shared = methods.make_problem(
        composite,
        fs.empirical_task(squared_errors, data.train, fs.epochs(NUM_EPOCHS, BATCH_SIZE)),
        zeros(data.weight.shape)
        if options.start == "zeros"
        else functools.partial(glorot, data.weight.shape),
        Partial(Measured(experiment, composite), means, jnp.asarray(data.weight)),
        rounds=options.rounds,
        cohort=COHORT,
        seeds=options.seeds,
    )
    return Problem(data, shared)


def trained(
    experiment: Experiment, name: str, shared: methods.Problem, options: Options
) -> pd.DataFrame:
    """The tidy history of every method over its grid."""
    folder = f"{name}-{options.rounds}{options.variant()}"
    return methods.run_all(
        shared,
        options,
        options.work / f"fco_{experiment.name}" / folder,
        eval_every=min(EVAL_EVERY, options.rounds),
        identity={"lambda": experiment.penalty_weight(options)},
    )
