"""The tables of the pages for users of other simulators, from table.toml.

`python docs/coming_from/pages.py` writes them into the pages after a change of the table.
"""

import pathlib
import re
import tomllib
from typing import Any

HERE = pathlib.Path(__file__).parent
BEGIN, END = "<!-- written by pages.py -->\n", "<!-- end -->\n"
HEAD = "| quantity | theirs | ours | how to get theirs |\n|---|---|---|---|\n"


def rows() -> list[dict[str, Any]]:
    """Returns the rows of all simulators."""
    return tomllib.loads((HERE / "table.toml").read_text())["row"]


def table(simulator: str) -> str:
    """Returns the table of a simulator in Markdown."""
    return HEAD + "".join(_line(row) for row in rows() if row["simulator"] == simulator)


def _line(row: dict[str, Any]) -> str:
    theirs = _numbers(row["theirs"]) + (" (read, not run)" if row.get("read") else "")
    ours = f"{_numbers(row['ours'])}<br>`{row['call']}`"
    different = row["theirs"] != row["ours"]
    how = [f"`{row['get']}`"] if "get" in row else [] if different else ["equal"]
    how += [row["note"]] if "note" in row else []
    return f"| {row['quantity']} | {theirs} | {ours} | {'<br>'.join(how)} |\n"


def _numbers(value: Any) -> str:
    return ", ".join(f"{x:.5g}" for x in (value if isinstance(value, list) else [value]))


def with_table(text: str, simulator: str) -> str:
    """Returns the text of a page with the present table."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: BEGIN + table(simulator) + END, text, flags=re.DOTALL)


if __name__ == "__main__":
    for simulator in {row["simulator"] for row in rows()}:
        page = HERE / f"{simulator}.md"
        page.write_text(with_table(page.read_text(), simulator))
