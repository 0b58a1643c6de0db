r"""Measures where local SGD settles with M equal clients: what averaging does not remove.

    python -m experiments.questions.averaging

Logistic regression (is a digit odd? eight features, an l2 term) whose clients all have the same
1,797 examples and draw one per local step, so nothing but noise makes clients differ.  All M
clients take part in every round.  A run has 9,600 local steps per client and starts at the
optimum; the models after the first quarter of the rounds are averaged and compared with the
optimum.  The prediction is
:func:`experiments.questions.averaging_theory.limit`, which shares no code with the runs: noise
spreads the clients, and the third derivative turns their spread into a drift.  Sizes are the
components of the mean displacement along the predicted one, over its length.

Cost, stated before the run: 2.2 billion local steps, about 4 minutes of CPU.

Expected answers, written before the run, with numbers from the prediction.

1. *The direction is that of the law*: a cosine of at least 0.99 with the prediction wherever the
   size is known to 2 %.  Reason: the terms left out are smaller by the squared spread.
2. *The size is that of the law*: within 3 % where the predicted displacement is below 0.05, within
   15 % elsewhere.  Reason: the same.
3. *Clients stop to help*: at the rate 0.1 and K = 16, 1,024 clients are nearer than one client by a
   factor of 2.5 and than 64 clients by less than 5 %; with K = 64 the factor is below 1.3.  Reason:
   averaging removes the spread of the server's model, not that of the clients within a visit, and a
   visit longer than :math:`1 / (\eta \lambda)` forgets where it began.
4. *SCAFFOLD settles farther away than FedAvg*, 1.41 times at the rate 0.1 and K = 16, and with
   K = 64 no nearer than a single client.  Reason: clients are equal, so its controls correct
   nothing, and their noise is constant during a visit.
5. *Two rates remove it*: the models of the rates 0.05 and 0.1, weighted 4/3 and -1/3, are nearer
   than that of 0.05 by a factor of at least 3 (K = 16, M = 1,024).  Reason: the displacement grows
   with the square of the rate, up to the shrinkage at longer visits.
6. *It is towards flat models*: the trace of covariance times Hessian is less at the limit than at
   the optimum, in every cell.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, save_report, seed_keys, settings
from experiments.questions.averaging_problem import make_setup, moments, optimum
from experiments.questions.averaging_report import build
from experiments.questions.averaging_theory import limit
from fedjax_sim.checks import check_at_least, check_positive

CLIENTS, STEPS, LR, LRS = (1, 4, 16, 64, 256, 1024), (4, 16, 64), 0.1, (0.05, 0.1, 0.2)
AT_ONCE = 2560  # clients of all seeds that run side by side
METHODS = {"FedAvg": fs.fedavg, "SCAFFOLD": fs.scaffold}


class Cell(NamedTuple):
    """One point of the study."""

    method: str
    lr: float
    num_steps: int  # K
    num_clients: int  # M


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    steps: int = 9600  # local steps of a client in all rounds
    seeds: int = 10  # of many clients; fewer clients have more
    share: float = 1.0  # of all clients, at least one

    def __post_init__(self) -> None:
        check_at_least(8 * max(STEPS), steps=self.steps)
        check_at_least(2, seeds=self.seeds)
        check_positive(share=self.share)


def cells(share: float) -> Iterator[Cell]:
    """All points: numbers of clients at one rate, rates and SCAFFOLD at the largest number."""
    clients = sorted({max(1, round(share * number)) for number in CLIENTS})
    for steps in STEPS:
        yield from (Cell("FedAvg", LR, steps, number) for number in clients)
        yield from (Cell("FedAvg", lr, steps, clients[-1]) for lr in LRS if lr != LR)
        yield from (Cell("SCAFFOLD", lr, steps, clients[-1]) for lr in LRS)


@functools.cache
def _program(method: str, num_steps: int, num_clients: int, rounds: int) -> Any:
    """A function of setup, rate and keys ``[n]`` to the averaged models ``[n, d]``."""

    def one(setup: fs.Setup, lr: Any, key: Any) -> Any:
        algorithm = fs.average_rounds(METHODS[method](lr), start=rounds // 4)
        final, _ = fs.run(algorithm, setup, key, execution=fs.execution.vmapped())
        return final.server.params

    @jax.jit
    def program(setup: fs.Setup, lr: Any, keys: Any) -> Any:
        several = max(1, AT_ONCE // num_clients)
        return jax.lax.map(lambda key: one(setup, lr, key), keys, batch_size=several)

    return program


def displacements(cell: Cell, rounds: int, seeds: int) -> np.ndarray:
    """Averaged models less the optimum, ``[seeds, d]``."""
    setup = make_setup(cell.num_clients, cell.num_steps, rounds)
    program = _program(cell.method, cell.num_steps, cell.num_clients, rounds)
    models = program(setup, jnp.float32(cell.lr), seed_keys(seeds))
    return np.asarray(models, np.float64) - optimum()


def run(options: Options) -> pd.DataFrame:
    """A row per cell and coordinate."""
    rows, known, largest = [], moments(), round(options.share * max(CLIENTS))
    for cell in cells(options.share):
        seeds = options.seeds * max(1, largest // (4 * cell.num_clients))
        found = displacements(cell, options.steps // cell.num_steps, seeds)
        predicted = limit(known, *cell[1:], scaffold=cell.method == "SCAFFOLD")
        flat = known.bend(known.noise)  # gradient of the trace of covariance times Hessian
        common: dict[str, Any] = {**cell._asdict(), "seeds": seeds}
        along = found @ predicted / predicted.dot(predicted)
        common["size"], common["error of size"] = _mean(along)
        common["slope"], common["error of slope"] = _mean(found @ flat)
        for number, value in enumerate(predicted):
            mean, error = _mean(found[:, number])
            row = {"coordinate": number, "mean": mean, "error": error, "predicted": value}
            rows.append(common | row)
        print(common, flush=True)
    return pd.DataFrame(rows)


def _mean(values: np.ndarray) -> tuple[float, float]:
    """The mean over seeds and its standard error."""
    return values.mean(), values.std(ddof=1) / np.sqrt(len(values))


def main(options: Options) -> None:
    """Runs, and writes the report."""
    save_report(
        options.output / "questions" / "averaging", "averaging", {"": run(options)}, build,
        **settings(options),
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
