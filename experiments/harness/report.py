"""Files of an experiment: text, table, settings, figures, and the command that wrote them."""

import io
import json
import pathlib
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import figures as drawing
from experiments.harness.options import MACHINE
from experiments.harness.tables import Claim, claims_table
from fedjax_sim.cli.report import write_json
from fedjax_sim.runs import environment, replacing, write_text

__all__ = [
    "Report",
    "all_commands",
    "command",
    "earlier_commands",
    "read_facts",
    "rounded",
    "write_csv",
]

DIGITS = "%.5g"  # of the numbers in CSV files


class Report:
    """A Markdown text, built section by section, and its files."""

    def __init__(self, title: str, *paragraphs: str | pd.DataFrame):
        self._parts = [f"# {title}"]
        self.add(*paragraphs)

    @property
    def text(self) -> str:
        return "\n\n".join(self._parts)

    def add(self, *paragraphs: str | pd.DataFrame) -> None:
        """Appends texts and tables; empty ones are left out."""
        self._parts += [
            part if isinstance(part, str) else fs.analysis.render(part)
            for part in paragraphs
            if len(part)
        ]

    def section(self, heading: str, *paragraphs: str | pd.DataFrame) -> None:
        """Appends a section with a heading; none if all paragraphs are empty."""
        if any(len(part) for part in paragraphs):
            self.add(f"## {heading}", *paragraphs)

    def claims(self, claims: Iterable[Claim]) -> None:
        """Appends the table of the paper's claims."""
        self.section("The paper's claims", claims_table(claims))

    def save(
        self,
        folder: pathlib.Path,
        name: str,
        history: pd.DataFrame,
        figures: Mapping[str, Figure] | None = None,
        **facts: Any,
    ) -> None:
        """Prints the text and writes ``name.md``, ``name.csv``, ``name.json`` and the figures.

        ``facts`` are further values of ``name.json``, among them ``earlier``, see
        :func:`earlier_commands`.
        """
        print(self.text, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / f"{name}.csv", history)
        header = {"command": command(), **facts, "environment": environment()}
        self._write(folder, name, header)
        write_json(folder / f"{name}.json", jsonable(header))
        for file, figure in (figures or {}).items():
            drawing.save(figure, folder / f"{file}.png")

    def redraw(self, folder: pathlib.Path, name: str, figures: Mapping[str, Figure]) -> None:
        """Writes text and figures of kept results; their CSV and JSON files stay as they are."""
        self._write(folder, name, read_facts(folder, name))
        for file, figure in figures.items():
            drawing.save(figure, folder / f"{file}.png")

    def _write(self, folder: pathlib.Path, name: str, facts: Mapping[str, Any]) -> None:
        wrote = ", then ".join(f"`{part}`" for part in all_commands(facts))
        write_text(folder / f"{name}.md", f"{self.text}\n\n{wrote}\n")


def jsonable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are read from their JSON file."""
    return json.loads(json.dumps(facts, default=str))


def read_facts(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """The values of ``name.json``."""
    return json.loads((folder / f"{name}.json").read_text())


def write_csv(path: pathlib.Path, table: pd.DataFrame) -> None:
    """Writes a table with five digits per number; a kill leaves the old file or the new one."""
    with replacing(path) as partial:
        table.to_csv(partial, index=False, lineterminator="\n", float_format=DIGITS)


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """The table as it is read from its CSV file.

    A report that is built from it equals the one that is redrawn from the file; the exact numbers
    would be rounded once, those of the file twice.
    """
    if not len(table):
        return table
    return pd.read_csv(io.StringIO(table.to_csv(index=False, float_format=DIGITS)))


def all_commands(facts: Mapping[str, Any]) -> list[str]:
    """The commands that write a report's files from nothing, in their order.

    Example:
        >>> all_commands({"command": "b", "earlier": ["a"]})
        ['a', 'b']
    """
    return [*facts.get("earlier", []), facts["command"]]


def earlier_commands(folder: pathlib.Path, name: str) -> dict[str, list[str]]:
    """The fact ``earlier``: the commands of the kept runs that this command adds to."""
    commands = dict.fromkeys(all_commands(read_facts(folder, name)))
    return {"earlier": [kept for kept in commands if kept != command()]}


def command(arguments: list[str] | None = None) -> str:
    """The command of this process as a shell takes it, without options that name folders of the
    machine or say what to do with the runs there; a relative output folder is part of it.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if spec else f"experiments.{pathlib.Path(sys.argv[0]).stem}"
    groups: list[list[str]] = []  # an option with its values
    for argument in sys.argv[1:] if arguments is None else arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    kept = (argument for group in groups if not _of_machine(group) for argument in group)
    return f"python -m {shlex.join([name, *kept])}"


def _of_machine(group: list[str]) -> bool:
    name, _, value = group[0].partition("=")
    option = name.removeprefix("--").replace("-", "_")
    if option == "output":
        return pathlib.Path(value or group[-1]).is_absolute()
    return name.startswith("--") and option in MACHINE
