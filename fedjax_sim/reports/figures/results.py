"""Figures of the results of ``simulate``, ``compare`` and ``sweep``, and of their folders."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any, Literal

import pandas as pd

from fedjax_sim.engine import headline
from fedjax_sim.reports.figures.curves import curves
from fedjax_sim.reports.figures.style import Figure
from fedjax_sim.reports.figures.sweeps import heat_map, sensitivity
from fedjax_sim.reports.folders import Bits, default_metrics, read_folders
from fedjax_sim.reports.frames import configuration_columns, grid_values, score_values
from fedjax_sim.reports.labels import PROGRESS, better, bounds_of, marked, metric_label
from fedjax_sim.reports.selection import Mode, scores
from fedjax_sim.runs import Comparison, Simulation, Sweep


@singledispatch
def plot(result: Any, *arguments: Any, **options: Any) -> Figure:
    """Figure of a result, the same as ``result.plot(...)``, or of the folders of results.

    Args:
        result: of ``fs.simulate`` or ``fs.compare``: learning curves, means over seeds with bands,
            a panel per metric and a line per algorithm.  Of ``fs.sweep``: the sensitivity to one
            hyper-parameter, or a heat map over two; learning curves if none varies.  Of a fork, a
            valuation or advice: as their method ``plot``.  A folder or a list of them: learning
            curves of what ran there.
        arguments: names of metrics, of a sweep or a fork one; default: all, or the most important
            one of a sweep or a fork.
        options: of :func:`~fedjax_sim.reports.figures.result_curves`,
            :func:`~fedjax_sim.reports.figures.sweep_figure` or
            :func:`~fedjax_sim.reports.figures.plot_folder`.

    Raises:
        ValueError: another result; or as these functions.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax
        >>> data = fs.FederatedData({"y": jax.numpy.array([1.0, 3.0])}, jax.numpy.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["y"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> timeline = fs.timelines.full(2, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, jax.numpy.array(0.0), lambda w: {"f": w * w})
        >>> result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0))
        >>> [axes.get_ylabel() for axes in plot(result, "f").axes]
        ['f']
    """
    if not (type(result).__module__.startswith("fedjax_sim.") and hasattr(result, "plot")):
        raise ValueError(
            f"result is a {type(result).__name__}; expected a result of fs.simulate, fs.compare, "
            "fs.sweep, fs.fork, fs.advise, fs.load or a valuation, or the folder of one"
        )
    return result.plot(*arguments, **options)


@plot.register
def _(result: str | pathlib.Path | list, *arguments: Any, **options: Any) -> Figure:
    return plot_folder(result, *arguments, **options)


@plot.register
def _(result: Simulation, *arguments: Any, **options: Any) -> Figure:
    return result_curves(result.to_frame(), *arguments, **options)


@plot.register
def _(result: Comparison, *arguments: Any, **options: Any) -> Figure:
    history, note = marked(result.to_frame(), result.partial_models)
    caption = "\n".join(filter(None, (options.pop("caption", ""), note)))
    return result_curves(history, *arguments, by="algorithm", caption=caption, **options)


@plot.register
def _(result: Sweep, *arguments: Any, **options: Any) -> Figure:
    result = result.whole()
    history = result.to_frame()
    if not options and not _varied(history, [name for run in result.runs for name in run[0]]):
        by = "algorithm" if "algorithm" in history else None
        return result_curves(history, *arguments, by=by)
    return sweep_figure(history, *arguments, **options)


def _varied(history: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Returns the hyper-parameters that have several values."""
    known = [name for name in dict.fromkeys(names) if name != "algorithm"]
    return [name for name in known if len(grid_values(history, name)) > 1]


def result_curves(
    history: pd.DataFrame,
    metrics: str | Sequence[str] | None = None,
    *,
    x: Literal["round", "time", "local_steps", "bits"] = "round",
    by: str | None = None,
    **options: Any,
) -> Figure:
    """Learning curves of a simulation or a comparison: means over seeds, a panel per metric.

    Args:
        history: tidy frame with columns ``seed``, ``round``, ``metric``, ``value`` and ``by``.
        metrics: metrics, in the order of the panels; default: all, except progress
            and numbers of examples.
        x: horizontal axis: rounds, simulated time, local steps of all clients, or bits that server
            and clients have sent (histories of :func:`fedjax_sim.reports.read_folder` have them).
        by: column with a line per value; None: one line.
        options: ``band``, ``xscale``, ``yscale``, ``max_columns``, ``size`` and ``caption`` of
            :func:`fedjax_sim.reports.figures.curves`.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.figures.curves`.

    Example:
        >>> rows = [(0, r, name, 2.0 * r) for r in (1, 2) for name in ("time", "loss")]
        >>> history = pd.DataFrame(rows, columns=["seed", "round", "metric", "value"])
        >>> figure = result_curves(history, x="time")
        >>> figure.axes[0].get_xlabel(), figure.axes[0].lines[0].get_xdata().tolist()
        ('simulated time', [2.0, 4.0])
    """
    if x not in PROGRESS:
        raise ValueError(f"x is {x!r}; expected one of {', '.join(map(repr, PROGRESS))}")
    if metrics is None:
        metrics = headline(history["metric"].unique())
    if x != "round" and x not in set(history["metric"]):
        known = ["round", *(name for name in PROGRESS if name in set(history["metric"]))]
        raise ValueError(
            f"x is {x!r}, which the history does not have; expected one of "
            f"{', '.join(map(repr, known))}"
            + (" (fs.plot of the folder of a run has bits)" if x == "bits" else "")
        )
    history = against(history, x, by)
    return curves(history, metrics, x=x, by=by, **options)


