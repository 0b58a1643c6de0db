r"""The curse of primal averaging: clients' sparse models have a dense average.

    python -m experiments.fco.primal_averaging
    python -m experiments.fco.primal_averaging --sets III --rounds 100

Figure 1.1 of the thesis.  In every round of the federated LASSO: the mean density of the clients'
last models, the density of the models' average, and the density of the server's model after its
proximal step, for FedDualAvg P(mean dual).  Server rate 1, so that FedMiD's server step is applied
to the average.
Densities count the entries that are not zero, whose averages have the union of the supports, and
those above 0.01, of which averaging makes some small.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fco import methods, recovery
from experiments.fco.lasso import LASSO
from experiments.fco.primal_averaging_report import AVERAGE, CLIENTS, SERVER, save
from experiments.harness.options import check_names, settings
from fedjax_sim.checks import check_at_least
from fedjax_sim.diagnostics import CUTOFF

CUTOFFS = (0.0, CUTOFF)
EVERY = 10  # rounds between those that are kept


class Run(NamedTuple):
    """A method at a client rate; server rate 1."""

    method: str
    lr: float


# The rates of the published experiments that are stable on these data.
RUNS = (
    *(Run(method, 3e-4) for method in ("FedMiD", "FedMiD-OSP", "FedDualAvg")),
    Run("FedDualAvg", 1e-3),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    sets: tuple[str, ...] = tuple(LASSO.sets)
    rounds: int = recovery.ROUNDS
    problem_seed: int = 0
    output: pathlib.Path = pathlib.Path("experiments/results/fco")

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds)
        check_names("sets", self.sets, LASSO.sets)


def last_model(run: Run, shared: methods.Problem) -> Callable[[fs.Visit], Any]:
    """A probe: the weights of a client at the end of its visit."""

    def probe(visit: fs.Visit) -> jax.Array:
        if not run.method.startswith("FedDualAvg"):
            return fs.tree.sub(visit.message, visit.upload.descent)["weight"]
        dual, elapsed = visit.message
        end = fs.tree.sub(dual, visit.upload.descent)
        return shared.composite.argmin(end, elapsed + visit.upload.elapsed)["weight"]

    return probe


def measure(run: Run, shared: methods.Problem) -> pd.DataFrame:
    """The tidy history of a run's densities."""
    algorithm = methods.METHODS[run.method](run.lr, shared.composite, server_lr=1.0)
    timeline, params = jax.tree.map(lambda x: x[0], (shared.timeline, shared.params))
    setup = fs.Setup(shared.task, timeline, params, weighting=fs.weight_by_examples)
    probes = fs.Probes(
        client={"model": last_model(run, shared)},
        server={"server": lambda update: update.new_state.params["weight"]},
    )
    _, history = jax.jit(functools.partial(fs.run, algorithm, probes=probes))(setup, shared.keys[0])
    models, server = history.probes["model"], history.probes["server"]
    average = models.mean(axis=1)  # all clients have equally many examples
    parts = []
    for cutoff in CUTOFFS:
        densities = {
            CLIENTS: share(models, cutoff).mean(axis=1),
            AVERAGE: share(average, cutoff),
            SERVER: share(server, cutoff),
        }
        for place, values in densities.items():
            columns = {"metric": f"{place} > {cutoff:g}", "value": np.asarray(values)}
            parts.append(pd.DataFrame(columns | {"round": np.arange(1, len(values) + 1)}))
    label = f"{run.method}, {run.lr:g}"
    return pd.concat(parts, ignore_index=True).assign(run=label, seed=0)


def share(models: jax.Array, cutoff: float) -> jax.Array:
    """The density of models ``[..., d]``."""
    flat = jax.vmap(lambda model: fs.diagnostics.recovery.density(model, cutoff))(
        models.reshape(-1, models.shape[-1])
    )
    return flat.reshape(models.shape[:-1])


def main(options: Options) -> None:
    """Runs the data sets and writes their reports."""
    given = recovery.Options(rounds=options.rounds, problem_seed=options.problem_seed)
    for name in options.sets:
        problem = recovery.make_problem(LASSO, name, given)
        history = pd.concat([measure(run, problem.shared) for run in RUNS], ignore_index=True)
        kept = history.loc[(history["round"] % EVERY == 0) | (history["round"] == 1), :]
        facts = {
            "options": settings(options),
            "truth": float(np.mean(problem.data.weight != 0)),
            "lambda": LASSO.weight,
        }
        save(options.output / "primal_averaging", name, kept, facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
