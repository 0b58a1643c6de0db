r"""Does a partition by writer slow FedAvg down?  Experiment 3 of the heterogeneity report.

    python -m experiments.femnist_heterogeneity                              # FEMNIST, 250 rounds
    python -m experiments.femnist_heterogeneity --dataset mnist --seeds 2
    python -m experiments.femnist_heterogeneity --iid leaf_default

Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the performance of
the FedAvg algorithm", sections 3.2 and 4.3: FEMNIST by writer against the same images dealt at
random, 20 clients a round, 25 local steps of 20 images at rate 0.02, the same initial model.
Batch, model and weights are those of the authors' program, about which the report is silent.

LEAF's command for the report's IID data leaves the number of its clients at 1 % of the writers
(``--iu 0.01``), so that these differ in size, too: ``iid="leaf_default"``.  Here the clients keep
their sizes and exchange their images: ``iid="matched"``.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jax import Array

import fedjax_sim as fs
from experiments.output import write
from fedjax_sim import datasets, models, objectives, plotting
from fedjax_sim.analysis.selection import rounds_to_target
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.data import partition
from fedjax_sim.data.batches import Batches, Pick, permutations
from fedjax_sim.engine import Weighting
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.types import Step

COHORT, NUM_STEPS, BATCH_SIZE, LR = 20, 25, 20, 0.02
EVAL_EVERY, TARGET = 3, 0.79
LEAF_SHARE = 0.01  # LEAF's default of --iu
PAPER = {"iid": 142, "by writer": 220}  # rounds to the target
PARTITIONS = tuple(PAPER)
ROUNDS = {"femnist": 250, "mnist": 60}
ACCURACY, LOSS = "test/accuracy", "test/loss"

Data = Literal["femnist", "mnist"]
Iid = Literal["matched", "leaf_default"]
Weights = Literal["seen", "uniform"]


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    dataset: Data = "femnist"
    iid: Iid = "matched"
    weighting: Weights = "seen"  # of the uploads: by the images a visit sees, or all the same
    rounds: int | None = None  # default: 250 for femnist, 60 for mnist
    seeds: int = 1
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/femnist_heterogeneity")  # runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        for name, allowed in (("dataset", Data), ("iid", Iid), ("weighting", Weights)):
            if (value := getattr(self, name)) not in get_args(allowed):
                raise ValueError(f"{name} is {value!r}; expected one of {get_args(allowed)}")
        for name, value in (("rounds", self.num_rounds), ("seeds", self.seeds)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")

    @property
    def num_rounds(self) -> int:
        """The rounds to run."""
        return ROUNDS[self.dataset] if self.rounds is None else self.rounds


@functools.cache
def repeated_pass(batch_size: int, num_steps: int) -> Batches:
    """``num_steps`` full batches of one shuffled pass over ``ceil(batch_size num_steps / n)``
    copies of the client's n examples.

    Example:
        >>> rule = repeated_pass(batch_size=2, num_steps=3)
        >>> pick = rule.draw(jax.random.key(0), jnp.array(3), max_size=4, max_steps=3)
        >>> sorted(int(row) for step in range(3) for row in pick(step)[0])  # of two copies, all
        [0, 0, 1, 1, 2, 2]
    """
    total = batch_size * num_steps

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        del max_steps
        size = jnp.asarray(size, jnp.int32)
        least = jnp.maximum(size, 1)
        order = permutations(key, 1, -(-total // least) * size, total + max_size)[0, :total]
        rows = (order % least).reshape(num_steps, batch_size)
        weights = jnp.broadcast_to(size > 0, (batch_size,))

        def pick(step: Step) -> tuple[Array, Array]:
            step = jnp.asarray(step, jnp.int32)
            return jax.lax.dynamic_index_in_dim(rows, step, keepdims=False), weights

        return pick

    return Batches(lambda sizes: np.where(sizes > 0, num_steps, 0), draw)


def seen_examples(work: fs.Work) -> Array:
    """Weights by the number of different examples a visit can see: ``min(n_i, 500)``."""
    return jnp.minimum(work.num_examples, BATCH_SIZE * NUM_STEPS)


WEIGHTINGS: dict[Weights, Weighting] = {"seen": seen_examples, "uniform": fs.uniform_weights}


def assignment(dataset: datasets.Dataset, name: str, iid: Iid, seed: int) -> list[np.ndarray]:
    """Which images each client gets, ``name`` being "iid" or "by writer"."""
    if dataset.train_groups is None:
        raise ValueError(
            f"dataset {dataset.name!r} has no writers; expected their numbers, for mnist QMNIST's "
            "label files beside its own"
        )
    writers, _ = partition.by_group(dataset.train_groups)
    if name == "by writer":
        return writers
    num_examples = len(dataset.train_groups)
    if iid == "leaf_default":
        return partition.iid(num_examples, max(1, round(LEAF_SHARE * len(writers))), seed)
    ends = np.cumsum([len(rows) for rows in writers])[:-1]
    return np.split(np.random.default_rng(seed).permutation(num_examples), ends)


def pooled_test(dataset: datasets.Dataset) -> dict[str, np.ndarray]:
    """Test images and labels of the writers that train, or of all if there is none of them."""
    assert dataset.train_groups is not None
    assert dataset.test_groups is not None
    known = np.isin(dataset.test_groups, dataset.train_groups)
    rows = known if known.any() else np.full(len(known), True)
    return {key: dataset.test[key][rows] for key in ("x", "y")}


def build_model(dataset: datasets.Dataset) -> models.Model:
    """The report's network: its convolutions have no activation."""
    return models.femnist_cnn_report(dataset.num_classes)


