"""Which method wins where: nine tuned methods on slices of sizes and constants of a problem.

    python -m experiments.questions.phase_diagram                  # reduced: 15 minutes of one core
    python -m experiments.questions.phase_diagram --scale full     # 50 minutes of a core per family
    python -m experiments.questions.phase_diagram --families quadratic

Every method has R rounds and K gradients per client and round.  The planes go through one centre:
clients M x local steps K, with and without heterogeneity; heterogeneity x noise; condition number x
noise.  A method's score in a cell is F - F* after R rounds.  Each seed is scored at the rate (and
second number) whose mean over the other seeds is least, so no seed chooses its own rate.

Programs, one per (family, method, M, K), are kept in ``--work`` and not repeated; ``--finished``
writes the report of those that are kept.  Scores by seed stay there; the report's tables have a row
per cell.

**Expected, written before the run:**

1. Without heterogeneity MB-SGD beats FedAvg in no cell of the quadratics.  Their Hessian is
   constant (Q = 0), so the mean of the local paths is SGD with K R steps and M gradients per step.
   The rates for smooth functions predict that MB-SGD wins at few local steps and much noise.
2. FedAc is ahead of FedAvg where ``exp(-K R / kappa)`` decides (large condition numbers, little
   noise), and behind it by more than the interval where noise decides: Table 3.1 hides a square of
   a logarithm in FedAc's statistical term, and none in FedAvg's.
3. On quadratics with different curvatures FedAvg falls behind MB-SGD at a heterogeneity within a
   factor of 4 of ``zeta = L B / sqrt(R)``, where their convex rates are equal.
4. On quadratics with equal curvatures, and in the logistic regression, FedAvg stays ahead of MB-SGD
   at all heterogeneities, though zeta is the same: a constant difference of gradients moves no
   mean if the Hessian is constant, and little if it changes little.
5. At the greatest heterogeneity the lowest loss is SCAFFOLD's or Scaffnew's, since controls remove
   the bias and keep the K R steps; MB-SGD and gradient tracking are nowhere alone in front with
   ``K >= 4``.
6. FedProx is nowhere alone in front: a small weight is FedAvg, a large one gives up local steps.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import tyro

from experiments.harness import check_names, kept_json, save_report, settings
from experiments.questions.phase_diagram_cells import SCALES, Cell, Scale, cells, grouped
from experiments.questions.phase_diagram_problem import (
    Family,
    gaps,
    initial,
)
from experiments.questions.phase_diagram_report import build
from experiments.questions.phase_diagram_runs import METHODS, Sizes, final_gaps
from experiments.questions.phase_diagram_tables import summaries
from fedjax_sim.runs import digest


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    scale: Literal["tiny", "reduced", "full"] = "reduced"
    families: tuple[Family, ...] = get_args(Family)
    methods: tuple[str, ...] = tuple(METHODS)
    finished: bool = False  # starts no run
    work: pathlib.Path = pathlib.Path("results/questions")  # finished programs
    output: pathlib.Path = pathlib.Path("experiments/results/questions")

    def __post_init__(self) -> None:
        check_names("families", self.families, get_args(Family))
        check_names("methods", self.methods, METHODS)


def scored(losses: np.ndarray) -> tuple[np.ndarray, int]:
    """Scores of all seeds, and the choice that is best for their mean.

    Args:
        losses: ``[choices, seeds]``, finite.

    Example:
        >>> scores, best = scored(np.array([[1.0, 9.0, 9.0], [2.0, 2.0, 2.0]]))
        >>> scores.tolist(), best  # the first seed alone would choose the other rate
        ([2.0, 2.0, 2.0], 1)
    """
    others = losses.sum(1, keepdims=True) - losses
    return np.take_along_axis(losses, others.argmin(0)[None], 0)[0], int(losses.sum(1).argmin())


def measure(
    family: Family, method: str, cells: Sequence[Cell], scale: Scale, options: Options
) -> list[dict[str, Any]]:
    """Rows of cells of one M and K; a run that ends above its start counts as its start."""
    sizes = Sizes(cells[0].clients, cells[0].local_steps, scale.rounds)
    effort = scale.at_centre if sizes[:2] == scale.centre[:2] else scale.elsewhere
    lrs = effort.lrs
    problems = list(dict.fromkeys(cell.problem for cell in cells))
    starts = np.array([float(gaps(family, problem, initial(family))) for problem in problems])

    def compute() -> dict[str, Any]:
        ends = final_gaps(family, method, problems, sizes, lrs, effort.seeds)
        return {"gaps over start": np.minimum(ends / starts[:, None, None], 1).tolist()}

    identity = {
        "family": family, "method": method, "problems": problems, "sizes": sizes, "lrs": lrs,
        "seeds": effort.seeds,
    }  # fmt: skip
    path = options.work / "phase_diagram" / f"{digest(identity)}.json"
    if options.finished and not path.exists():
        return []
    kept = np.asarray(kept_json(path, compute)["gaps over start"], np.float64)
    losses = dict(zip(problems, kept, strict=True))
    second = METHODS[method].second
    rows = []
    for cell in cells:
        scores, best = scored(losses[cell.problem])
        place, other = divmod(best, len(second))
        rows.append(
            {"family": family, "plane": cell.plane, "M": cell.clients, "K": cell.local_steps}
            | cell.problem._asdict()
            | {"method": method, "lr": lrs[place], "second": second[other]}
            | {"at edge": place in (0, len(lrs) - 1)}
            | {f"seed {i}": score for i, score in enumerate(scores)}
        )
    return rows


def main(options: Options) -> None:
    """Runs what is not kept and writes the report."""
    scale = SCALES[options.scale]
    rows = []
    work: list[tuple[Family, list[Cell]]] = [
        (family, group) for family in options.families for group in grouped(cells(family, scale))
    ]
    # The planes of numbers first: most cells for the least time.
    for family, group in sorted(work, key=lambda part: -len(part[1])):
        for method in options.methods:
            rows += measure(family, method, group, scale, options)
            print(family, group[0].clients, group[0].local_steps, method, flush=True)
    facts = settings(options) | scale._asdict()
    tables = summaries(pd.DataFrame(rows))
    folder = options.output / "phase_diagram"
    save_report(folder, "phase_diagram", tables, build, options=facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
