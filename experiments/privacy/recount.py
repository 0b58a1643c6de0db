"""Recounts the epsilons of the reports on central privacy, without training.

    python -m experiments.privacy.recount

Epsilons follow from the options in a report's JSON file and the size of its model, so a tighter
accountant changes the tables and texts of finished runs.
"""

import pathlib
from typing import Any

import jax
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness.redrawing import read_facts, read_tables, redraw_report, write_csv
from experiments.privacy.central import COHORT, CentralOptions, forecasts, noise_table
from experiments.privacy.central_report import build

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "privacy"


def recounted(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """Returns the table of the noise in a report's folder, with epsilons of today's accountants."""
    kept = read_facts(folder, name)["options"]
    names = ("rounds", "epsilons", "users", "noise_cohort", "population")
    options = CentralOptions(**{key: kept[key] for key in names})
    size = int(read_tables(folder, name)["noise"]["parameters"].iloc[0])
    users = np.ones(options.users, np.int32)
    timeline = fs.timelines.uniform(jax.random.key(0), options.rounds, options.users, COHORT, 1)
    setup = fs.Setup(fs.Task(_no_data, users, users), timeline, np.zeros(size, np.float32))
    return noise_table(setup, options, forecasts(options), size)


def recount(folder: pathlib.Path) -> None:
    """Recounts and redraws every report below ``folder``."""
    for facts in sorted(folder.glob("*/*.json")):
        write_csv(facts.parent / f"{facts.stem}-noise.csv", recounted(facts.parent, facts.stem))
        redraw_report(facts.parent, facts.stem, build)


def _no_data(*visit: Any) -> Any:
    raise AssertionError(f"an accountant asked for the data of {visit}")


if __name__ == "__main__":
    recount(RESULTS)