def against(history: pd.DataFrame, x: str, by: str | None) -> pd.DataFrame:
    """Returns the history with the measure of progress ``x``, one of its metrics, as a column."""
    if x == "round":
        return history
    run = [*([] if by is None else [by]), "seed"]
    measured = history.loc[history["metric"] == x, [*run, "round", "value"]]
    history = history.merge(measured.rename(columns={"value": x}), on=[*run, "round"])
    return last_points(history, x, run)


def last_points(history: pd.DataFrame, x: str, run: Sequence[str]) -> pd.DataFrame:
    """Returns the last of several evaluations of a run at one ``x``, which has the current model.

    Updates at one time, and those without reports at the end of shorter timelines, repeat a point.
    """
    by_round = history.sort_values("round", kind="stable")
    last = by_round.drop_duplicates([*run, x, "metric"], keep="last").sort_index()
    return pd.DataFrame(last)


def sweep_figure(
    history: pd.DataFrame,
    metric: str | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    mode: Mode | None = None,
    last: int = 1,
) -> Figure:
    """Sensitivity of a metric to one hyper-parameter of a sweep, or its heat map over two.

    Without ``x`` and ``y``, these are the first two hyper-parameters that have several values.  All
    others are tuned: a point is the best mean over seeds.

    Args:
        history: frame of a sweep, see :mod:`fedjax_sim.reports.selection`.
        metric: metric of the runs; default: the most important one, such as test accuracy.
        x: hyper-parameter of the horizontal axis.
        y: hyper-parameter of the vertical axis; None: the vertical axis is the metric.
        mode: ``"min"`` or ``"max"``, whether smaller or larger values are better; default: as
            the metric's name says, "min" if it does not.
        last: number of evaluations at the end of a run over which the metric is averaged.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.selection.scores`; no hyper-parameter has two
            values; ``y`` without ``x``.

    Example:
        >>> columns = ["lr", "seed", "round", "metric", "value", "diverged_at"]
        >>> rows = [(lr, 0, 1, "loss", 1 / lr, 0) for lr in (0.1, 0.2, 0.4)]
        >>> axes = sweep_figure(pd.DataFrame(rows, columns=columns), "loss").axes[0]
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('learning rate', 'loss')
    """
    if metric is None:
        metric = next(iter(headline(history["metric"].unique())), "")
    mode = mode or better(metric)
    table = scores(history, metric, last=last, mode=mode)
    if x is None:
        if y is not None:
            raise ValueError(f"y is {y!r} and x is None; expected both, or neither")
        names = [name for name in configuration_columns(table) if name != "algorithm"]
        if not (varied := _varied(table, names)):
            raise ValueError(f"history has one value of {names}; expected a name with several")
        x, y = varied[0], varied[1] if len(varied) > 1 else None
    label = metric_label(metric)
    if y is not None:
        return heat_map(table, x, y, mode=mode, label=label)
    by = "algorithm" if "algorithm" in table else None
    bounds = bounds_of(metric, score_values(table))
    return sensitivity(table, x, by=by, mode=mode, label=label, bounds=bounds)


def plot_folder(
    folders: str | pathlib.Path | Sequence[str | pathlib.Path],
    metrics: str | Sequence[str] | None = None,
    *,
    x: Literal["round", "time", "local_steps", "bits"] = "round",
    configurations: Literal["best", "all"] = "best",
    bits: Bits | None = None,
    caption: str | None = None,
    **options: Any,
) -> Figure:
    """Learning curves of a folder of results; of several folders over each other.

    Folders of unfinished runs are drawn as far as they are.

    Args:
        folders: one or several folders that ``simulate``, ``compare``, ``sweep`` or ``fedjax-sim``
            wrote.
        metrics: metrics, in the order of the panels; default: test accuracy and training loss, or
            the first three.
        x: horizontal axis, as in :func:`fedjax_sim.reports.figures.result_curves`.  Bits are those
            of the arrays that server and clients send, both ways.
        configurations: of a sweep, the best configuration of every algorithm or all of them.
        bits: per algorithm the bits of an upload and of a message to a client, which replace the
            recorded ones; for uploads through a codec.
        caption: text under the figure; default: data set, clients, cohort and local work.
        options: ``band``, ``xscale``, ``yscale``, ``max_columns`` and ``size`` of
            :func:`fedjax_sim.reports.figures.curves`.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.read_folders` and
            :func:`fedjax_sim.reports.figures.curves`; a folder that does not record the bits.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
        >>> task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), np.zeros(2, np.float32),
        ...                  lambda w: {"error": abs(w - 1)}, eval_every=1)
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fs.compare({"fedavg": fs.fedavg(0.1)}, setup, keys, storage=folder)
        ...     figure = plot_folder(folder, x="bits")
        >>> figure.axes[0].lines[0].get_label(), figure.axes[0].get_xlabel()
        ('FedAvg', 'bits sent')
        >>> figure.get_supxlabel().partition("\\n")[0]
        '2 clients, 2 per round.'
    """
    paths = [folders] if isinstance(folders, str | pathlib.Path) else list(folders)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    content = read_folders(
        paths, configurations=configurations, metric=metrics[0] if metrics else None, bits=bits
    )
    history = content.history
    if x == "bits":
        measured = history.loc[history["metric"] == "bits", "algorithm"]
        missing = [name for name in history["algorithm"].unique() if name not in set(measured)]
        if missing:
            raise ValueError(
                f"x is 'bits', which the folder does not record for {', '.join(missing)} (uploads "
                "of unknown size); expected 'round', 'time' or 'local_steps', or the argument bits"
            )
    return result_curves(
        history,
        metrics or default_metrics(history),
        x=x,
        by="algorithm",
        caption=content.setting if caption is None else caption,
        **options,
    )
