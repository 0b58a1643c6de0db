"""What the precision of local steps does to what is learnt.

    python -m experiments.precision
    python -m experiments.precision --dataset femnist --partition natural --rounds 60 --seeds 3

The comparison of ``fedjax-sim run`` in every precision that the machine has, beside the same runs
in float64: the same initial models, cohorts and minibatches, so that differences are those of the
arithmetic.  bfloat16 is that of local gradients; iterates, uploads and the server are in float32.
TF32 is the GPUs' and left out elsewhere, where products asked for in it are of float32.
"""

import dataclasses
import itertools
import pathlib
from typing import Literal

import jax
import numpy as np
import pandas as pd
import tyro

from experiments.output import write
from fedjax_sim.analysis.intervals import mean_interval
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.run import compare

PRECISIONS = ("float32", "tf32", "bfloat16")
EXACT = "float64"
METRICS = ("test/accuracy", "train/loss")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    algorithms: tuple[str, ...] = ("fedavg", "scaffold", "fedadam")
    dataset: str = "digits"
    partition: Literal["dirichlet", "iid", "natural"] = "dirichlet"
    rounds: int = 100
    seeds: int = 10
    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results/precision")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")


def histories(options: Options, precisions: tuple[str, ...]) -> pd.DataFrame:
    """Of all precisions: algorithm, seed, round, metric, value, precision."""
    parts = []
    for precision in precisions:
        config = RunConfig(
            algorithms=options.algorithms,
            dataset=options.dataset,
            partition=options.partition,
            rounds=options.rounds,
            seeds=options.seeds,
            precision=precision,  # pyright: ignore[reportArgumentType]
            data_dir=options.data_dir,
            output=options.work / options.dataset / precision,
        )
        found = compare(config)
        if found.interrupted:
            raise KeyboardInterrupt
        parts.append(found.history.assign(precision=precision))
    return pd.concat(parts, ignore_index=True)


def effect(history: pd.DataFrame) -> pd.DataFrame:
    """A row per algorithm, metric and precision: its mean at the end, the paired difference from
    float64 there, and the largest absolute difference of a seed's curve at any evaluation."""
    rows = []
    for algorithm, metric in itertools.product(history["algorithm"].unique(), METRICS):
        part = history.query("algorithm == @algorithm and metric == @metric")
        curves = {
            name: part.query("precision == @name")
            .pivot_table(index="seed", columns="round", values="value")
            .to_numpy()
            for name in history["precision"].unique()
        }
        exact = curves.pop(EXACT)
        end = mean_interval(exact[:, -1])
        row = {"algorithm": algorithm, "metric": metric}
        rows.append({**row, "precision": EXACT, "mean": end.mean, "low": end.low, "high": end.high})
        for precision, values in curves.items():
            end, off = mean_interval(values[:, -1]), mean_interval(values[:, -1] - exact[:, -1])
            found = {"mean": end.mean, "low": end.low, "high": end.high}
            found |= {"difference": off.mean, "from": off.low, "to": off.high}
            largest = float(np.abs(values - exact).max())
            rows.append({**row, "precision": precision, **found, "largest": largest})
    return pd.DataFrame(rows)


def main(options: Options) -> None:
    """Runs all precisions, prints and writes their table."""
    here = [name for name in PRECISIONS if name != "tf32" or jax.default_backend() == "gpu"]
    history = histories(options, (*here, EXACT))
    text = "\n\n".join(
        [
            f"# Precision: {options.dataset}, {options.rounds} rounds, {options.seeds} seeds",
            "Means at the end with intervals of 95 % (low, high), differences from float64 seed by "
            "seed with theirs (from, to), and the largest difference of a seed at any evaluation.",
            markdown(effect(history)),
        ]
    )
    print(text, flush=True)
    kept = history.query("metric in @METRICS")
    write(options.output / "precision", options.dataset, kept, text)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
