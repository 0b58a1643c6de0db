"""Tables of the results of ``simulate``, ``compare`` and ``sweep``, below what they print."""

from collections.abc import Collection, Sequence
from functools import singledispatch
from typing import Any, Literal

import pandas as pd

from fedjax_sim.engine import headline
from fedjax_sim.reports.frames import grid_values, row_ids
from fedjax_sim.reports.intervals import interval_note
from fedjax_sim.reports.labels import PARTIAL, better, marked, metric_label
from fedjax_sim.reports.results import results
from fedjax_sim.reports.selection import complete, scores
from fedjax_sim.reports.tables import best_texts, render, results_table
from fedjax_sim.runs import Comparison, Simulation, Sweep

MOST_METRICS = 4
MOST_METHODS = 10  # the lines of a summary, a table and its notes fit a screen

_VALUES = ("seed", "diverged_at", "round", "metric", "value")  # columns besides the configuration

Form = Literal["text", "html"]


@singledispatch
def table(result: Any, form: Form) -> str:
    """Returns the table of a simulation, a comparison or a sweep as text or as HTML."""
    raise TypeError(
        f"result is a {type(result).__name__}; expected Simulation, Comparison or Sweep"
    )


@table.register
def _(result: Simulation, form: Form) -> str:
    return runs_table(result.to_frame(), form)


@table.register
def _(result: Comparison, form: Form) -> str:
    return runs_table(result.to_frame(), form, result.partial_models)


@table.register
def _(result: Sweep, form: Form) -> str:
    whole = result.whole()
    return sweep_table(whole.to_frame(), form, whole.settings, whole.partial_models)


def runs_table(history: pd.DataFrame, form: Form, partial: Collection[str] = ()) -> str:
    """Returns the final metrics of a simulation or a comparison: a row per algorithm.

    Algorithms whose server's model is no complete one (``partial``) are marked and not compared.
    """
    metrics = _common_metrics(history)
    if not metrics:
        return render(pd.DataFrame(), form, note="No evaluations.")
    history, explained = marked(history, partial)
    known = history["algorithm"].unique() if explained else ()
    frame = results(history, metrics, partial=[x for x in known if x.endswith(PARTIAL)])
    note = ""
    if "algorithm" in frame and len(names := frame["algorithm"].unique().tolist()) > MOST_METHODS:
        frame, attrs = frame.loc[frame["algorithm"].isin(names[:MOST_METHODS])], frame.attrs
        frame.attrs |= attrs
        note = f"The first {MOST_METHODS} of {len(names)} methods; to_frame() has all."
    return results_table(frame, form, note=" ".join(filter(None, (note, explained))))


def sweep_table(
    history: pd.DataFrame, form: Form, settings: Sequence[str] = (), partial: Collection[str] = ()
) -> str:
    """Returns the best configurations of a sweep at the last evaluation.

    With several algorithms, or values of ``settings``, that is a row for each of them, by the first
    metric; otherwise a row per metric.  Algorithms whose server's model is no complete one
    (``partial``) are marked.
    """
    history, explained = marked(history, partial)
    metrics = _common_metrics(history)
    if not metrics:
        return render(pd.DataFrame(), form, note="No finished runs.")
    # Bests are of one algorithm and one setting: a larger alpha is no better configuration.
    cells = [name for name in ("algorithm", *settings) if name in history]
    cells = [name for name in cells if len(grid_values(history, name)) > 1]
    parts, counts = [], []
    for metric in metrics[: 1 if cells else None]:
        mode = better(metric)
        every = complete(scores(history, metric, mode=mode), cells)
        rows, number = best_texts(every, cells, metric, mode)
        parts.append(rows.assign(**{"best by": metric_label(metric)}))
        counts += number
    frame = pd.concat(parts).fillna("")
    note = " ".join([f"{interval_note(counts)} *: at the edge of the grid.", explained]).strip()
    if len(frame) > MOST_METHODS:
        note = f"The first {MOST_METHODS} of {len(frame)} rows; to_frame() has all. {note}"
    columns = [name for name in frame if name != "mean"]
    frame = frame[[*columns, "mean"]].head(MOST_METHODS)
    return render(frame.set_index("best by"), form, note=note)


def _common_metrics(history: pd.DataFrame) -> list[str]:
    """Returns the first metrics, by importance, that all configurations have."""
    config = row_ids(history, [name for name in history.columns if name not in _VALUES])
    number = history.assign(config=config).groupby("metric", sort=False)["config"].nunique()
    counts = {str(name): int(number.loc[name]) for name in number.index}
    common = [name for name, count in counts.items() if count == len(set(config))]
    return headline(common)[:MOST_METRICS]
