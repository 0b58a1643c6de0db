"""Compares what a simulator computes with column "theirs" of docs/coming_from/table.toml."""

import importlib.metadata
import math
import pathlib
import tomllib
from typing import Any

TABLE = pathlib.Path(__file__).parents[3] / "docs" / "coming_from" / "table.toml"


def compare(simulator: str, packages: str, measured: dict[str, Any]) -> None:
    """Prints all quantities, and fails unless they are those of the table."""
    print(*(f"{name} {importlib.metadata.version(name)}" for name in packages.split()), sep=", ")
    rows = tomllib.loads(TABLE.read_text())["row"]
    expected = {
        row["id"]: row["theirs"]
        for row in rows
        if row["simulator"] == simulator and not row.get("read")
    }
    assert measured.keys() == expected.keys(), measured.keys() ^ expected.keys()
    for name, value in measured.items():
        print(name, value)
        assert len(flat(value)) == len(flat(expected[name])), name
        for x, y in zip(flat(value), flat(expected[name]), strict=True):
            same = math.isnan(x) if math.isnan(y) else abs(x - y) <= 1e-5 + 5e-5 * abs(y)
            assert same, (name, value, expected[name])


def flat(value: Any) -> list[float]:
    """Returns a number or a list of numbers as a list."""
    return list(value) if isinstance(value, list) else [value]