def trained(dataset: datasets.Dataset, name: str, seed: int, options: Options) -> pd.DataFrame:
    """The history of one run; a run that is on disk is continued.

    Seeds differ in dealing, cohorts, initial models and draws; partitions of one seed with equal
    numbers of clients share the last three.
    """
    model = build_model(dataset)
    images = {key: dataset.train[key] for key in ("x", "y")}
    data = fs.from_assignment(images, assignment(dataset, name, options.iid, seed))
    task = fs.empirical_task(
        objectives.cross_entropy(model.apply), data, repeated_pass(BATCH_SIZE, NUM_STEPS)
    )
    key = jax.random.fold_in(jax.random.key(0), seed)
    draw_key, init_key, run_key = jax.random.split(key, 3)
    timeline = fs.timelines.uniform(
        draw_key, options.num_rounds, task.num_clients, min(COHORT, task.num_clients), NUM_STEPS
    )
    metrics = objectives.classification_metrics(model.apply)
    kind = {"by writer": "by_writer", "iid": f"iid_{options.iid}"}[name]
    folder = f"{options.dataset}-{options.weighting}-{options.num_rounds}/{kind}-seed{seed}"

    def tell(progress) -> None:
        accuracy = progress.metrics[ACCURACY]
        print(f"{folder}: round {progress.round}, accuracy {accuracy:.4f}", flush=True)

    result = fs.simulate(
        fs.fedavg(LR),
        task,
        timeline,
        jax.jit(model.init)(init_key),
        run_key,
        weighting=WEIGHTINGS[options.weighting],
        eval_fn=merge_evaluators(test=evaluator(metrics, pooled_test(dataset))),
        eval_every=EVAL_EVERY,
        directory=options.work / folder,
        config={"dataset": dataset.name, "lr": LR, "batch": BATCH_SIZE, "steps": NUM_STEPS},
        checkpoint_seconds=60.0,
        on_divergence="record",
        on_progress=tell,
    )
    if result.interrupted:
        raise SystemExit(f"interrupted; the same command continues from {options.work / folder}")
    if result.history is not None:
        done = int(result.history.round[-1] - result.history.round[0]) + EVAL_EVERY
        print(f"{folder}: {result.run_seconds / done:.2f} s a round", flush=True)
    history = pd.read_csv(options.work / folder / "history.csv")
    history = history[history["metric"].isin((ACCURACY, LOSS))].drop(columns="replica")
    return history.assign(
        partition=name, seed=seed, diverged_at=int(np.asarray(result.state.diverged_at))
    )


class Comparison(NamedTuple):
    """Of one seed."""

    final: dict[str, float]  # accuracy
    reached: dict[str, float]  # rounds to the report's target, infinity if not reached
    level: float  # the equivalent of the target
    rounds: dict[str, float]  # to that level

    @property
    def slow_down(self) -> float:
        """Rounds by writer for a round of IID, to the equivalent target; 0: IID misses it."""
        return self.rounds["by writer"] / self.rounds["iid"]


