"""``fedjax-sim report``: folders of results as one HTML file."""

import dataclasses
import pathlib
from collections.abc import Sequence

DESCRIPTION = """\
Writes FOLDER, which fedjax-sim run or sweep, or simulate, compare or sweep in Python wrote, as one
HTML file that needs no network: setting, table with paired tests, interactive curves, clients,
the best settings of a sweep, versions, and the command that repeats it. Methods of several folders
are compared. Needs the extra report."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Options of ``fedjax-sim report``."""

    output: pathlib.Path = pathlib.Path("report.html")
    """File of the report: .html."""


def report(folders: Sequence[pathlib.Path], options: ReportOptions) -> pathlib.Path:
    """Writes the report and returns its path."""
    from fedjax_sim.reports import report as write

    return write(list(folders), options.output)
