"""Tables of docs/performance.md on GPUs, from the records in benchmarks/results/gpu.

python -m benchmarks.gpu_table       # writes the section after a measurement
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu import KEPT
from benchmarks.published_table import PAGE
from benchmarks.report import time_text

BEGIN, END = "<!-- gpu: begin -->\n", "<!-- gpu: end -->\n"
PRECISIONS = ("bfloat16", "tf32", "float32")

Record = Mapping[str, Any]


class Goal(NamedTuple):
    """Seconds of a round, and how many times as fast as PyTorch, if that is a goal."""

    seconds: float
    ratio: float | None = None


GOALS = {
    "ResNet-18": Goal(0.42, 1.5),
    "LeNet-5": Goal(0.060),
    "W3": Goal(0.008, 3),
    "W2": Goal(0.0015, 3),
    "W1": Goal(0.0004, 3),
    "W4": Goal(0.00015, 3),
}


def main() -> None:
    """Replaces the section of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{section(kept())}{END}{after}")


def kept() -> dict[str, Record]:
    """Returns the records that are kept, by the names of their jobs."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}


def section(records: Mapping[str, Record]) -> str:
    """Returns the tables of all records with numbers."""
    if not records:
        return "No record of the queue is kept yet.\n"
    parts = [_rounds(records), _kernels(records), _others(records), _cards(records)]
    return "\n".join(part for part in parts if part)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown; none without rows."""
    if not rows:
        return ""
    lines = [re.sub(" +", " ", f"| {' | '.join(row)} |") for row in [columns, *rows]]
    return "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]]) + "\n"


def _seconds(records: Mapping[str, Record], start: str) -> dict[tuple[str, ...], float]:
    """Returns the seconds of all candidates of the jobs whose names start so."""
    return {
        tuple(quantity.removesuffix(" seconds").split("/")): value
        for name, record in records.items()
        if name.startswith(start)
        for quantity, value in record["numbers"].items()
        if quantity.endswith(" seconds")
    }


def _rounds(records: Mapping[str, Record]) -> str:
    """Returns a row per workload, ours beside PyTorch's better way in each precision."""
    ours, theirs = _seconds(records, "goal-"), _seconds(records, "torch-")
    rows = []
    for name, goal in GOALS.items():
        mine = {p: ours[name, p] for p in PRECISIONS if (name, p) in ours}
        best: dict[str, tuple[float, str]] = {}
        for (workload, way, precision), value in theirs.items():
            if workload == name:
                best[precision] = min(best.get(precision, (value, way)), (value, way))
        if mine:
            ratio_goal = "" if goal.ratio is None else f", {goal.ratio:g} x"
            ratio = f"{min(best.values())[0] / min(mine.values()):.2g} x" if best else ""
            rows.append([
                name,
                *(time_text(mine[p]) if p in mine else "" for p in PRECISIONS),
                *(", ".join([time_text(best[p][0]), best[p][1]]) if p in best else ""
                  for p in PRECISIONS),
                ratio,
                f"{time_text(goal.seconds)}{ratio_goal}",
                _dates(records, name),
            ])  # fmt: skip
    columns = ["a round", *(f"ours, {p}" for p in PRECISIONS)]
    columns += [*(f"PyTorch, {p}" for p in PRECISIONS), "PyTorch / ours", "goals", "measured"]
    return _table(columns, rows)


def _dates(records: Mapping[str, Record], workload: str) -> str:
    """Returns the days on which a workload was measured."""
    days = {
        record["date"][:10]
        for name, record in records.items()
        if name.startswith(("goal-", "torch-"))
        and any(quantity.startswith(f"{workload}/") for quantity in record["numbers"])
    }
    return ", ".join(sorted(days))


def _kernels(records: Mapping[str, Record]) -> str:
    """Returns a row per workload whose kernels were listed."""
    rows = []
    for name, record in records.items():
        numbers = record["numbers"]
        if name.startswith("kernels-") and numbers:
            kinds = [
                f"{kind.split()[1]} {value / numbers['busy us']:.0%}"
                for kind, value in numbers.items()
                if kind.startswith("kind ")
            ]
            row = [f"{numbers[key]:,.0f}" for key in ("kernels", "busy us", "span us")]
            workload = name.removeprefix("kernels-")
            rows.append([workload, *row, ", ".join(kinds[:6]), record["date"][:10]])
    columns = ["a local step in bfloat16", "kernels", "µs busy", "µs in all", "shares", "measured"]
    return _table(columns, rows)


def _others(records: Mapping[str, Record]) -> str:
    """Returns a row per other measured time, distance or final accuracy."""
    rows = []
    for name, record in records.items():
        if name.startswith(("goal-", "torch-", "kernels-")):
            continue
        for quantity, value in record["numbers"].items():
            *kind, unit = quantity.split(" ")
            if unit in ("seconds", "accuracy", "test/accuracy", "off"):
                text = time_text(value) if unit == "seconds" else f"{value:.4g}"
                rows.append([name, " ".join(kind), unit, text, record["date"][:10]])
    return _table(["job", "candidate", "quantity", "measured", "date"], rows)


def _cards(records: Mapping[str, Record]) -> str:
    """Returns the sentence on the cards and versions of all records."""
    found = sorted({
        f"{m['card']} (driver), jax {m['jax']}, PyTorch {m['torch']}"
        for m in (record["machine"] for record in records.values())
    })  # fmt: skip
    return f"Measured on: {'; '.join(found)}.\n"


if __name__ == "__main__":
    main()
