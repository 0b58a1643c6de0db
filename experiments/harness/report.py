"""Files of an experiment: text, table, settings, figures, and the command that wrote them."""

import io
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import figures as drawing
from experiments.harness.options import MACHINE
from experiments.harness.tables import Claim, claims_table
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.cli.report import write_json
from fedjax_sim.simulation.environment import environment

__all__ = ["Report", "command", "read_facts", "rounded", "write_csv"]

DIGITS = "%.5g"  # of the numbers in CSV files


class Report:
    """A Markdown text, built section by section, and its files.

    Example:
        >>> report = Report("Two methods", "3 seeds.")
        >>> report.section("Accuracy", pd.DataFrame({"method": ["a"], "accuracy": [0.5]}))
        >>> print(report.text)
        # Two methods
        <BLANKLINE>
        3 seeds.
        <BLANKLINE>
        ## Accuracy
        <BLANKLINE>
        | method | accuracy |
        |---|---|
        | a | 0.5 |
    """

    def __init__(self, title: str, *paragraphs: str | pd.DataFrame):
        self._parts = [f"# {title}"]
        self.add(*paragraphs)

    @property
    def text(self) -> str:
        return "\n\n".join(self._parts)

    def add(self, *paragraphs: str | pd.DataFrame) -> None:
        """Appends texts and tables; empty ones are left out."""
        self._parts += [
            part if isinstance(part, str) else markdown(part) for part in paragraphs if len(part)
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

        Args:
            history: the table of ``name.csv``; numbers have five digits there.
            figures: ``{name of the file without .png: figure}``.
            facts: further values of ``name.json``: options, constants.
        """
        print(self.text, flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / f"{name}.csv", history)
        (folder / f"{name}.md").write_text(f"{self.text}\n\n`{command()}`\n")
        header = {"command": command(), **facts, "environment": environment()}
        write_json(folder / f"{name}.json", jsonable(header))
        for file, figure in (figures or {}).items():
            drawing.save(figure, folder / f"{file}.png")

    def redraw(self, folder: pathlib.Path, name: str, figures: Mapping[str, Figure]) -> None:
        """Writes text and figures of kept results; their CSV and JSON files stay as they are."""
        wrote = read_facts(folder, name)["command"]
        (folder / f"{name}.md").write_text(f"{self.text}\n\n`{wrote}`\n")
        for file, figure in figures.items():
            drawing.save(figure, folder / f"{file}.png")


def jsonable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they are read from their JSON file."""
    return json.loads(json.dumps(facts, default=str))


def read_facts(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """The values of ``name.json``."""
    return json.loads((folder / f"{name}.json").read_text())


def write_csv(path: pathlib.Path, table: pd.DataFrame) -> None:
    """Writes a table with five digits per number."""
    table.to_csv(path, index=False, lineterminator="\n", float_format=DIGITS)


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """The table as it is read from its CSV file.

    A report that is built from it equals the one that is redrawn from the file; the exact numbers
    would be rounded once, those of the file twice.

    Example:
        >>> rounded(pd.DataFrame({"seconds": [0.31884999]}))["seconds"].tolist()
        [0.31885]
    """
    if not len(table):
        return table
    return pd.read_csv(io.StringIO(table.to_csv(index=False, float_format=DIGITS)))


def command(arguments: list[str] | None = None) -> str:
    """The command of this process without options that name folders of the machine.

    Example:
        >>> command(["--seeds", "3", "--work", "/tmp/kept", "--data-dir=/data"]).split(" ", 3)[3]
        '--seeds 3'
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if spec else f"experiments.{pathlib.Path(sys.argv[0]).stem}"
    folders = {f"--{option.replace('_', '-')}" for option in MACHINE}
    kept, skipping = [], False
    for argument in sys.argv[1:] if arguments is None else arguments:
        if argument.startswith("--"):
            skipping = argument.partition("=")[0].replace("_", "-") in folders
        if not skipping:
            kept.append(argument)
    return " ".join(["python -m", name, *kept])
