r"""The curse of primal averaging: clients' sparse models have a dense average.

    python -m experiments.fco_primal_averaging
    python -m experiments.fco_primal_averaging --sets III --rounds 100

Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Figure 1.1.  In every
round of the federated LASSO: the mean density of the clients' last models, the density of the
models' average, and that of the server's model after its proximal step; of FedDualAvg the latter
is P(mean dual).  Server rate 1, so that the average is what FedMiD's server step is applied to.
Densities count the entries that are not zero, whose averages have the union of the supports, and
those above 0.01, of which averaging makes some small.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments import fco_common as common
from experiments.fco_lasso import LASSO
from experiments.output import write
from fedjax_sim import plotting, tree
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.diagnostics.recovery import CUTOFF, density

CLIENTS, AVERAGE, SERVER = "clients", "average", "server"
CUTOFFS = (0.0, CUTOFF)
SHOWN = (50, 100, 200, 500)


class Run(NamedTuple):
    """A method at a client rate; server rate 1."""

    method: str
    lr: float


# The rates of the published experiments that are stable on these data.
RUNS = (
    Run("FedMiD", 3e-4),
    Run("FedMiD-OSP", 3e-4),
    Run("FedDualAvg", 3e-4),
    Run("FedDualAvg", 1e-3),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    sets: tuple[str, ...] = tuple(LASSO.sets)
    rounds: int = common.ROUNDS
    problem_seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        common.check_counts(rounds=self.rounds)
        common.check_names("sets", self.sets, LASSO.sets)


def last_model(run: Run, shared: common.Problem) -> Callable[[fs.Visit], Any]:
    """The weights of a client at the end of its visit."""

    def of(visit: fs.Visit) -> jax.Array:
        if not run.method.startswith("FedDualAvg"):
            return tree.sub(visit.message, visit.upload.descent)["weight"]
        dual, elapsed = visit.message
        end = tree.sub(dual, visit.upload.descent)
        return shared.composite.argmin(end, elapsed + visit.upload.elapsed)["weight"]

    return of


def measure(run: Run, shared: common.Problem) -> pd.DataFrame:
    """The tidy history of a run's densities."""
    probes = fs.Probes(
        client={"model": last_model(run, shared)},
        server={"server": lambda update: update.new_state.params["weight"]},
    )
    timeline, params = jax.tree.map(lambda x: x[0], (shared.timeline, shared.params))

    @jax.jit
    def models(task: fs.Task, timeline: fs.Timeline) -> dict[str, jax.Array]:
        """Of the clients ``[T, S, d]`` and the server ``[T, d]``."""
        algorithm = common.METHODS[run.method](run.lr, shared.composite, server_lr=1.0)
        return fs.run(
            algorithm, task, timeline, params, shared.keys[0],
            weighting=fs.weight_by_examples, probes=probes,
        )[1].probes  # fmt: skip

    found = models(shared.task, timeline)
    # All clients have equally many examples.
    places = {AVERAGE: found["model"].mean(axis=1), SERVER: found["server"]}
    parts = []
    for cutoff in CUTOFFS:
        of_all = {CLIENTS: share(found["model"], cutoff).mean(axis=1)}
        of_all |= {place: share(model, cutoff) for place, model in places.items()}
        parts += [
            pd.DataFrame({"metric": f"{place} > {cutoff:g}", "value": np.asarray(values)})
            for place, values in of_all.items()
        ]
    for part in parts:
        part["round"] = np.arange(1, len(part) + 1)
    label = f"{run.method}, {run.lr:g}"
    return pd.concat(parts, ignore_index=True).assign(run=label, seed=0)


def share(models: jax.Array, cutoff: float) -> jax.Array:
    """The density of models ``[..., d]``."""
    flat = jax.vmap(lambda model: density(model, cutoff))(models.reshape(-1, models.shape[-1]))
    return flat.reshape(models.shape[:-1])


def table(history: pd.DataFrame) -> pd.DataFrame:
    """A row per run and quantity: the density in some rounds."""
    last = int(np.max(history["round"]))
    rounds = [done for done in SHOWN if done < last] + [last]
    shown = history.loc[history["round"].isin(rounds), :]
    wide = shown.pivot_table(
        index=["run", "metric"], columns="round", values="value", sort=False
    ).reset_index()
    names = {"metric": "density of"} | {done: f"round {done}" for done in rounds}
    return wide.rename(columns=names).rename_axis(columns=None)


def main(options: Options) -> None:
    """Runs, writes and draws."""
    folder = options.output / "fco_primal_averaging"
    settings = common.Options(rounds=options.rounds, problem_seed=options.problem_seed)
    for name in options.sets:
        shared = common.problem(LASSO, name, settings)
        history = pd.concat([measure(run, shared) for run in RUNS], ignore_index=True)
        truth = float(np.mean(shared.data.weight != 0))
        text = (
            f"# Primal averaging, federated LASSO, set {name}\n\n"
            f"Density of the truth {truth:.4g}; {common.COHORT} clients a round, server rate 1, "
            f"lambda {LASSO.weight:g}.  `{AVERAGE}` is that of the clients' last models, "
            f"`{SERVER}` the model after the server's proximal step; `> c` counts the entries "
            f"above c.\n\n{markdown(table(history))}"
        )
        print(text, flush=True)
        kept = history.loc[(history["round"] % 10 == 0) | (history["round"] == 1), :]
        write(folder, name, kept, text, options=dataclasses.asdict(options))
        panels = list(dict.fromkeys(history["metric"]))
        figure = plotting.curves(history, panels, by="run", band=None)
        for axes in figure.axes:
            axes.set_ylim(0, 1.05)
            axes.axhline(truth, color="0.6", lw=0.8)
        figure.savefig(folder / f"{name}.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Options))
