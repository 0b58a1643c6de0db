r"""Measures the floor of FedMoSWA with cohorts, and what its parts add, as a factorial.

    python -m experiments.questions.fedmoswa     # 30 minutes of one core

**Floor.**  Quadratics with 32 clients in double precision; cohorts s from 1 to 32, gamma from 0.05
to 1, FedAvg, SCAFFOLD, FedMo and FedMoSWA with equal total steps per round, the same cohorts and
noise.  Five cases: three steps, gradient noise, different curvatures.  Beside the measured square
distance from the optimum stands its expectation by an exact recursion of second moments
(:mod:`.fedmoswa_floor`), and a law from it in continuous time.

**Factorial.**  gamma x controls (own, none, last on worker) x alpha x rho on the 600 digits that
the study of flatness over-fits.  Each setting has the rate that is best for the other seeds;
effects are paired by seed.  The rate 0.5 was added after the first results, where 0.25, the
largest, was often the best.  The page shows the same effects on CIFAR-100 with a narrow LeNet-5 at
one rate, from the table of ``experiments.fedswa.factorial``.

**Expected, written before the run.**  The law (1 to 4) was derived and compared with the recursion
and with small runs of 1,000 rounds.  For the factorial a pilot of one seed and 100 rounds, for the
cost, had been seen.

1. The recursion is exact: the 95 % intervals of at least 9 in 10 floors contain it.
2. With ``h = alpha q a sum_k eta_k`` and ``r = s / M`` the floor is
   ``h / 2 (1/s - 1/M) var(b)`` times ``(r + gamma) (r + h) / ((r + gamma) (r + 2 h) + 2 h^2)``,
   within 15 % for h below 0.05 and gamma up to 0.4.  So FedMoSWA settles where FedAvg does only
   where h is small beside s / M; elsewhere it settles lower, since m forgets slower than models
   move.
3. gamma acts only there: at h = 0.18 the exponent of gamma (0.05 to 0.4) is 0.38 with s = 1 and at
   most 0.05 with s = 16.
4. Without noise there is no floor at s = M, and none of SCAFFOLD at any s, whose server's control
   is the mean of all controls, not of a cohort.  Different curvatures change the floors by less
   than 15 %.  With noise FedMoSWA's floor is above SCAFFOLD's at every s < M.
5. Controls are the largest main effect on the test accuracy, own over none by more than 2 points.
   Reason: heterogeneity is large (Dirichlet 0.1) and cohorts are small (2 of 20).
6. gamma has the second largest effect, and 0.05 is better than 1, where m is one cohort's mean: by
   the law, gamma = 1 leaves two thirds of FedAvg's floor at s / M = 0.1.
7. Controls of a worker's last client gain less than half of what the client's own do: they are
   another client's.
8. alpha and rho change the accuracy by less than a point each: their product with the rate is the
   step, and the rate is chosen.
9. The gain is one of optimisation: of the difference in test loss between own and no controls, the
   training loss has more than half.
10. SCAFFOLD, which has no floor, is at least as good as the best setting of FedMoSWA.
"""

import dataclasses
import pathlib

import tyro

from experiments.harness import Folders, check_grid, save_report, settings
from experiments.questions.fedmoswa_factorial import kept, scored
from experiments.questions.fedmoswa_floor_runs import CASES, CLIENTS, GROUPS, measured
from experiments.questions.fedmoswa_report import build
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    cohorts: tuple[int, ...] = (1, 4, 16, 32)
    floor_gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
    floor_seeds: int = 64
    floor_rounds: int = 2000
    gammas: tuple[float, ...] = (0.05, 0.2, 0.4, 1.0)
    alphas: tuple[float, ...] = (1.0, 1.5)
    rhos: tuple[float, ...] = (0.1, 1.0)
    lrs: tuple[float, ...] = (0.03, 0.06, 0.12, 0.25, 0.5)
    seeds: int = 20
    rounds: int = 400
    work: pathlib.Path = pathlib.Path("results/questions")  # finished programs, to continue from

    def __post_init__(self) -> None:
        check_grid(floor_gammas=self.floor_gammas, gammas=self.gammas, alphas=self.alphas)
        check_grid(rhos=self.rhos, lrs=self.lrs)
        check_at_least(2, seeds=self.seeds)
        check_at_least(4, floor_rounds=self.floor_rounds, rounds=self.rounds)
        if self.floor_seeds % GROUPS or self.floor_seeds < GROUPS:
            raise ValueError(
                f"floor_seeds is {self.floor_seeds}; expected a positive multiple of {GROUPS}"
            )
        for size in self.cohorts:
            if not 1 <= size <= CLIENTS:
                raise ValueError(f"cohorts has {size}; expected numbers from 1 to {CLIENTS}")


def main(options: Options) -> None:
    """Runs what is not kept and writes the report."""
    rows = kept(
        options.work, options.seeds, options.rounds, options.lrs, gammas=options.gammas,
        alphas=options.alphas, rhos=options.rhos,
    )  # fmt: skip
    floors = measured(
        options.work, options.cohorts, options.floor_gammas, options.floor_seeds,
        options.floor_rounds,
    )  # fmt: skip
    save_report(
        options.output / "questions" / "fedmoswa", "fedmoswa", {"": scored(rows), "floor": floors},
        build, options=settings(options), cases=[case._asdict() for case in CASES],
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
