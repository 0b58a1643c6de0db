"""Further parts of the CIFAR-10 experiment: rates, clients per contact, messages of few bits."""

import dataclasses
import pathlib
from collections.abc import Sequence

import pandas as pd

from experiments.favano import methods
from experiments.favano.image_tables import best_two, compared, row, save
from experiments.favano.images import SPLITS, ImageOptions, Runs, shrunk
from experiments.favano.outcomes import curve
from experiments.harness import Claim, at_edge
from fedjax_sim.compression import lattice, uniform

SELECTED = (10, 20, 50)  # of 100 clients, contacted at a time
BITS, CELL = 14, 1e-4  # of messages: the lattice of QuAFL's program


def rates(options: ImageOptions, lrs: Sequence[float], folder: pathlib.Path) -> None:
    """The four methods, each at the best of some rates."""
    tables, histories, tunings = [], [], []
    for lr in lrs:
        runs = Runs(dataclasses.replace(options, lr=lr))
        table, history, tuning = compared(runs, list(SPLITS))
        tables.append(table.assign(lr=lr))
        histories.append(history.assign(lr=lr))
        tunings.append(tuning.assign(lr=lr))
    table = pd.concat(tables, ignore_index=True)
    # A run that is no longer finite has the accuracy of chance.
    best = table.loc[table.groupby(["setting", "method"], sort=False)["accuracy"].idxmax()]
    best = best.assign(**{"lr in its grid": [at_edge(lr, lrs) for lr in best["lr"]]})
    parts = [
        f"Rates {', '.join(f'{lr:g}' for lr in lrs)} instead of the one above; accuracy on test "
        "images, percent.",
        table.filter(["setting", "method", "lr", "note", "accuracy", "+-", "variance"]),
        "## At the best rate",
        best.filter(["setting", "method", "lr", "lr in its grid", "accuracy", "+-"]),
    ]
    title = "CIFAR-10 against the clock, at several rates"
    history, tuning = pd.concat(histories, ignore_index=True), pd.concat(tunings)
    save(Runs(options), folder, "rates", title, history, parts, tuning, best_two(best))


def selected(runs: Runs, folder: pathlib.Path) -> None:
    """Figure 7: FAVANO with more and fewer clients per contact."""
    rows, histories = [], []
    for s in dict.fromkeys(shrunk(count, runs.scale) for count in SELECTED):
        frame = runs(methods.favano(), "non-IID", cohort=s).assign(algorithm=f"s = {s}")
        histories.append(frame)
        rows.append(row(frame, s=s))
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    values = {f"s = {r['s']}": r["accuracy"] for r in rows}
    rising = table["accuracy"].is_monotonic_increasing
    history = pd.concat(histories, ignore_index=True)
    claims = [Claim("a larger s helps", values, bool(rising), "non-IID")]
    figures = {"selected-accuracy-time": curve(history, "accuracy", "time")}
    title = "FAVANO's clients per contact (Figure 7)"
    save(runs, folder, "selected", title, history, ["Non-IID.", table], None, claims, figures)


def quantised(runs: Runs, folder: pathlib.Path) -> None:
    """FAVANO[QNN], and messages of few bits."""
    up, down = lattice(BITS, CELL), uniform(2**BITS)
    in_bits = methods.coded(methods.favano(), f"messages of {BITS} bits", up, down)
    cases = {
        "FAVANO": (methods.favano(), False),
        "FAVANO[QNN]": (methods.favano(), True),
        f"FAVANO, {BITS}-bit messages": (in_bits, False),
        f"FAVANO[QNN], {BITS}-bit messages": (in_bits, True),
        f"QuAFL, {BITS}-bit lattice": (methods.quafl_coded(BITS, CELL), False),
    }
    rows, histories = [], []
    for name, (method, low_bit) in cases.items():
        frame = runs(method, "non-IID", low_bit=low_bit).assign(algorithm=name)
        histories.append(frame)
        rows.append(row(frame, method=name))
        print(rows[-1], flush=True)
    values = {r["method"]: r["accuracy"] for r in rows}
    gap = values["FAVANO"] - values["FAVANO[QNN]"]
    limit = (values["FAVANO"] - 100 / runs.num_classes) / 10
    explained = (
        "Non-IID. QNN: weights and activations of 3 bits, neural gradients of 4, in all layers but "
        "the last; evaluated in 3 bits as well. Messages without a codec have 32 bits per entry. "
        f"Models go up on a lattice of {BITS} bits and cells of {CELL:g}, near the model that the "
        f"client started from, and come down rounded at random to {2**BITS} values per tensor."
    )
    claim = Claim(
        "QNN close to full precision and below it",
        {**values, "difference": gap},
        0 < gap <= limit,
        "non-IID",
        "a tenth of the accuracy of full precision above chance",
    )
    history = pd.concat(histories, ignore_index=True)
    figures = {f"quantized-accuracy-{x}": curve(history, "accuracy", x) for x in ("time", "bits")}
    title, parts = "FAVANO with networks and messages of few bits", [explained, pd.DataFrame(rows)]
    save(runs, folder, "quantized", title, history, parts, None, [claim], figures)
