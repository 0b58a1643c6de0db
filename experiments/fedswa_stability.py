"""Uniform stability, measured by its definition, beside the bounds of the FedSWA paper's Theorem 5.1.

    python -m experiments.fedswa_stability
    python -m experiments.fedswa_stability --keys 20 --neighbours 100 --skews inf 1 0.1 0.03

Liu et al., 2025, section 5.1: full participation, one example a step, server rate 1, controls of option I.  Models are trained on
data sets that differ in one example of one client, with the same randomness, at two rates: the theorem's 1 / (beta K T), and a practical
one.  Softmax regression's constants are known: with features x scaled to max ||x|| = 1 and a bias, the gradient of an example's loss is
(p - e_y) (x, 1)^T, hence L = sqrt(2) max ||(x, 1)|| = 2 and beta = max ||(x, 1)||^2 / 2 = 1.
"""  # noqa: E501

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from jax.flatten_util import ravel_pytree

import fedjax_sim as fs
from experiments.fedswa_common import GAMMA, RHO
from experiments.output import write
from fedjax_sim import datasets, models, objectives
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.data import partition
from fedjax_sim.diagnostics.stability import Neighbours, neighbours, stability
from fedjax_sim.theory.fedswa import distance_bound, generalization_bound

LIPSCHITZ, BETA = 2.0, 1.0  # of softmax regression, see above
CONVEX = 1e-9  # strong convexity in the limit: steps up to 2 / beta do not expand

# The server's rate is 1, as in the theorem.
METHODS = {
    "FedAvg": fs.fedavg,
    "FedSWA": lambda lr: fs.fedswa(lr, RHO, 1.0),
    "FedMoSWA": lambda lr: fs.fedmoswa(lr, RHO, 1.0, GAMMA, option="I"),
    "FedSAM": lambda lr: fs.fedsam(lr, radius=0.05),
    "SCAFFOLD": lambda lr: fs.scaffold(lr, option="I"),
}
DECAYING = ("FedSWA", "FedMoSWA")
WITHOUT_BOUND = ("SCAFFOLD",)