def compared(history: pd.DataFrame, seed: int) -> Comparison:
    """Final accuracies and rounds to two targets: the report's, and what by writer ends with.

    Both ends are means over the last tenth of the evaluations, at least one.
    """
    mine = history.loc[history["seed"] == seed]
    final = {}
    for name in PARTITIONS:
        values = mine.loc[(mine["partition"] == name) & (mine["metric"] == ACCURACY)]
        values = np.asarray(values.sort_values("round")["value"])
        final[name] = float(values[-max(1, len(values) // 10) :].mean())
    level = final["by writer"]

    def rounds(target: float) -> dict[str, float]:
        found = rounds_to_target(mine, ACCURACY, target, ["partition"], mode="max")
        return dict(zip(found["partition"], found["score"].tolist(), strict=True))

    return Comparison(final, rounds(TARGET), level, rounds(level))


def table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """A row per seed and partition."""
    return pd.DataFrame(
        {
            "seed": seed,
            "partition": name,
            "final accuracy, %": 100 * found.final[name],
            f"rounds to {100 * TARGET:g} %": _count(found.reached[name]),
            "report": PAPER[name],
            "equivalent target, %": 100 * found.level,
            "rounds to it": _count(found.rounds[name]),
        }
        for seed, found in enumerate(comparisons)
        for name in PARTITIONS
    )


def _count(rounds: float) -> str:
    return f"{rounds:.0f}" if math.isfinite(rounds) else "not reached"


def described(dataset: datasets.Dataset, options: Options) -> str:
    """What was run, and what differs from the report."""
    iid, writers = (len(assignment(dataset, name, options.iid, 0)) for name in PARTITIONS)
    test = len(pooled_test(dataset)["y"])
    data = (
        "FEMNIST's writers at hand, those with fewer than 100 images among them"
        if dataset.name == "femnist"
        else "MNIST by QMNIST's writers, its own test images by other writers"
    )
    return (
        f"{data}: {writers} clients by writer, {iid} when dealt at random ({options.iid}), "
        f"{len(dataset.train['y'])} images, {test} test "
        f"images (report: FEMNIST, 3597 writers of at least 100 images).  {options.num_rounds} "
        f"rounds of {min(COHORT, writers)} clients by writer and {min(COHORT, iid)} IID, "
        f"{NUM_STEPS} steps of {BATCH_SIZE} images, rate {LR:g}, weights {options.weighting}, "
        f"{options.seeds} seed{'s' if options.seeds > 1 else ''}.  The equivalent target is the "
        "mean accuracy of the last tenth of the evaluations by writer; final accuracies are the "
        f"same mean.  Accuracy is evaluated every {EVAL_EVERY} rounds."
    )


def main(options: Options) -> None:
    """Trains, compares, writes and draws."""
    dataset = datasets.load(options.dataset, options.data_dir)
    seeds = range(options.seeds)
    runs = [trained(dataset, name, seed, options) for seed in seeds for name in PARTITIONS]
    history = pd.concat(runs, ignore_index=True)
    comparisons = [compared(history, seed) for seed in seeds]
    slow = [f"{found.slow_down:.2f}" for found in comparisons]
    text = (
        "# FedAvg by writer and IID\n\n"
        f"{described(dataset, options)}\n\n{markdown(table(comparisons))}\n\n"
        f"Rounds by writer over rounds IID to the equivalent target, a number a seed: "
        f"{', '.join(slow)}.  Report, to 79 %: {PAPER['by writer'] / PAPER['iid']:.2f}."
    )
    print(text, flush=True)
    folder, name = options.output / "femnist_heterogeneity", f"{options.dataset}-{options.iid}"
    write(folder, name, history, text, options=dataclasses.asdict(options))
    figure = plotting.curves(history, [ACCURACY, LOSS], by="partition", band="minmax")
    figure.axes[0].axhline(TARGET, color="0.6", lw=0.8, ls=":")
    figure.savefig(folder / f"{name}.png", dpi=100)


if __name__ == "__main__":
    main(tyro.cli(Options))
