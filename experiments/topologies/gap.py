"""Accuracy of the clients' models against the spectral gap, for three heterogeneities.

    python -m experiments.topologies.gap

16 clients, all in every round, softmax regression on digits, one gradient of all its minibatches
per client and round.  D-PSGD and gradient tracking on four graphs, each with three shares that
clients keep of their own models, so one gap occurs on several graphs.  Every seed has a partition
of its own.  One sweep, in which seeds share programs.
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import tyro
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.harness import Folders, save_report, settings, swept
from experiments.topologies.gap_report import build, scores
from fedjax_sim import topologies
from fedjax_sim.checks import check_at_least

CLIENTS = 16
GRAPHS = {
    "ring": topologies.ring(CLIENTS),
    "Erdos-Renyi": topologies.erdos_renyi(CLIENTS, 0.3, seed=1),
    "torus": topologies.torus(4, 4),
    "complete": topologies.complete(CLIENTS),
}
SHARES = (0.0, 0.5, 0.8)
METHODS = {"D-PSGD": topologies.d_psgd, "gradient tracking": topologies.gradient_tracking}


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    rounds: int = 150
    seeds: int = 3
    lr: float = 0.5
    alphas: tuple[float, ...] = (0.1, 1.0, 10.0)  # concentrations of the Dirichlet partition
    work: pathlib.Path = pathlib.Path("results/topologies")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds)
        check_at_least(0, lr=self.lr)


def factory(lr: float, method: str, graph: str, share: float) -> fs.FedAlgorithm:
    """Returns one of the methods on a graph whose clients keep a share of their models."""
    return METHODS[method](lr, GRAPHS[graph].lazy(share))


def of_clients(eval_fn: Partial, context: Any) -> dict[str, Any]:
    """Metrics of all clients' models on the common test set: the mean client, the worst one."""
    server = context.state.server
    each = jax.vmap(eval_fn)(server.models)
    return {
        "mean/accuracy": each["test/accuracy"].mean(),
        "worst/accuracy": each["test/accuracy"].min(),
        "consensus": topologies.consensus_distance(server),
    }


of_clients.takes_state = True  # type: ignore[attr-defined]


def problem(alpha: float, seed: int, *, rounds: int) -> fs.Setup:
    """A seed's digits among the clients, and evaluations of their own models."""
    setup = fs.presets.quickstart(
        num_clients=CLIENTS, sampling="full", partition="dirichlet", alpha=alpha,
        partition_seed=seed, model="softmax_regression", local_epochs=1, rounds=rounds,
        eval_every=rounds, seeds=None, seed=seed,
    )  # fmt: skip
    return dataclasses.replace(setup, eval_fn=Partial(of_clients, setup.eval_fn))


def main(options: Options) -> None:
    """Runs the sweep, prints and writes table and figure."""
    grid = {
        "lr": [options.lr], "method": list(METHODS), "graph": list(GRAPHS),
        "share": list(SHARES), "alpha": list(options.alphas),
    }  # fmt: skip
    make_setup = functools.partial(problem, rounds=options.rounds)
    history = swept(factory, make_setup, grid, fs.presets.keys(options.seeds), options.work)
    gaps = {
        (name, share): graph.lazy(share).spectral_gap
        for name, graph in GRAPHS.items()
        for share in SHARES
    }
    folder = options.output / "topologies" / "gap"
    save_report(folder, "gap", {"": scores(history, gaps)}, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
