"""The commands that read folders of results: ``plot``, ``table``, ``report``, ``export``, ``fork``.

Heavy modules are imported inside functions, so that ``--help`` of other commands does not wait for
them.
"""

import itertools
import pathlib
from typing import TypeVar

from fedjax_sim.cli.errors import resolving

Options = TypeVar("Options")


def plot(arguments: list[str]) -> int:
    """Draws folders of results; returns the exit code."""
    from fedjax_sim.cli import plot as plotting

    with resolving(
        {
            "x": "x",
            "metric": "y",
            "metrics": "y",
            "size": "size",
            "dpi": "dpi",
            "split": "split",
            "output": "output",
            "clients": "clients",
        }
    ):
        folders, options = _of_folders(
            plotting.PlotOptions, "plot", plotting.DESCRIPTION, arguments
        )
        print(f"figure: {plotting.plot(folders, options)}")
    return 0


def table(arguments: list[str]) -> int:
    """Prints a table of folders of results; returns the exit code."""
    from fedjax_sim.cli import table as tables
    from fedjax_sim.runs import write_text

    with resolving({"metric": "metric", "metrics": "metric", "last": "last", "digits": "digits"}):
        folders, options = _of_folders(tables.TableOptions, "table", tables.DESCRIPTION, arguments)
        text = tables.table(folders, options)
        if options.output is None:
            print(text)
        else:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            write_text(options.output.resolve(), text + "\n")  # a link of the user's stays
            print(f"table: {options.output}")
    return 0


def report(arguments: list[str]) -> int:
    """Writes folders of results as one HTML file; returns the exit code."""
    from fedjax_sim.cli import report_page

    with resolving({"path": "output"}):
        folders, options = _of_folders(
            report_page.ReportOptions, "report", report_page.DESCRIPTION, arguments
        )
        print(f"report: {report_page.report(folders, options)}")
    return 0


def export(arguments: list[str]) -> int:
    """Writes a model of a folder of results; returns the exit code."""
    from fedjax_sim.cli import export as exporting

    with resolving({name: name for name in ("output", "algorithm", "seed", "which")}):
        folder, options = _of_folder(
            exporting.ExportOptions, "export", exporting.DESCRIPTION, arguments
        )
        path, text = exporting.export(folder, options)
        print(f"model: {path} ({text})")
    return 0


def fork(arguments: list[str]) -> int:
    """Continues a run of a folder of results under alternatives; returns the exit code."""
    from fedjax_sim.cli import fork as forking

    names = ("alternatives", "algorithm", "metric", "output", "round")
    with resolving({name: name for name in names}):
        from fedjax_sim.cli.options import MISSING

        kind = forking.ForkOptions
        named = kind(MISSING, alternatives=forking.with_alternatives(arguments))
        folder, options = _of_folder(kind, "fork", forking.DESCRIPTION, arguments, named)
        table, path = forking.fork(folder, options)
        print(f"{table}\nfigure: {path}")
    return 0


def _of_folder(
    kind: type[Options],
    command: str,
    description: str,
    arguments: list[str],
    default: Options | None = None,
) -> tuple[pathlib.Path, Options]:
    """Returns the folder and the options of a command that takes one folder."""
    folders, options = _of_folders(kind, command, description, arguments, "FOLDER", default)
    if len(folders) > 1:
        raise ValueError(f"FOLDER is given {len(folders)} times; expected one")
    return folders[0], options


def _of_folders(
    kind: type[Options],
    command: str,
    description: str,
    arguments: list[str],
    shown: str = "FOLDER [FOLDER ...]",
    default: Options | None = None,
) -> tuple[list[pathlib.Path], Options]:
    """Returns the folders and the options of a command."""
    from fedjax_sim.cli.options import parse

    folders = list(itertools.takewhile(lambda text: not text.startswith("-"), arguments))
    rest = arguments[len(folders) :]
    options = parse(kind, f"{command} {shown}", description, rest, default)
    if not folders:
        raise ValueError(f"FOLDER is missing; expected fedjax-sim {command} FOLDER [options]")
    return list(map(pathlib.Path, folders)), options
