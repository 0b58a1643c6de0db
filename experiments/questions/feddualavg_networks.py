r"""Does dual averaging keep its advantage in networks whose kernels are in l1 balls?

    python -m experiments.questions.feddualavg_networks

The thesis proves rates of FedDualAvg for convex F only (Remark 4.2), and its footnote conjectures
"similar advantageous results" for a non-convex F on a convex set.  Here are 800 digits on 20
clients, softmax regression (convex) and a perceptron with 16 hidden units, every kernel in an l1
ball of its own, biases free; three radii, K = 1 and 16 local steps on minibatches of eight, IID
clients and Dirichlet 0.1, 60 rounds of all clients.  Glorot's kernels have l1 norms of about 140
and 38 in the network and 91 for softmax, so the balls of radius 10 and 30 bind from the start.

Every method has a grid of six client rates and two server rates, the averaged one of six client
rates, chosen per cell by the mean loss on 400 further digits.  Five seeds, each with clients,
minibatches and an initial model that all methods share; scores are the loss over all clients and
loss and accuracy on the other 597 digits.  Intervals are Student's over paired seeds.

h is half the squared norm, so the prox centre drops out: with h centred anywhere and the dual
started at h's gradient, the model is the projection of x_0 less the weighted gradients.  Dual
averaging from the centre 0 therefore means to start at kernels of 0, which never move, since each
layer's gradient has the other's kernel as a factor.  Besides the projected start are tried: the
dual at Glorot's kernels outside the ball, kernels scaled to the ball, and kernels times 0.01.

Cost, stated before the run: 10 minutes of CPU, of which compilation takes 3.

Expected answers, written when scores of FedMiD at the radius 20 with IID clients had been seen and
none of other methods.  A first grid, which ended at the rate 1, was then stopped after softmax at
K = 1, because methods chose its edge; the answers stayed as they were.  K = 4 was planned, too, and
left out for want of time when softmax had run (hence six cells in answer 4, which are four).

1. *Dual averaging is sparser*: with Dirichlet 0.1 and K = 16 its density is at most 0.8 times that
   of FedMiD, in both models and all balls.  Reason: FedMiD's server has the union of the clients'
   supports, and a mean of points of a ball lies inside it, where the projection does nothing.
2. *Its loss is lower with long visits*: there its training loss is below FedMiD's in the smallest
   ball, in both models.  Reason: the same; FedMiD's mean does not use the whole ball.
3. *In the network it pays for lag with short visits*: at K = 1 its training loss in the smallest
   ball is above FedMiD's, while for softmax they are within 5 %.  Reason: the dual of an entry
   that is 0 falls behind at the speed of its gradient's shortfall and must make all of it up before
   the entry returns.  In a convex problem gradients settle; in a network the useful entries change.
4. *More hidden units die*: in the smallest ball FedDualAvg has fewer live units than FedMiD in all
   six cells.  Reason: a unit without weights in and out has no gradient, and its lag keeps it so.
5. *FedDualAvg-OSP fails where the ball binds*: in the smallest ball at K = 16 its training loss is
   at least 1.1 times FedDualAvg's, in both models; FedMiD-OSP is within 5 % of FedMiD.  Reason: its
   dual is FedAvg's iterate without a constraint, and the projection of an optimum is none.
6. *The averaged model, the one that theorems are about, is worse in the network*: its training loss
   is at least 1.1 times that of the last model in every cell of the network with K = 16.  Reason:
   early models count as much as late ones, and Jensen's inequality needs convexity.
7. *The start hardly matters but outside of the ball*: scaled and near-0 starts change FedDualAvg's
   training loss by less than 10 %, a dual outside of the ball raises it.  Reason: entries that the
   projection sets to 0 then start with a lag; near 0 the saddle is left within a few rounds.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
import tyro

from experiments.harness import Folders, check_grid, kept_json, save_report, settings
from experiments.questions.feddualavg_networks_problem import METHODS, MODELS, STARTS, Cell
from experiments.questions.feddualavg_networks_report import build
from experiments.questions.feddualavg_networks_runs import tuned
from fedjax_sim.checks import check_at_least
from fedjax_sim.runs import digest

OF_STARTS = ("FedDualAvg", "FedMiD")


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    radii: tuple[float, ...] = (10.0, 30.0, 90.0)
    steps: tuple[int, ...] = (1, 16)
    alphas: tuple[float, ...] = (math.inf, 0.1)
    lrs: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    server_lrs: tuple[float, ...] = (1.0, 3.0)
    rounds: int = 60
    seeds: int = 5

    def __post_init__(self) -> None:
        check_grid(radii=self.radii, steps=self.steps, alphas=self.alphas)
        check_grid(lrs=self.lrs, server_lrs=self.server_lrs)
        check_at_least(2, seeds=self.seeds)
        check_at_least(1, rounds=self.rounds)


def points(options: Options) -> Iterator[tuple[Cell, str]]:
    """All cells with their methods; starts at the middle radius, longest visits and last alpha."""
    middle = sorted(options.radii)[len(options.radii) // 2]
    for model in MODELS:
        for steps in options.steps:
            for method in METHODS:
                for alpha in options.alphas:
                    for radius in options.radii:
                        yield Cell(model, radius, steps, alpha), method
    for method in OF_STARTS:
        for start in STARTS[1:]:
            yield Cell("network", middle, max(options.steps), options.alphas[-1], start), method


def run(cell: Cell, method: str, options: Options) -> dict[str, Any]:
    """The row of a cell and method; finished ones are kept in the work folder."""
    given = (method, options.lrs, options.server_lrs, options.rounds, options.seeds)
    path = options.work / "feddualavg_networks" / f"{digest(str((*cell, *given)))}.json"
    row = kept_json(path, functools.partial(tuned, cell, *given)) | {"alpha": cell.alpha}
    print(row, flush=True)
    return row  # with the cell's alpha, since JSON has no infinity


def main(options: Options) -> None:
    """Runs all points and writes the report."""
    rows = [run(cell, method, options) for cell, method in points(options)]
    folder = options.output / "questions" / "feddualavg_networks"
    save_report(folder, "feddualavg_networks", {"": pd.DataFrame(rows)}, build, **settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
