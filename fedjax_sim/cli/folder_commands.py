"""The commands that read folders of results: ``plot``, ``table``, ``report``, ``export``, ``fork``.

Heavy modules are imported inside functions, so that ``--help`` of other commands does not wait for
them.
"""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

from fedjax_sim.cli.errors import resolving

REPORT_DESCRIPTION = """\
Writes FOLDER, which fedjax-sim run or sweep, or simulate, compare or sweep in Python wrote, as one
HTML file that needs no network: setting, table with paired tests, interactive curves, clients,
the best settings of a sweep, versions, and the command that repeats it. Methods of several folders
are compared. Needs the extra report."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Options of ``fedjax-sim report``."""

    output: pathlib.Path = pathlib.Path("report.html")
    """File of the report: .html."""


def plot(arguments: list[str]) -> int:
    """Draws folders of results; returns the exit code."""
    from fedjax_sim.cli.plot import DESCRIPTION, PlotOptions, plot

    named = {"metric": "y", "metrics": "y"}
    with _read(PlotOptions, "plot", DESCRIPTION, arguments, named) as (folders, options):
        print(f"figure: {plot(folders, options)}")
    return 0


def table(arguments: list[str]) -> int:
    """Prints a table of folders of results; returns the exit code."""
    from fedjax_sim.cli.table import DESCRIPTION, TableOptions, table
    from fedjax_sim.runs import write_text

    named = {"metrics": "metric"}
    with _read(TableOptions, "table", DESCRIPTION, arguments, named) as (folders, options):
        text = table(folders, options)
        if options.output is None:
            print(text)
        else:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            write_text(options.output.resolve(), text + "\n")  # a link of the user's stays
            print(f"table: {options.output}")
    return 0


def report(arguments: list[str]) -> int:
    """Writes folders of results as one HTML file; returns the exit code."""
    named = {"path": "output"}
    with _read(ReportOptions, "report", REPORT_DESCRIPTION, arguments, named) as (folders, options):
        from fedjax_sim.reports import report as write

        print(f"report: {write(folders, options.output)}")
    return 0


def export(arguments: list[str]) -> int:
    """Writes a model of a folder of results; returns the exit code."""
    from fedjax_sim.cli.export import DESCRIPTION, ExportOptions, export

    with _read(ExportOptions, "export", DESCRIPTION, arguments, one=True) as (folders, options):
        path, text = export(folders[0], options)
        print(f"model: {path} ({text})")
    return 0


def fork(arguments: list[str]) -> int:
    """Continues a run of a folder of results under alternatives; returns the exit code."""
    from fedjax_sim.cli.fork import DESCRIPTION, ForkOptions, fork, with_alternatives
    from fedjax_sim.cli.options import MISSING

    default = ForkOptions(MISSING, alternatives=with_alternatives(arguments))
    with _read(
        ForkOptions, "fork", DESCRIPTION, arguments, one=True, default=default
    ) as (folders, options):  # fmt: skip
        text, path = fork(folders[0], options)
        print(f"{text}\nfigure: {path}")
    return 0


@contextlib.contextmanager
def _read(
    kind: type,
    command: str,
    description: str,
    arguments: list[str],
    named: dict[str, str] | None = None,
    *,
    one: bool = False,
    default: Any = None,
) -> Iterator[tuple[list[pathlib.Path], Any]]:
    """Context with the folders and the options of a command, whose errors are one line.

    An error names an option by its field, or by one of the ``named`` arguments.
    """
    with resolving({field.name: field.name for field in dataclasses.fields(kind)} | (named or {})):
        from fedjax_sim.cli.options import parse

        shown = "FOLDER" if one else "FOLDER [FOLDER ...]"
        folders = list(itertools.takewhile(lambda text: not text.startswith("-"), arguments))
        rest = arguments[len(folders) :]
        options = parse(kind, f"{command} {shown}", description, rest, default)
        if not folders:
            raise ValueError(f"FOLDER is missing; expected fedjax-sim {command} FOLDER [options]")
        if one and len(folders) > 1:
            raise ValueError(f"FOLDER is given {len(folders)} times; expected one")
        yield list(map(pathlib.Path, folders)), options
