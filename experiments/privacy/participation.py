"""Epsilon of six participation rules under three laws of noise, beside other libraries.

``python -m experiments.privacy.participation`` prints the table of
docs/howto/privacy_mechanisms.md.  A test computes our numbers again; those of other libraries are
recorded with their versions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import FedAlgorithm, Setup, Task, Timeline, fedavg, privacy, timelines

CLIENTS, COHORT, ROUNDS, PASS, BANDS, Z, DELTA = 1000, 20, 100, 50, 8, 1.0, 1e-4
KEY = jax.random.key(0)

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
    """Our epsilon, and the best value that another library gives."""

    rule: str
    law: str  # independent, tree, banded
    epsilon: float | None  # None: the law refuses the timeline
    best: float | None = None  # recorded; found by the library's own functions
    library: str = ""


TABLE = [
    Cell("bernoulli", "independent", 1.099, 1.099, "dp-accounting 0.6.0, PLD"),
    Cell("bernoulli", "tree", None),
    Cell("bernoulli", "banded", None),
    Cell("uniform", "independent", 8.176, 12.099, "dp-accounting 0.6.0, RDP"),
    Cell("uniform", "tree", None),
    Cell("uniform", "banded", None),
    Cell("cyclic", "independent", 5.773, 5.773, "dp-accounting 0.6.0, PLD"),
    Cell("cyclic", "tree", 19.612, 19.612, "dp-accounting 0.6.0, RDP"),
    Cell("cyclic", "banded", 3.804, 3.804, "dp-accounting 0.6.0, PLD"),
    Cell("balls_in_bins", "independent", 2.009, 2.009, "PLD_accounting 2.0"),
    Cell("balls_in_bins", "tree", 19.612, 19.612, "dp-accounting 0.6.0, RDP"),
    Cell(
        "balls_in_bins", "banded", 3.33, 2.879, "jax-privacy 2.0.0, estimate without an error bound"
    ),
    Cell(
        "b_min_sep",
        "independent",
        1.272,
        1.052,
        "jax-privacy 2.0.0, estimate without an error bound",
    ),
    Cell("b_min_sep", "tree", None),
    Cell("b_min_sep", "banded", 3.189, 2.75, "jax-privacy 2.0.0, estimate without an error bound"),
    Cell("grouped_bernoulli", "independent", 3.72, 3.72, "dp-accounting 0.6.0, PLD"),
    Cell("grouped_bernoulli", "tree", None),
    Cell("grouped_bernoulli", "banded", 3.72, 3.72, "dp-accounting 0.6.0, PLD"),
]


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
    """Returns our guarantee of a run.

    Raises:
        ValueError: the law does not fit the timeline.
    """
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
    for cell in TABLE:
        own = "refused" if cell.epsilon is None else f"{cell.epsilon:.3f}"
        best = "" if cell.best is None else f"{cell.best:.3f}"
        lines.append(f"| `{cell.rule}` | {cell.law} | {own} | {best} | {cell.library} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
