"""Uniform stability of methods, measured on digits with neighbouring data sets.

Softmax regression's constants are known: with features x scaled to max ||x|| = 1 and a bias, the
gradient of an example's loss is (p - e_y) (x, 1)^T, so L = sqrt(2) max ||(x, 1)|| = 2 and
beta = max ||(x, 1)||^2 / 2 = 1.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree

import fedjax_sim as fs
from experiments.fedswa.methods import GAMMA, RHO
from experiments.harness import check_grid
from fedjax_sim.checks import check_at_least
from fedjax_sim.diagnostics import neighbours

LIPSCHITZ, BETA = 2.0, 1.0  # of softmax regression

# The server's rate is 1, as in the theorem.
METHODS = {
    "FedAvg": fs.fedavg,
    "FedSWA": lambda lr: fs.fedswa(lr, RHO, 1.0),
    "FedMoSWA": lambda lr: fs.fedmoswa(lr, RHO, 1.0, GAMMA, option="I"),
    "FedSAM": lambda lr: fs.fedsam(lr, radius=0.05),
    "SCAFFOLD": lambda lr: fs.scaffold(lr, option="I"),
}
VALUES = ["distance", "loss_difference"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: int = 20
    local_steps: int = 5
    many_local_steps: tuple[int, ...] = (1, 2, 5, 10, 20)  # at the last skew
    clients: int = 10
    examples: int = 20  # per client
    skews: tuple[float, ...] = (math.inf, 1.0, 0.1)  # Dirichlet concentrations
    lr: float = 0.1  # the practical rate
    neighbours: int = 10
    keys: int = 4
    same_label: bool = True  # the replacement has its example's label; else one of the client's
    hidden: int = 16  # units of the network
    eval_every: int = 2
    seed: int = 0  # of partition and neighbours
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        counts = "rounds local_steps clients examples neighbours keys hidden eval_every"
        check_at_least(1, **{name: getattr(self, name) for name in counts.split()})
        if not 0 < self.lr <= 2 / BETA:
            raise ValueError(f"lr is {self.lr}; expected above 0, at most 2 / beta = {2 / BETA}")
        check_grid(skews=self.skews, many_local_steps=self.many_local_steps)


class Problem(NamedTuple):
    """A model, a data set and its neighbours."""

    task: str
    skew: float
    n: int  # examples per client
    model: fs.models.Model
    around: fs.diagnostics.stability.Neighbours
    test: dict[str, np.ndarray]


class Point(NamedTuple):
    """A rate and a number of local steps."""

    rate: str
    lr: float
    K: int


def point(rate: str, K: int, options: Options) -> Point:
    """The theorem's rate is the largest that it allows."""
    return Point(rate, 1 / (BETA * K * options.rounds) if rate == "theorem" else options.lr, K)


def problem(task: str, skew: float, n: int, options: Options) -> Problem:
    """Clients of n <= 2 ``options.examples`` digits.

    The digits of a smaller n are a part of those of a larger one, and the neighbours are the same,
    so values at two n can be compared in pairs.
    """
    digits = fs.datasets.load("digits")
    scale = np.linalg.norm(digits.train["x"].reshape(-1, 64), axis=1).max()

    def scaled(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": (part["x"].reshape(-1, 64) / scale).astype(np.float32), "y": part["y"]}

    examples, most = scaled(digits.train), 2 * options.examples
    y, count = examples["y"], len(examples["y"])
    rng = np.random.default_rng(options.seed)
    if options.clients * most > count // 2:
        raise ValueError(
            f"clients x examples is {options.clients} x {options.examples}; expected at most a "
            f"quarter of {count} digits, since others replace them and n is doubled"
        )
    # The partition has clients for all digits and the first ones are used: no class is used up.
    prior = "labels" if math.isinf(skew) else "uniform"
    rows = fs.data.partition.dirichlet(y, count // most, skew, rng, disjoint=True, prior=prior)
    rows = rows[: options.clients]
    free = np.setdiff1d(np.arange(count), np.concatenate(rows))
    turn, client = np.divmod(np.arange(options.neighbours), options.clients)
    place = rng.permutation(options.examples)[turn % options.examples]
    taken = []
    for i, j in zip(client, place, strict=True):
        like = rows[i][j] if options.same_label else rng.choice(rows[i])
        taken.append(rng.choice(free[y[free] == y[like]]))
    data = fs.from_assignment(examples, [part[:n] for part in rows])
    replacements = jax.tree.map(lambda leaf: leaf[np.array(taken)], examples)
    around = neighbours(data, client * n + place, replacements)
    if task == "convex":
        model = fs.models.softmax_regression(64, 10)
    else:
        model = fs.models.mlp(64, (options.hidden,), 10)
    return Problem(task, skew, n, model, around, scaled(digits.test))


def constants(objective: Any, data: fs.FederatedData) -> Any:
    """``params -> {name: value}`` of the training data: loss, sigma, sigma_g, largest gradient.

    ``sigma^2`` is the largest over clients of the variance of one example's gradient, ``sigma_g``
    the mean over clients of ``||grad F_i - grad F||``.
    """

    def evaluate(params: Any) -> dict[str, jax.Array]:
        def one(params: Any, example: Any) -> jax.Array:
            batch = jax.tree.map(lambda leaf: leaf[None], example)
            return objective(params, batch, None)[0]

        losses, gradients = jax.vmap(jax.value_and_grad(one), (None, 0))(params, data.examples)
        flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])(gradients)
        flat = flat.reshape(data.num_clients, -1, flat.shape[-1])  # clients of equal size
        local = flat.mean(1)
        variances = ((flat - local[:, None]) ** 2).sum(-1).mean(1)
        return {
            "train_loss": losses.mean(),
            "sigma": jnp.sqrt(variances.max()),
            "sigma_g": jnp.linalg.norm(local - local.mean(0), axis=-1).mean(),
            "largest_gradient": jnp.linalg.norm(flat, axis=-1).max(),
        }

    return evaluate


