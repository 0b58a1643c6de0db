"""Reports whose text and figures are functions of their CSV and JSON files."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.report import Report, jsonable, read_facts, write_csv

__all__ = ["Build", "read_tables", "redraw_report", "reported_rows", "save_report"]

Build = Callable[[dict[str, pd.DataFrame], dict[str, Any]], tuple[Report, dict[str, Figure]]]


def save_report(
    folder: pathlib.Path, name: str, tables: Mapping[str, pd.DataFrame], build: Build, **facts: Any
) -> None:
    """Writes tables and facts, and the text and figures that ``build`` makes of them.

    Args:
        tables: by the suffix of their file, ``name.csv`` for "" and ``name-suffix.csv`` otherwise.
        build: function of the tables in the folder, of earlier calls too, and of the facts, both
            as they are read from the files; returns the report and ``{file: figure}``.
        facts: values of ``name.json``: options, constants.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, table in tables.items():
        write_csv(folder / f"{name}{suffix and '-'}{suffix}.csv", table)
    kept = read_tables(folder, name)
    report, figures = build(kept, jsonable(facts))
    report.save(folder, name, kept[""], figures, **facts)


def redraw_report(folder: pathlib.Path, name: str, build: Build) -> None:
    """Writes text and figures again from the CSV and JSON files of :func:`save_report`."""
    report, figures = build(read_tables(folder, name), read_facts(folder, name))
    report.redraw(folder, name, figures)


def read_tables(folder: pathlib.Path, name: str) -> dict[str, pd.DataFrame]:
    """The tables of ``name.csv`` and ``name-suffix.csv`` by their suffixes."""
    files = [folder / f"{name}.csv", *sorted(folder.glob(f"{name}-*.csv"))]
    return {path.stem[len(name) + 1 :]: pd.read_csv(path) for path in files}


def reported_rows(folder: pathlib.Path, name: str, **facts: Any) -> pd.DataFrame:
    """The rows of an earlier report's CSV file; none without one, or if its facts are others."""
    path = folder / f"{name}.csv"
    if not path.exists() or not _agree(read_facts(folder, name), jsonable(facts)):
        return pd.DataFrame()
    return pd.read_csv(path)


def _agree(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            name in found and _agree(found[name], value) for name, value in wanted.items()
        )
    return found == wanted
