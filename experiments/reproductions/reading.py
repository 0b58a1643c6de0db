"""Reports under ``experiments/results`` as tables: what the page quotes."""

import functools
import itertools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from experiments.harness.report import all_commands

RESULTS = pathlib.Path(__file__).parent.parent / "results"
CLAIMS = "The paper's claims"


class Section(NamedTuple):
    """A table of a report, and the heading above it."""

    heading: str
    table: pd.DataFrame  # of texts


class Result(NamedTuple):
    """A report with its CSV and JSON files, by its path below ``results`` without a suffix."""

    name: str

    @property
    def path(self) -> pathlib.Path:
        """The report's path without a suffix; dots in the name are part of it."""
        return RESULTS / self.name

    @property
    def exists(self) -> bool:
        """Returns whether report and facts were written."""
        return all(self.file(suffix).exists() for suffix in (".md", ".json"))

    def file(self, suffix: str) -> pathlib.Path:
        """One of the files: ``.md``, ``.json``, ``.csv``."""
        return self.path.with_name(self.path.name + suffix)

    @property
    def commands(self) -> str:
        """The commands that wrote the files, in their order."""
        facts = json.loads(self.file(".json").read_text())
        return ", then ".join(f"`{command}`" for command in all_commands(facts))

    @property
    def title(self) -> str:
        """The report's heading."""
        return self.file(".md").read_text().partition("\n")[0].removeprefix("# ")

    @property
    def claims(self) -> pd.DataFrame:
        """The rows of the report's table of claims; empty if there is none."""
        parts = [s.table for s in sections(self) if s.heading == CLAIMS]
        return parts[0] if parts else pd.DataFrame(columns=["claim", "found", "agrees"])

    def table(self, heading: str, *columns: str) -> pd.DataFrame:
        """The first table below a heading (a part of it suffices) that has the columns."""
        for section in sections(self):
            if heading in section.heading and set(columns) <= set(section.table.columns):
                return section.table
        raise ValueError(f"{self.name}: no table below {heading!r} with {columns}")

    def values(
        self,
        column: str,
        by: str = "method",  # the column of the names
        *,
        heading: str = "",
        where: Mapping[str, str] | None = None,  # texts that other columns have to have
        rows: tuple[str, ...] = (),
    ) -> str:
        """``name value, name value``: a column of a table, all of its rows or those named."""
        where = where or {}
        table = self.table(heading, column, by, *where)
        for name, text in where.items():
            table = pd.DataFrame(table[table[name] == text])
        if rows:
            table = pd.DataFrame(table[table[by].isin(rows)])
        pairs = zip(table[by], table[column], strict=True)
        return ", ".join(f"{name} {value}" for name, value in pairs if value)

    def line(self, start: str, *default: str) -> str:
        """The first line of the report that starts like that; the default if there is none."""
        lines = self.file(".md").read_text().splitlines()
        return next((line for line in lines if line.startswith(start)), *default)


@functools.cache
def sections(result: Result) -> list[Section]:
    """All tables of a report."""
    heading, tables = "", []
    lines = result.file(".md").read_text().splitlines()
    for is_row, group in itertools.groupby(lines, lambda line: line.startswith("|")):
        block = list(group)
        if is_row:
            cells = [_cells(row) for row in block]
            tables.append(Section(heading, pd.DataFrame(cells[2:], columns=pd.Index(cells[0]))))
        else:
            heads = [line.lstrip("# ") for line in block if line.startswith("## ")]
            heading = heads[-1] if heads else heading
    return tables


def _cells(row: str) -> list[str]:
    """The cells of a row; a bar in a text is written as ``\\|``."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


def all_scripts() -> dict[str, str]:
    """The first line of the docstring of every script, by its module."""
    root = RESULTS.parent
    scripts = {}
    for file in sorted(root.rglob("*.py")):
        text = file.read_text()
        if '\nif __name__ == "__main__":' in text:
            parts = file.relative_to(root.parent).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__main__")
            scripts[module] = text.partition('"""')[2].partition("\n")[0].removesuffix('"""')
    return scripts


def all_results() -> list[Result]:
    """All reports, in the order of their names."""
    paths = sorted(path for path in RESULTS.rglob("*.md") if path.with_suffix(".json").exists())
    return [Result(path.relative_to(RESULTS).as_posix().removesuffix(".md")) for path in paths]