def measured(method: str, cases: Sequence[tuple[Problem, Point]], options: Options) -> pd.DataFrame:
    """A row per case, key, neighbour and evaluation; all cases and keys are one program.

    The cases have the same model and n.  The constants are the largest along the trajectory, over
    all keys.
    """
    first = cases[0][0]
    objective = fs.objectives.cross_entropy(first.model.apply)
    offsets = first.around.data.offsets
    batches = fs.with_replacement(1, max(point.K for _, point in cases))
    params = first.model.init(jax.random.key(options.seed))
    every = min(options.eval_every, options.rounds)

    def one(around: fs.diagnostics.stability.Neighbours, point: Point, key: jax.Array) -> tuple:
        data = fs.FederatedData(around.data.examples, offsets)
        task = fs.empirical_task(objective, data, batches)
        timeline = fs.timelines.full(options.rounds, task.num_clients, task.num_steps)
        steps = jnp.full_like(timeline.num_steps, point.K)
        timeline = dataclasses.replace(timeline, num_steps=steps)
        algorithm, evaluate = METHODS[method](point.lr), constants(objective, data)
        distances = fs.diagnostics.stability.stability(
            algorithm, objective, around._replace(data=data), batches, timeline, params, key,
            first.test, eval_every=every,
        )  # fmt: skip
        setup = fs.Setup(task, timeline, params, eval_fn=evaluate, eval_every=every)
        _, history = fs.run(algorithm, setup, key, execution=fs.execution.vmapped())
        return distances, history.metrics, evaluate(params)

    keys = jax.random.split(jax.random.key(options.seed + 1), options.keys)
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]),
        *((problem.around, point._replace(rate=())) for problem, point in cases),
    )
    over = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None)))
    distances, along, at_start = jax.tree.map(np.asarray, over(*stacked, keys))
    shape = distances.distance.shape  # [cases, keys, neighbours, evaluations]
    case, key, neighbour, evaluation = (index.ravel() for index in np.indices(shape))
    names = ("sigma", "sigma_g", "largest_gradient")
    largest = {n: np.maximum(along[n].max((1, 2)), at_start[n].max(1)) for n in names}
    runs = [
        {"task": problem.task, "skew": problem.skew, "n": problem.n, **point._asdict()}
        # The start is the same model for all keys.
        | {"method": method, "start_loss": at_start["train_loss"][i, 0]}
        | {name: largest[name][i] for name in names}
        for i, (problem, point) in enumerate(cases)
    ]
    frame = pd.DataFrame(runs).iloc[case].reset_index(drop=True)
    return frame.assign(
        key=key,
        neighbour=neighbour,
        round=distances.round[0, 0][evaluation],
        train_loss=along["train_loss"].mean(1)[case, evaluation],
        **{name: getattr(distances, name).ravel() for name in VALUES},
    )