# What a run is known by; then what is averaged over.
RUN = ["task", "skew", "n", "rate", "lr", "K", "method"]
VALUES = ["distance", "loss_difference"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    rounds: int = 20
    local_steps: int = 5
    many_local_steps: tuple[int, ...] = (1, 2, 5, 10, 20)  # at the last skew
    clients: int = 10
    examples: int = 20  # of a client
    skews: tuple[float, ...] = (math.inf, 1.0, 0.1)  # Dirichlet concentrations
    lr: float = 0.1  # the practical rate
    neighbours: int = 10
    keys: int = 4
    same_label: bool = True  # of the replacement; else it is drawn from the client's labels
    hidden: int = 16  # units of the network
    eval_every: int = 2
    seed: int = 0  # of partition and neighbours
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        counts = "rounds local_steps clients examples neighbours keys hidden eval_every"
        for name in counts.split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not 0 < self.lr <= 2 / BETA:
            raise ValueError(f"lr is {self.lr}; expected above 0, at most 2 / beta = {2 / BETA}")
        if not self.skews or min(self.skews) <= 0:
            raise ValueError(f"skews is {self.skews}; expected positive concentrations")
        if not self.many_local_steps or min(self.many_local_steps) < 1:
            raise ValueError(f"many_local_steps is {self.many_local_steps}; expected 1 or more")


class Problem(NamedTuple):
    """A model, a data set and its neighbours."""

    task: str
    skew: float
    n: int  # examples of a client
    model: models.Model
    around: Neighbours
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

    Those of a smaller n are a part of those of a larger one, and the neighbours are the same, so
    that values at two n can be compared in pairs.
    """
    found = datasets.load("digits")
    scale = np.linalg.norm(found.train["x"].reshape(-1, 64), axis=1).max()

    def scaled(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"x": (part["x"].reshape(-1, 64) / scale).astype(np.float32), "y": part["y"]}

    examples, most = scaled(found.train), 2 * options.examples
    y, count = examples["y"], len(examples["y"])
    rng = np.random.default_rng(options.seed)
    if options.clients * most > count // 2:
        raise ValueError(
            f"clients x examples is {options.clients} x {options.examples}; expected at most a "
            f"quarter of {count} digits, since others replace them and n is doubled"
        )
    # Dealt out for all digits, of which the first clients take theirs: no class is used up.
    rows = partition.dirichlet(y, count // most, skew, rng, disjoint=True)[: options.clients]
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
        model = models.softmax_regression(64, 10)
    else:
        model = models.mlp(64, (options.hidden,), 10)
    return Problem(task, skew, n, model, around, scaled(found.test))


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

    The cases have the same model and n.  The constants are the largest along the trajectory, of all
    keys.
    """
    first = cases[0][0]
    objective = objectives.cross_entropy(first.model.apply)
    offsets = first.around.data.offsets
    batches = fs.with_replacement(1, max(point.K for _, point in cases))
    params = first.model.init(jax.random.key(options.seed))
    every = min(options.eval_every, options.rounds)

    def one(around: Neighbours, point: Point, key: jax.Array) -> tuple:
        data = fs.FederatedData(around.data.examples, offsets)
        task = fs.empirical_task(objective, data, batches)
        timeline = fs.timelines.full(options.rounds, task.num_clients, task.num_steps)
        steps = jnp.full_like(timeline.num_steps, point.K)
        timeline = dataclasses.replace(timeline, num_steps=steps)
        algorithm, evaluate = METHODS[method](point.lr), constants(objective, data)
        found = stability(
            algorithm, objective, around._replace(data=data), batches, timeline, params, key,
            first.test, eval_every=every,
        )  # fmt: skip
        _, history = fs.run(
            algorithm, task, timeline, params, key, eval_fn=evaluate, eval_every=every,
            cohort=fs.execution.vmapped(),
        )  # fmt: skip
        return found, history.metrics, evaluate(params)

    keys = jax.random.split(jax.random.key(options.seed + 1), options.keys)
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]),
        *((what.around, point._replace(rate=())) for what, point in cases),
    )
    over = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None)))
    found, along, at_start = jax.tree.map(np.asarray, over(*stacked, keys))
    shape = found.distance.shape  # [cases, keys, neighbours, evaluations]
    case, key, neighbour, evaluation = (index.ravel() for index in np.indices(shape))
    runs = [
        {"task": what.task, "skew": what.skew, "n": what.n, **point._asdict(), "method": method}
        for what, point in cases
    ]
    starts = at_start["train_loss"][:, 0]  # the same model for all keys
    runs = [run | {"start_loss": value} for run, value in zip(runs, starts, strict=True)]
    for name in ("sigma", "sigma_g", "largest_gradient"):
        largest = np.maximum(along[name].max((1, 2)), at_start[name].max(1))
        runs = [run | {name: value} for run, value in zip(runs, largest, strict=True)]
    frame = pd.DataFrame(runs).iloc[case].reset_index(drop=True)
    return frame.assign(
        key=key,
        neighbour=neighbour,
        round=found.round[0, 0][evaluation],
        train_loss=along["train_loss"].mean(1)[case, evaluation],
        **{name: getattr(found, name).ravel() for name in VALUES},
    )


