r"""What the federated LASSO and the low-rank experiment share: protocol, methods, sweeps.

Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; section 4.5 of Yuan, "On Principled
Local Optimization Methods for Federated Learning", 2023.  Both minimise a mean squared error,
without a factor 1/2, of a linear model with a bias, plus lambda psi of the weights.

Where the paper is silent: lambda (chosen so that the centralised optimum recovers the truth), the
start (zeros), the test set (fresh examples of the same clients, a quarter as many).  With the data
as described a client's largest curvature is about 2,050, so that rates from 3e-3 on diverge: the
grid of client rates is extended downwards.  ``--feature-scale`` shrinks the features instead, and
lambda with their square, as the curvature.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax.tree_util import Partial
from rich.console import Console

import fedjax_sim as fs
from fedjax_sim import prox
from fedjax_sim.analysis.selection import Mode
from fedjax_sim.cli.console import sweep_progress
from fedjax_sim.cli.sweep import frame
from fedjax_sim.diagnostics.composite_optimum import composite_optimum
from fedjax_sim.diagnostics.optimum import mean_loss
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.objectives import squared_error
from fedjax_sim.problems.recovery import RecoveryProblem

COHORT, BATCH_SIZE, NUM_EPOCHS, ROUNDS = 10, 10, 1, 500
LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)  # of clients
SERVER_LRS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
LAST_ROUNDS = 100  # over which runs are compared
# Not the paper's:
SMALLER_LRS = (1e-5, 3e-5, 1e-4, 3e-4)
EVALUATED = 10  # rounds between evaluations

METHODS: dict[str, Callable[..., fs.FedAlgorithm]] = {
    "FedDualAvg": fs.feddualavg,
    "FedDualAvg-OSP": fs.feddualavg_osp,
    "FedMiD": fs.fedmid,
    "FedMiD-OSP": fs.fedmid_osp,
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of both experiments."""

    sets: tuple[str, ...] = ("I", "II", "III", "IV")
    methods: tuple[str, ...] = tuple(METHODS)
    rounds: int = ROUNDS
    seeds: int = 1  # of cohorts and minibatches; the problem is the same
    problem_seed: int = 0
    weight: Annotated[float | None, tyro.conf.arg(name="lambda")] = None  # default: the set's
    feature_scale: float = 1.0
    lrs: tuple[float, ...] = SMALLER_LRS + LRS
    server_lrs: tuple[float, ...] = SERVER_LRS
    work: pathlib.Path = pathlib.Path("results/fco")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_counts(rounds=self.rounds, seeds=self.seeds)
        check_names("methods", self.methods, METHODS)
        for name in ("lrs", "server_lrs"):
            rates = getattr(self, name)
            if not rates or min(rates) <= 0:
                raise ValueError(f"{name} is {rates}; expected positive learning rates")
        if self.weight is not None and not self.weight >= 0:
            raise ValueError(f"lambda is {self.weight}; expected at least 0")


def check_counts(**counts: int) -> None:
    """Refuses counts below 1."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")


def check_names(option: str, names: tuple[str, ...], known: Mapping[str, Any]) -> None:
    """Refuses names that are not known, and none at all."""
    if not names or any(name not in known for name in names):
        raise ValueError(f"{option} is {names}; expected some of {', '.join(known)}")


class DataSet(NamedTuple):
    """One of the paper's data sets."""

    complexity: int  # ones of the truth, or its rank
    size: int  # d, of vectors [d] or matrices [d, d]
    clients: int
    examples: int  # of each client


class Reference(NamedTuple):
    """What an independent program with other draws found for a pair of rates."""

    method: str
    lr: float
    server_lr: float
    metric: str
    values: dict[int, float]  # by round


Curve = Mapping[str, np.ndarray]  # a run: "round" and every metric, [evaluations]
Curves = Mapping[str, Curve]  # by method, of the selected pair
Rates = Mapping[str, tuple[float, float]]  # by method: the selected pair


class Claim(NamedTuple):
    """What the paper says of some data sets."""

    sets: tuple[str, ...]
    methods: tuple[str, ...]  # which it needs
    text: str
    check: Callable[[Curves, Rates], tuple[str, bool]]  # what was found, and whether it holds


class Experiment(NamedTuple):
    """What tells the experiments apart."""

    name: str
    title: str
    described: str  # a data set, with its fields in braces
    sets: Mapping[str, DataSet]
    generate: Callable[..., RecoveryProblem]
    psi: Callable[[float], prox.Regularizer]
    weight: float  # lambda
    recovered: Callable[[jax.Array, jax.Array], dict[str, jax.Array]]  # of weights and truth
    score: str  # by which pairs of rates are selected
    mode: Mode
    shown: tuple[str, ...]  # metrics in tables and figures
    references: Mapping[str, list[Reference]]  # by data set
    claims: tuple[Claim, ...]


