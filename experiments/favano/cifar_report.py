"""Reports on CIFAR-10, built from their CSV and JSON files."""

import itertools
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.favano.cifar_parts import BITS, CELL
from experiments.favano.image_tables import (
    Facts,
    Tables,
    best_two,
    larger,
    methods_report,
    row,
    variances,
)
from experiments.favano.outcomes import by_seed, final, panels
from experiments.harness import Claim, Report, interval_text, paired

CHANCE = 10.0  # percent


def methods_claims(history: pd.DataFrame) -> list[Claim]:
    """The paper's statements about Figures 3a and 6."""
    apart = larger("FedBuff's variance is larger", variances(history), "variance")
    return [*best_two(by_seed(history)), *apart]


methods = methods_report(
    "CIFAR-10 against the clock (Figures 3a and 6 of FAVANO)",
    "Accuracy on test images, percent. `variance`: the sum over the clients of the squared "
    "distance of their models from the server's, mean over the last fifth of the time.",
    methods_claims,
)


def rows(history: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row per algorithm, whose name is in the first column."""
    groups = history.groupby("algorithm", sort=False)
    return pd.DataFrame([row(frame, **{name: algorithm}) for algorithm, frame in groups])


def selected(tables: Tables, facts: Facts) -> tuple[Report, dict[str, Figure]]:
    """Figure 7: clients per contact."""
    table = rows(tables[""], "s")
    values = dict(zip(table["s"], table["accuracy"].tolist(), strict=True))
    table["s"] = table["s"].str.removeprefix("s = ")
    report = Report("FAVANO's clients per contact (Figure 7)", facts["scale"], "Non-IID.", table)
    scores = by_seed(tables[""]).pivot(index="seed", columns="algorithm", values="accuracy")
    steps = [scores[b] - scores[a] for a, b in itertools.pairwise(values)]
    report.claims([paired("a larger s helps", values, steps, "non-IID")])
    return report, {"selected": panels(tables[""], [("accuracy", "time")])}


def quantized(tables: Tables, facts: Facts) -> tuple[Report, dict[str, Figure]]:
    """Figure 7: networks and messages of few bits."""
    table = rows(tables[""], "method")
    report = Report(
        "FAVANO with networks and messages of few bits",
        facts["scale"],
        "Non-IID. QNN: weights and activations of 3 bits, neural gradients of 4, in all layers but "
        "the last; evaluated in 3 bits as well. Messages without a codec have 32 bits per entry. "
        f"Models go up on a lattice of {BITS} bits and cells of {CELL:g}, near the model that the "
        f"client started from, and come down rounded at random to {2**BITS} values per tensor.",
        table,
    )
    report.claims(quantized_claims(tables[""]))
    axes = [("accuracy", "time"), ("accuracy", "bits")]
    return report, {"quantized": panels(tables[""], axes)}


def quantized_claims(history: pd.DataFrame) -> list[Claim]:
    """The paper's statement about Figure 7, by the differences of the same seeds."""
    full, low = (
        final(history.loc[history["algorithm"] == name, :]).sort_values("seed")["accuracy"]
        for name in ("FAVANO", "FAVANO[QNN]")
    )
    points = 100 * (np.asarray(full) - np.asarray(low))
    interval = fs.analysis.mean_interval(points)
    limit = (100 * np.asarray(full).mean() - CHANCE) / 10
    found = f"FAVANO - FAVANO[QNN]: {points.mean():.2f} {interval_text(points)}".strip()
    below = float(interval.low) > 0
    near = max(abs(float(interval.low)), abs(float(interval.high))) <= limit
    close = f"interval within ± {limit:.2f} points, a tenth of the accuracy above chance"
    text, inside = "QNN is close to full precision", [limit - points, limit + points]
    return [
        Claim(text, found, near, "non-IID", close, inside),
        Claim("QNN is below full precision", found, below, "non-IID", "interval > 0", [points]),
    ]


# By the name of the report's files.
REPORTS: dict[str, Callable] = {"methods": methods, "selected": selected, "quantized": quantized}