def select(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows with the given values."""
    keep = np.ones(len(table), bool)
    for name, value in values.items():
        keep &= np.asarray(table[name]) == value
    return table.take(np.flatnonzero(keep))


def summary(frame: pd.DataFrame, options: Options) -> pd.DataFrame:
    """A row per run and round: means over keys, of them mean and maximum over neighbours; bounds.

    The expectation of the definition is the mean over keys.
    """
    same = [*RUN, "round", "train_loss", "sigma", "sigma_g", "largest_gradient"]
    over_keys = {name: (name, "mean") for name in VALUES}
    over_neighbours = over_keys | {f"{name}_max": (name, "max") for name in VALUES}
    means = frame.groupby([*same, "neighbour"], sort=False).agg(**over_keys)
    table = means.groupby(same, sort=False).agg(**over_neighbours).reset_index()
    runs = [part for _, part in table.groupby(RUN, sort=False)]
    found = [bounds(part.to_dict("records")[0], part["round"], options) for part in runs]
    parts = [part.assign(**values) for part, values in zip(runs, found, strict=True)]
    return pd.concat(parts, ignore_index=True)


def bounds(run: Mapping[Any, Any], rounds: Any, options: Options) -> dict[str, np.ndarray]:
    """Bounds of the distance after the given rounds; NaN where there is none.

    * ``corrected``: the recursion behind the theorem, for any smooth loss;
    * ``convex``: the same with steps that do not expand, as those of convex losses up to 2 / beta;
    * ``lipschitz``: ``2 L sum eta / (m n)``, for convex losses, too (Hardt et al., 2016);
    * ``printed``: the theorem's, after the last round.
    """
    names, at = ("corrected", "convex", "lipschitz", "printed"), np.asarray(rounds)
    if run["task"] != "convex" or run["method"] in WITHOUT_BOUND:
        return {name: np.full(len(at), np.nan) for name in names}
    K, rho = run["K"], RHO if run["method"] in DECAYING else 1.0
    rates = jnp.asarray(run["lr"] * np.tile(1 - (1 - rho) * np.arange(K) / K, (options.rounds, 1)))
    known = {"beta": BETA, "lipschitz": LIPSCHITZ, "m": options.clients}
    known |= {name: run[name] for name in ("n", "sigma", "sigma_g")}
    printed = np.nan
    if run["rate"] == "theorem":
        method = "fedmoswa" if run["method"] == "FedMoSWA" else "fedswa"
        gap = generalization_bound(**known, K=K, T=options.rounds, method=method, form="printed")
        printed = float(gap) / LIPSCHITZ
    values = (
        np.asarray(distance_bound(rates, **known))[at],
        np.asarray(distance_bound(rates, **known, mu=CONVEX))[at],
        2 * LIPSCHITZ / (options.clients * run["n"]) * np.asarray(rates.sum(1).cumsum())[at - 1],
        np.where(at == options.rounds, printed, np.nan),
    )
    return dict(zip(names, values, strict=True))


def final_table(last: pd.DataFrame, *bound_names: str) -> pd.DataFrame:
    """Measured values after the last round, bounds, and their ratios to the mean distance."""
    shown = ["skew", "method", "sigma_g", "sigma", "train_loss"]
    values = {name: last[name] for name in (*shown, *VALUES, *(f"{name}_max" for name in VALUES))}
    for name in bound_names:
        values |= {name: last[name], f"{name} / distance": last[name] / last["distance"]}
    return pd.DataFrame(values)


def ordering(last: pd.DataFrame) -> pd.DataFrame:
    """FedMoSWA against FedSWA: ratio of the mean distances, and in how many pairs it is lower.

    A pair is a key and a neighbour.  The decrease of the training loss is compared, too: a method
    that has moved less is more stable for that reason alone.
    """
    where, rows = [name for name in RUN if name not in ("method", "lr")], []
    for _, part in last.groupby(where, sort=False):
        ours, theirs = (select(part, method=method) for method in ("FedMoSWA", "FedSWA"))
        mine, other = (np.asarray(part["distance"]) for part in (ours, theirs))
        decreases = [(x["start_loss"] - x["train_loss"]).mean() for x in (ours, theirs)]
        found = {
            "distance, FedMoSWA / FedSWA": mine.mean() / other.mean(),
            "lower in": f"{100 * (mine < other).mean():.0f} %",
            "loss decrease, FedMoSWA / FedSWA": decreases[0] / decreases[1],
        }
        run = part.to_dict("records")[0]
        rows.append({name: run[name] for name in where} | found)
    return pd.DataFrame(rows)


def across(last: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean distances of every method and rate against one column."""
    wide = last.pivot(index=["rate", "method"], columns=name, values="distance")
    return wide.rename(columns=f"{name} = {{}}".format).rename_axis(columns=None).reset_index()


def figure(table: pd.DataFrame, options: Options) -> Any:
    """Distances against rounds, against K and against the measured heterogeneity."""
    drawn, axes = plt.subplots(2, 4, figsize=(15, 6.5), layout="constrained")
    most, usual = {"skew": options.skews[-1]}, {"K": options.local_steps}
    panels = [("convex", "theorem"), ("convex", "practical"), ("network", "practical")]
    for i, method in enumerate(METHODS):
        style = {"color": f"C{i}", "label": method}
        mine = select(table, n=options.examples, method=method)
        for column, (task, rate) in enumerate(panels):
            curve = select(mine, task=task, rate=rate, **most, **usual)
            for row, value in enumerate(VALUES):
                axes[row, column].semilogy(curve["round"], curve[value], **style)
                axes[row, column].set(title=f"{task}, {rate} rate", xlabel="round")
                axes[row, column].set(ylabel=value.replace("_", " "))
            bound = "corrected" if rate == "theorem" else "convex"
            axes[0, column].semilogy(curve["round"], curve[bound], color=f"C{i}", ls=":")
        last = select(mine, task="convex", round=options.rounds)
        for rate, line in (("theorem", "--"), ("practical", "-")):
            for row, (name, chosen) in enumerate((("K", most), ("sigma_g", usual))):
                part = select(last, rate=rate, **chosen).sort_values(name)
                axes[row, 3].semilogy(part[name], part["distance"], marker=".", ls=line, **style)
                axes[row, 3].set(title="convex; -- theorem's rate", xlabel=name, ylabel="distance")
    axes[1, 0].legend(frameon=False, loc="lower right", title="dotted: bounds")
    return drawn


def main(options: Options) -> None:
    """Measures, writes and draws."""
    K, n = options.local_steps, options.examples
    rates = ("theorem", "practical")
    convex = [problem("convex", skew, n, options) for skew in options.skews]
    many = sorted({*options.many_local_steps, K})
    cases = [(what, point(rate, K, options)) for what in convex[:-1] for rate in rates]
    cases += [(convex[-1], point(rate, k, options)) for rate in rates for k in many]
    double = problem("convex", options.skews[-1], 2 * n, options)
    networks = [problem("network", skew, n, options) for skew in options.skews]
    programs = {
        "softmax regression": cases,
        "n doubled": [(double, point(rate, K, options)) for rate in rates],
        "network": [(what, point("practical", K, options)) for what in networks],
    }
    frames = []
    for title, group in programs.items():
        for method in METHODS:
            print(f"{title}, {method}: {len(group)} cases", flush=True)
            frames.append(measured(method, group, options))
    frame = pd.concat(frames, ignore_index=True)
    table = summary(frame, options)
    text = _text(frame, table, options)
    print(text, flush=True)
    folder = options.output / "fedswa_stability"
    write(folder, "stability", table, text, options=dataclasses.asdict(options))
    drawn = figure(table, options)
    drawn.savefig(folder / "stability.png", dpi=90)
    plt.close(drawn)


def _text(frame: pd.DataFrame, table: pd.DataFrame, options: Options) -> str:
    last, n, K = select(table, round=options.rounds), options.examples, options.local_steps
    convex, network = (select(last, task=task, n=n, K=K) for task in ("convex", "network"))
    skewed = select(last, task="convex", skew=options.skews[-1])
    of_two = across(select(skewed, K=K), "n")
    of_two["ratio"] = of_two[f"n = {2 * n}"] / of_two[f"n = {n}"]
    label = "with the same label" if options.same_label else "with a label of the client"
    parts = {
        "": f"m = {options.clients} clients of n = {n} digits, K = {K}, T = {options.rounds}, "
        f"batch 1, full participation; {options.neighbours} neighbours, replacements {label}, "
        f"{options.keys} keys.  distance is ||theta_T - theta'_T||, loss_difference the largest "
        "over the test digits; both are means over keys, of them mean and (_max) maximum over "
        "neighbours.  sigma and sigma_g are the largest along the trajectory.  Bounds are of the "
        "mean distance; those of FedMoSWA and FedSAM are not proven, SCAFFOLD has none.  "
        "lipschitz is 2 L sum eta / (m n).",
        f"Softmax regression, theorem's rate 1 / (beta K T) (L = {LIPSCHITZ}, beta = {BETA})":
            final_table(select(convex, rate="theorem"), "corrected", "lipschitz", "printed"),
        f"Softmax regression, rate {options.lr}: the printed bound's condition does not hold":
            final_table(select(convex, rate="practical"), "corrected", "convex", "lipschitz"),
        f"Distance against K, Dirichlet {options.skews[-1]:g}":
            across(select(skewed, n=n), "K"),
        f"n doubled, Dirichlet {options.skews[-1]:g}: 1 / (m n) predicts a ratio of 1/2": of_two,
        "FedMoSWA against FedSWA": ordering(select(frame, round=options.rounds, n=n)),
        f"Network of {options.hidden} hidden units, rate {options.lr}: no bound; "
        "largest_gradient is a local L": final_table(network).assign(
            largest_gradient=network["largest_gradient"]),
    }  # fmt: skip
    sections = [
        (f"## {title}\n\n" if title else "# Uniform stability\n\n")
        + (body if isinstance(body, str) else markdown(body))
        for title, body in parts.items()
    ]
    return "\n\n".join(sections)


if __name__ == "__main__":
    main(tyro.cli(Options))
