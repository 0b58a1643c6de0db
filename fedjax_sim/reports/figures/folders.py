"""Figures of the folders that runs, comparisons and sweeps write."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any, Literal

from matplotlib.figure import Figure

from fedjax_sim.reports.figures.results import plot, result_curves
from fedjax_sim.reports.folders import Bits, default_metrics
from fedjax_sim.reports.methods import read_folders


@plot.register
def _(result: str | pathlib.Path | list, *arguments: Any, **options: Any) -> Figure:
    return plot_folder(result, *arguments, **options)


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
