"""What every experiment leaves behind: a table, a text, and the command that made them."""

import json
import pathlib
import sys
from typing import Any

import pandas as pd

from fedjax_sim.cli import report


def write(
    directory: pathlib.Path, name: str, history: pd.DataFrame, text: str, **facts: Any
) -> None:
    """A tidy CSV, a Markdown text and the configuration with the command that made them."""
    directory.mkdir(parents=True, exist_ok=True)
    history.to_csv(directory / f"{name}.csv", index=False, lineterminator="\n", float_format="%.5g")
    command = " ".join(
        ["python -m", f"experiments.{pathlib.Path(sys.argv[0]).stem}", *sys.argv[1:]]
    )
    (directory / f"{name}.md").write_text(f"{text}\n\n`{command}`\n")
    header = {"command": command, **facts, "environment": report.environment()}
    report.write_json(directory / f"{name}.json", json.loads(json.dumps(header, default=str)))