def predict(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Of a vector or matrix of weights and a bias."""
    return x.reshape(x.shape[0], -1) @ params["weight"].ravel() + params["bias"]


def on_weight(path: str, leaf: Any) -> bool:
    """The bias is not regularised."""
    del leaf
    return path == "weight"


squared_errors = squared_error(predict)


def mean_squares(params: dict[str, jax.Array], examples: Any) -> dict[str, jax.Array]:
    """The metric of an evaluator."""
    return {"mse": squared_errors(params, examples, None)}


class _Measured(NamedTuple):
    """The static part of an evaluation."""

    experiment: Experiment
    composite: prox.Composite

    def __call__(self, means: Partial, truth: jax.Array, params: Any) -> dict[str, jax.Array]:
        values = means(params)
        return {
            "train/loss": values["train/mse"] + self.composite.value(params),
            "test/mse": values["test/mse"],
            **self.experiment.recovered(params["weight"], truth),
        }


class Problem(NamedTuple):
    """A data set, ready to run; n seeds."""

    data: RecoveryProblem
    composite: prox.Composite
    task: fs.Task
    timeline: fs.Timeline  # [n, ...]
    params: Any  # [n, ...]
    keys: jax.Array  # [n]
    eval_fn: Partial


def penalty_weight(experiment: Experiment, options: Options) -> float:
    """lambda: as given, or the experiment's, falling as the curvature."""
    if options.weight is not None:
        return options.weight
    return experiment.weight * options.feature_scale**2


def problem(experiment: Experiment, name: str, options: Options) -> Problem:
    """A data set; seeds differ in cohorts and minibatches."""
    what = experiment.sets[name]
    data = experiment.generate(
        what.clients, what.examples, what.complexity, what.size, options.problem_seed,
        feature_scale=options.feature_scale,
        test_examples_per_client=max(what.examples // 4, 1),
    )  # fmt: skip
    composite = prox.composite(experiment.psi(penalty_weight(experiment, options)), where=on_weight)
    task = fs.empirical_task(squared_errors, data.train, fs.epochs(NUM_EPOCHS, BATCH_SIZE))
    # More seeds leave the first ones as they were.
    keys = [jax.random.fold_in(jax.random.key(1), seed) for seed in range(options.seeds)]
    draw_keys, run_keys = jax.vmap(jax.random.split, out_axes=1)(jnp.stack(keys))
    draw = functools.partial(
        fs.timelines.uniform,
        num_rounds=options.rounds,
        num_clients=task.num_clients,
        cohort_size=min(COHORT, task.num_clients),
        num_steps=task.num_steps,
    )
    start = {
        "weight": np.zeros((options.seeds, *data.weight.shape), np.float32),
        "bias": np.zeros(options.seeds, np.float32),
    }
    means = merge_evaluators(
        train=evaluator(mean_squares, data.train.examples),
        test=evaluator(mean_squares, data.test.examples),
    )
    eval_fn = Partial(_Measured(experiment, composite), means, jnp.asarray(data.weight))
    timeline = jax.jit(jax.vmap(draw))(draw_keys)
    return Problem(data, composite, task, timeline, start, run_keys, eval_fn)


def swept(
    shared: Any,
    method: str,
    grid: Mapping[str, Sequence[float]],
    directory: pathlib.Path,
    *,
    eval_every: int,
    config: Mapping[str, Any],
) -> pd.DataFrame:
    """The tidy history of a method over a grid, one sweep; finished runs are not repeated."""
    setup = fs.Setup(
        functools.partial(METHODS[method], composite=shared.composite),
        shared.task,
        shared.timeline,
        shared.params,
        eval_fn=shared.eval_fn,
        eval_every=eval_every,
        weighting=fs.weight_by_examples,
        config={"method": method, **config},
    )
    with sweep_progress(Console(stderr=True)) as on_progress:
        result = fs.sweep(setup, grid, shared.keys, directory=directory, on_progress=on_progress)
    if result.interrupted:
        raise SystemExit(f"interrupted; the same command continues from {directory}")
    took = f"compiling {result.compile_seconds:.1f} s, running {result.run_seconds:.1f} s"
    print(f"{directory}: {len(result.runs)} runs, {result.resumed} found; {took}", flush=True)
    found = frame(result)
    found.insert(0, "method", method)
    return found


def run(
    experiment: Experiment, name: str, shared: Problem, method: str, options: Options
) -> pd.DataFrame:
    """The tidy history of a method over its grid."""
    grid = {"lr": options.lrs, "server_lr": options.server_lrs}
    folder = options.work / experiment.name / f"{name}-{options.rounds}{variant(options)}"
    every = min(EVALUATED, options.rounds)
    config = {"lambda": penalty_weight(experiment, options)}
    return swept(shared, method, grid, folder / method, eval_every=every, config=config)


def variant(options: Options) -> str:
    """What is not the default, for the names of folders."""
    given = (
        ("lambda", options.weight, None),
        ("scale", options.feature_scale, 1.0),
        ("problem", options.problem_seed, 0),
    )
    return "".join(f"-{name}{value:g}" for name, value, usual in given if value != usual)


def measured(shared: Problem, params: Any) -> dict[str, float]:
    """The metrics of a model."""
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    return {name: float(value) for name, value in jax.jit(shared.eval_fn)(params).items()}


def optimum(shared: Problem) -> dict[str, float]:
    """The metrics of the centralised solution."""
    loss = mean_loss(squared_errors, shared.data.train)
    found = composite_optimum(loss, shared.composite, _start(shared), tolerance=1e-6)
    return measured(shared, found.params)


def start_loss(shared: Problem) -> float:
    """The training loss of the initial model."""
    return measured(shared, _start(shared))["train/loss"]


def _start(shared: Problem) -> Any:
    return jax.tree.map(lambda x: x[0], shared.params)
