r"""Does flatness predict generalisation?  Rank correlations within and across methods.

    python -m experiments.questions.flatness

Perceptrons that over-fit 600 digits of 20 clients (Dirichlet 0.1 over labels, cohorts of two, five
passes per visit), six methods at two rates, ten seeds.  Every seed has training digits, clients,
cohorts, an initial model and minibatches of its own, which all methods share.  SWA and EMA are
means over rounds of FedAvg's models.  At the last model the Hessian of the mean loss over all
training digits is computed whole, in double precision, so its largest eigenvalue and its trace are
exact; the rise is ``F(x + r g / |g|) - F(x)`` with r = 0.05, the step of sharpness-aware
minimisation.

Cost, stated before the run: 120 runs of 400 rounds, about 4 minutes of CPU; 120 Hessians of 1,210
parameters, about 5 minutes.

Expected answers, written before the run.  Correlations are Spearman's.

1. *Within a method and rate, over seeds, no measure of flatness predicts the gap* (test loss less
   training loss): the mean correlation is between -0.3 and 0.3, with an interval that contains 0.
   Reason: seeds differ in the digits that they train on, which moves the gap but hardly the
   curvature.
2. *Across methods and rates of one seed the top eigenvalue goes against the gap*: at most -0.3.
   Reason: a method that fits further has a saturated softmax, hence a smaller Hessian, and a larger
   test loss.
3. *The training loss predicts the gap at least as well as any measure of flatness*, and at an equal
   training loss (the partial correlation) the top eigenvalue is within 0.3 of 0.  Reason: all four
   follow from how far the training digits are fitted.
4. *FedSAM's rise is below FedAvg's at both rates*, as are those of SWA and EMA: the paired
   intervals of the difference of logarithms lie below 0.  Reason: FedSAM descends on it, and a mean
   over rounds removes the noise of cohorts, which moves along steep directions.
5. *With the test error instead of the gap, across methods, flatness predicts weakly*: a positive
   correlation of at most 0.5.  Reason: errors do not grow with the confidence of wrong answers.
"""

import dataclasses

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, check_finished, save_report, seed_keys, settings
from experiments.questions.flatness_problem import (
    HIDDEN,
    METHODS,
    digits,
    factory,
    make_setup,
    measures,
)
from experiments.questions.flatness_report import build
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    lrs: tuple[float, ...] = (0.1, 0.3)
    seeds: int = 10
    rounds: int = 400

    def __post_init__(self) -> None:
        check_at_least(3, seeds=self.seeds)
        check_at_least(4, rounds=self.rounds)


def run(options: Options) -> pd.DataFrame:
    """A row per method, rate and seed; runs that diverged have no measures."""
    grid = [
        {"method": method, "lr": lr, "rounds": options.rounds}
        for lr in options.lrs
        for method in METHODS
    ]
    folder = options.work / f"flatness-{options.rounds}"
    storage = fs.Storage(folder, keep_models=True)
    result = fs.sweep(
        factory,
        lambda seed: make_setup(int(seed), options.rounds),
        grid,
        seed_keys(options.seeds),
        storage=storage,
    )
    check_finished(result, folder)
    rows = []
    for one in result.runs:
        row = {"method": one.configuration["method"], "lr": one.configuration["lr"]}
        row |= {"seed": int(one.seed), "diverged": bool(one.diverged_at)}
        if not one.diverged_at:
            row |= measures(one.model, *digits(int(one.seed)))
        rows.append(row)
        print(row, flush=True)
    return pd.DataFrame(rows)


def main(options: Options) -> None:
    """Runs, measures and writes the report."""
    save_report(
        options.output / "questions" / "flatness", "flatness", {"": run(options)}, build,
        **settings(options), parameters=64 * HIDDEN + HIDDEN + HIDDEN * 10 + 10,
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
