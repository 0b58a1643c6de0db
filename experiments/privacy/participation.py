"""Epsilon of six participation rules under three laws of noise, beside other libraries.

``python -m experiments.privacy.participation`` prints the table of
docs/howto/privacy_mechanisms.md.  A test computes our numbers again; those of other libraries are
written by ``experiments/privacy/participation_theirs.py`` in an environment that has them.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import FedAlgorithm, Setup, Task, Timeline, fedavg, privacy, timelines

CLIENTS, COHORT, ROUNDS, PASS, BANDS, Z, DELTA = 1000, 20, 100, 50, 8, 1.0, 1e-4
KEY = jax.random.key(0)
THEIRS = pathlib.Path(__file__).parents[1] / "results/privacy/participation.json"

RULES: dict[str, Callable[[], Timeline]] = {
    "bernoulli": lambda: timelines.bernoulli(KEY, ROUNDS, CLIENTS, COHORT / CLIENTS, 1),
    "uniform": lambda: timelines.uniform(KEY, ROUNDS, CLIENTS, COHORT, 1),
    "cyclic": lambda: timelines.cyclic(ROUNDS, CLIENTS, COHORT, 1),
    "balls_in_bins": lambda: timelines.balls_in_bins(KEY, ROUNDS, CLIENTS, PASS, 1),
    # p M / (1 + (b - 1) p) = 20
    "b_min_sep": lambda: timelines.b_min_sep(
        KEY, ROUNDS, CLIENTS, COHORT / (CLIENTS - (BANDS - 1) * COHORT), 1, separation=BANDS
    ),
    "grouped_bernoulli": lambda: timelines.grouped_bernoulli(
        KEY, ROUNDS, CLIENTS, BANDS * COHORT / CLIENTS, 1, num_groups=BANDS
    ),
}
AMPLIFIED = ("balls_in_bins", "b_min_sep", "grouped_bernoulli")


class Cell(NamedTuple):
    """Our epsilon of a rule under a law of noise."""

    rule: str
    law: str  # independent, tree, banded
    epsilon: float | None  # None: the law refuses the timeline


TABLE = [
    Cell("bernoulli", "independent", 1.099),
    Cell("bernoulli", "tree", None),
    Cell("bernoulli", "banded", None),
    Cell("uniform", "independent", 8.176),
    Cell("uniform", "tree", None),
    Cell("uniform", "banded", None),
    Cell("cyclic", "independent", 5.773),
    Cell("cyclic", "tree", 19.612),
    Cell("cyclic", "banded", 3.804),
    Cell("balls_in_bins", "independent", 2.009),
    Cell("balls_in_bins", "tree", 19.612),
    Cell("balls_in_bins", "banded", 3.33),
    Cell("b_min_sep", "independent", 1.272),
    Cell("b_min_sep", "tree", None),
    Cell("b_min_sep", "banded", 3.189),
    Cell("grouped_bernoulli", "independent", 3.72),
    Cell("grouped_bernoulli", "tree", None),
    Cell("grouped_bernoulli", "banded", 3.72),
]


class Theirs(NamedTuple):
    """The epsilon that another library gives."""

    epsilon: float
    of: str  # library, version, method


def theirs() -> dict[tuple[str, str], Theirs]:
    """Returns the numbers of other libraries by rule and law, as their script has written them."""
    cells = json.loads(THEIRS.read_text())["cells"]
    return {tuple(name.split()): Theirs(**cell) for name, cell in cells.items()}


def law_of(rule: str, law: str) -> privacy.NoiseLaw:
    """Returns the law of noise for a rule."""
    if law == "independent":
        return privacy.independent()
    if law == "tree":
        return privacy.tree_aggregation(PASS)
    coefficients = privacy.banded_coefficients(ROUNDS, BANDS)
    if rule in AMPLIFIED:
        return privacy.amplified_banded(coefficients, ROUNDS)
    return privacy.banded(coefficients, ROUNDS, separation=PASS)


def guarantee(rule: str, law: str) -> privacy.Guarantee:
    """Returns our guarantee of a run."""
    timeline, ones = RULES[rule](), np.ones(CLIENTS, np.int8)
    setup = Setup(Task(_no_oracle, ones, ones), timeline, np.zeros(1))
    assert timeline.sampling is not None
    private: FedAlgorithm = privacy.privatize(
        fedavg(1.0),
        1.0,
        Z,
        expected_uploads=timeline.sampling.expected_uploads,
        noise=law_of(rule, law),
    )
    return privacy.epsilon(private, setup, DELTA)


def _no_oracle(*visit: Any) -> Any:
    raise AssertionError(f"an accountant asked for the data of {visit}")


def table() -> str:
    """Returns the table of the page."""
    lines = ["| rule | noise | epsilon | others | of |", "|---|---|---|---|---|"]
    found = theirs()
    for cell in TABLE:
        own, other = "refused", " | "
        if cell.epsilon is not None:
            other = "{0.epsilon:.3f} | {0.of}".format(found[cell.rule, cell.law])
            own = f"{cell.epsilon:.3f}"
        lines.append(f"| `{cell.rule}` | {cell.law} | {own} | {other} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
