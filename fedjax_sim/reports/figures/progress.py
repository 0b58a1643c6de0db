"""One history against different measures of progress: time, updates, local steps, bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedjax_sim.reports.figures.curves import curves
from fedjax_sim.reports.figures.style import Figure, literal_texts
from fedjax_sim.reports.frames import check_columns, check_unique
from fedjax_sim.reports.labels import metric_label
from fedjax_sim.runs import Clock
from fedjax_sim.timelines import bits_moved
from fedjax_sim.timelines.accounting import uploads_of
from fedjax_sim.types import Selector, Timeline

_MEASURES = ("time", "server_updates", "local_steps", "uploads", "bits")


def with_progress(
    history: pd.DataFrame,
    timelines: Mapping[Any, Timeline],
    bits: Mapping[Any, tuple[int, int]] | None = None,
    *,
    by: str = "algorithm",
    selectors: Mapping[Any, Selector] | None = None,
) -> pd.DataFrame:
    """Returns the history with columns for the progress up to each of its rounds.

    The columns are ``time`` (simulated), ``server_updates`` (those with at least one upload that
    arrives), ``local_steps`` and ``uploads`` of all clients together, lost ones included, and
    ``bits``.  At round 0 all are 0.

    Args:
        history: tidy frame as for :func:`fedjax_sim.reports.figures.curves`, with rounds.
        timelines: per value of ``by`` the timeline of the run, or a batch of them, one for each
            seed in increasing order.
        bits: per value of ``by`` the bits of a message up and down; see
            :func:`fedjax_sim.timelines.bits_moved`. None: no such column.
        by: column with a run per value.
        selectors: selectors by value of ``by``, of runs that choose among the candidates of their
            timeline: they upload less, and their local steps are the history's own.

    Raises:
        ValueError: missing columns, a run without timeline or bits, a batch of another number of
            seeds, rounds that a timeline does not have, a run with a selector whose history has no
            local steps at one of its rounds.

    Example:
        >>> import fedjax_sim as fs
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", 0, r, "loss", 1 / r) for r in (1, 2)]
        >>> history = pd.DataFrame(rows, columns=columns)
        >>> timelines = {"fedavg": fs.timelines.full(2, 3, num_steps=5)}
        >>> with_progress(history, timelines, {"fedavg": (32, 32)})["bits"].tolist()
        [192, 384]
    """
    check_columns(history, [by, "seed", "round"], "history")
    parts = []
    for name in history[by].unique():
        part = history.loc[history[by] == name, :]
        for argument, values in (("timelines", timelines), ("bits", bits)):
            if values is not None and name not in values:
                raise ValueError(f"{argument} has {list(values)}; expected {name!r} as well")
        timeline, done = timelines[name], part["round"].to_numpy()
        seeds, which = np.unique(part["seed"].to_numpy(), return_inverse=True)
        if timeline.clients.ndim == 3 and timeline.clients.shape[0] != len(seeds):
            raise ValueError(
                f"timelines[{name!r}] is a batch of {timeline.clients.shape[0]}; expected one for "
                f"each of the {len(seeds)} seeds"
            )
        if done.min() < 0 or done.max() > timeline.num_rounds:
            raise ValueError(
                f"history has the rounds {done.min()} .. {done.max()} of {name!r}; expected "
                f"0 .. {timeline.num_rounds}, those of its timeline"
            )
        selector = None if selectors is None else selectors.get(name)
        columns = _progress(timeline, len(seeds), None if bits is None else bits[name], selector)
        progress = {key: values[which, done] for key, values in columns.items()}
        if selector is not None:
            progress["local_steps"] = _steps_done(part, name)
        parts.append(part.assign(**progress))
    return pd.concat(parts)


@literal_texts
def progress_curves(
    history: pd.DataFrame,
    metric: str,
    timelines: Mapping[Any, Timeline],
    against: Sequence[str] = ("time", "server_updates", "local_steps"),
    *,
    bits: Mapping[Any, tuple[int, int]] | None = None,
    by: str = "algorithm",
    selectors: Mapping[Any, Selector] | None = None,
    band: Literal["std", "minmax", "ci"] | None = "ci",
    yscale: Literal["linear", "log"] = "linear",
    max_columns: int = 2,
) -> Figure:
    """One metric of a history against several measures of progress, a panel each.

    Where a measure did not grow between evaluations, the last of them is drawn.

    Args:
        history, timelines, bits, by, selectors: as in :func:`with_progress`.
        metric: metric of the history.
        against: some of "time", "server_updates", "local_steps", "uploads", "bits".
        band, yscale, max_columns: as in :func:`fedjax_sim.reports.figures.curves`.

    Raises:
        ValueError: as these functions; an unknown measure or metric, or "bits" without ``bits``.

    Example:
        >>> import fedjax_sim as fs
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", 0, r, "loss", 1 / r) for r in (1, 2)]
        >>> history = pd.DataFrame(rows, columns=columns)
        >>> timelines = {"fedavg": fs.timelines.full(2, 3, num_steps=5)}
        >>> figure = progress_curves(history, "loss", timelines)
        >>> figure.axes[2].get_xlabel(), figure.axes[2].lines[0].get_xdata().tolist()
        ('local steps', [15.0, 30.0])
    """
    if not against or not set(against) <= set(_MEASURES):
        raise ValueError(f"against is {list(against)}; expected some of {list(_MEASURES)}")
    if "bits" in against and bits is None:
        raise ValueError("bits is None; expected the bits per message, to draw against 'bits'")
    chosen = history.loc[history["metric"] == metric, :]
    if not len(chosen):
        raise ValueError(
            f"metric is {metric!r}; expected one of {history['metric'].unique().tolist()}"
        )
    needed = history[by].isin(chosen[by]) & history["metric"].isin([metric, "local_steps"])
    measured = with_progress(history.loc[needed, :], timelines, bits, by=by, selectors=selectors)
    measured = measured.loc[measured["metric"] == metric, :]
    check_unique(measured, [by, "seed", "round"], "history")
    runs = [measured.loc[measured[by] == name, :] for name in measured[by].unique()]
    ordered = pd.concat([run.sort_values("round") for run in runs])
    parts = [
        ordered.assign(metric=name, progress=ordered[name].astype(float)).drop_duplicates(
            [by, "seed", "progress"], keep="last"
        )
        for name in against
    ]
    figure = curves(
        pd.concat(parts), against, x="progress", by=by, band=band, yscale=yscale,
        max_columns=max_columns,
    )  # fmt: skip
    for axes, name in zip(figure.axes, against, strict=True):
        axes.set(xlabel=metric_label(name), ylabel=metric_label(metric))
    return figure


def _steps_done(part: pd.DataFrame, name: Any) -> np.ndarray:
    """Returns the local steps that a run's history has for each of its rows."""
    counted = part.loc[part["metric"] == "local_steps", ["seed", "round", "value"]]
    counted = counted.drop_duplicates(["seed", "round"])
    steps = part[["seed", "round"]].merge(counted, how="left", on=["seed", "round"])["value"]
    steps = np.where(part["round"] == 0, 0, steps)
    if np.isnan(steps).any():
        missing = int(part["round"].to_numpy()[np.isnan(steps)][0])
        raise ValueError(
            f"history has no local_steps of {name!r} in round {missing}; expected them with a "
            "selector, since the timeline has those of all candidates"
        )
    return steps.astype(np.int64)


def _progress(
    timeline: Timeline,
    num_seeds: int,
    bits: tuple[int, int] | None,
    selector: Selector | None,
) -> dict[str, np.ndarray]:
    """Progress after 0, 1, ..., T rounds, ``[seeds, T + 1]``."""
    clock = Clock(timeline, num_seeds)
    reports = uploads_of(clock.mask.sum(-1, dtype=np.int64), selector)
    updates = np.broadcast_to(np.asarray(timeline.arrived).any(-1), reports.shape)
    progress = {
        "time": clock.time,
        "server_updates": np.cumsum(updates, axis=-1),
        "local_steps": clock.local_steps,
        "uploads": np.cumsum(reports, axis=-1),
    }
    if bits is not None:
        moved = bits_moved(timeline, *bits, selector=selector)
        progress["bits"] = np.broadcast_to(moved, reports.shape)
    return {name: np.pad(values, ((0, 0), (1, 0))) for name, values in progress.items()}
