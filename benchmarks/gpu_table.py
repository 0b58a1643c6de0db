"""Table of docs/performance.md on GPUs, from the records in benchmarks/results/gpu.

python -m benchmarks.gpu_table       # writes the section after a measurement
"""

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu import DONE, KEPT, UNFINISHED
from benchmarks.published_table import PAGE
from benchmarks.report import time_text

BEGIN, END = "<!-- gpu: begin -->\n", "<!-- gpu: end -->\n"


def main() -> None:
    """Replaces the section of the page."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{section(records)}{END}{after}")


def section(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a row per measured time or final accuracy, with card, versions and date.

    Example:
        >>> machine = {"card": "H100, 580", "jax": "0.11.2", "torch": "2.11.0"}
        >>> record = {"state": "done", "date": "2026-12-01T10:00", "machine": machine,
        ...           "numbers": {"bfloat16 seconds": 0.42}}
        >>> print(section({"goal-W3": record}).splitlines()[-1])
        | goal-W3 | bfloat16 | 420 ms | H100, 580 | jax 0.11.2, torch 2.11.0 | 2026-12-01 |
    """
    rows = []
    for name, record in records.items():
        if record["state"] not in (DONE, UNFINISHED):
            continue
        machine = record["machine"]
        versions = f"jax {machine['jax']}, torch {machine['torch']}"
        for quantity, value in record["numbers"].items():
            *kind, unit = quantity.split(" ")
            if unit not in ("seconds", "accuracy", "test/accuracy"):
                continue
            text = time_text(value) if unit == "seconds" else f"{value:.4f}"
            cells = [name, " ".join(kind) or unit, text, machine["card"], versions]
            rows.append(f"| {' | '.join([*cells, record['date'][:10]])} |\n")
    if not rows:
        return "No record of the queue is kept yet.\n"
    columns = ("job", "candidate", "measured", "card, driver", "versions", "date")
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n{''.join(rows)}"


if __name__ == "__main__":
    main()
