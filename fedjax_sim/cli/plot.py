"""``fedjax-sim plot``: figures of the folders of finished and unfinished runs."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal

from matplotlib.figure import Figure

from fedjax_sim.reports import read_client_values, read_config, read_folders, setting_text
from fedjax_sim.reports.figures import (
    client_bands,
    client_distribution,
    dashboard,
    figure_format,
    plot_folder,
    save,
)

DESCRIPTION = """\
Draws learning curves of FOLDER, which fedjax-sim run or sweep, or simulate, compare or sweep in
Python wrote; curves of several folders are drawn over each other with the folders' names. A run
that diverged ends at its last finite point with a cross."""

_AXES: dict[str, Literal["round", "time", "local_steps", "bits"]] = {
    "rounds": "round",
    "time": "time",
    "steps": "local_steps",
    "bits": "bits",
}


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Options of ``fedjax-sim plot``."""

    x: Literal["rounds", "time", "steps", "bits"] = "rounds"
    """Horizontal axis: rounds of communication, simulated time, local steps of all clients, or bits
    that server and clients send (uploads as compressed, messages as arrays)."""
    y: tuple[str, ...] = ()
    """Metrics, one panel each; default: test accuracy, first that of personal models where they
    were evaluated, and training loss, else the first three."""
    log: tuple[Literal["x", "y"], ...] = ()
    """Logarithmic axes; a logarithmic x has no place for round 0."""
    output: pathlib.Path = pathlib.Path("curves.pdf")
    """File of the figure: .pdf, .svg or .png. In PDF and SVG, text stays text."""
    size: tuple[float, float] | None = None
    """Width and height in inches, e.g. 3.5 2.6 for one of two columns; default: by the panels."""
    dpi: float = 200
    """Dots per inch of a PNG file."""
    band: Literal["ci", "std", "minmax", "none"] = "ci"
    """Band around the mean over seeds: the 95 % interval of the mean, one standard deviation, or
    from the smallest to the largest seed."""
    seeds_as_lines: bool = False
    """Draw the single seeds as thin lines; replaces --band."""
    clients: Literal["none", "distribution", "rounds"] = "none"
    """Values of single clients, of runs with --per-client or --personal: the distribution of the
    first metric of --y (default: accuracy) over clients after the last round, or its quantiles
    against rounds."""
    dashboard: bool = False
    """Draw all distributions over clients beside test accuracy and training loss, one panel each;
    --y selects panels."""
    split: str | None = None
    """With --clients: the clients' examples, e.g. valid, or personal/test for the models that
    clients use themselves (--personal); default: the first in the file."""
    configurations: Literal["best", "all"] = "best"
    """Configurations of a sweep, of all grids that ran in FOLDER: the best of every algorithm,
    among those with the most seeds, by the first metric of --y (default: as the sweep chose); or
    all."""
    caption: str | None = None
    """Text under the figure; default: data set, clients, cohort and local work."""


def plot(folders: Sequence[pathlib.Path], options: PlotOptions) -> pathlib.Path:
    """Draws the figure and returns its path."""
    figure_format(options.output)
    if options.size is not None and not min(options.size) > 0:
        raise ValueError(f"size is {options.size}; expected two positive numbers")
    if options.dashboard:
        figure = _dashboard(folders, options)
    elif options.clients == "none":
        figure = _curves(folders, options)
    else:
        figure = _of_clients(folders, options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    save(figure, options.output, dpi=options.dpi)
    return options.output


def _curves(folders: Sequence[pathlib.Path], options: PlotOptions) -> Figure:
    band = None if options.band == "none" else options.band
    return plot_folder(
        folders,
        options.y or None,
        x=_AXES[options.x],
        configurations=options.configurations,
        caption=options.caption,
        band="seeds" if options.seeds_as_lines else band,
        xscale="log" if "x" in options.log else "linear",
        yscale="log" if "y" in options.log else "linear",
        size=options.size,
    )


def _dashboard(folders: Sequence[pathlib.Path], options: PlotOptions) -> Figure:
    if options.clients != "none":
        raise ValueError(f"clients is '{options.clients}'; expected 'none' with --dashboard")
    first = options.y[0] if options.y else None
    content = read_folders(list(folders), configurations=options.configurations, metric=first)
    caption = content.setting if options.caption is None else options.caption
    return dashboard(content.history, options.y or None, size=options.size, caption=caption)


def _of_clients(folders: Sequence[pathlib.Path], options: PlotOptions) -> Figure:
    if len(folders) != 1:
        raise ValueError(f"clients is '{options.clients}'; expected one FOLDER with it")
    values = read_client_values(folders[0])
    caption = setting_text(read_config(folders[0])) if options.caption is None else options.caption
    metric = options.y[0] if options.y else "accuracy"
    draw = client_distribution if options.clients == "distribution" else client_bands
    return draw(values, metric, split=options.split, size=options.size, caption=caption)
