"""Tables of the compiled programs, beside the previous results where they differ."""

from collections.abc import Mapping
from typing import Any

from benchmarks.compiled.figures import estimate
from benchmarks.compiled.targets import Target
from benchmarks.report import time_text

CHANGE = 0.1  # of a figure, above which the previous one is shown
Row = Mapping[str, Any]


def table(target: Target, rows: Mapping[str, Row], previous: Mapping[str, Row]) -> str:
    """Returns a Markdown table of a target's rows, keyed ``"TARGET CASE STRATEGY"``."""
    on_gpu = not target.rates.clock
    unit = "kernels" if on_gpu else "cycles"
    heads = [
        "case", "strategy", f"{unit} per local step", f"{unit} per round", "temporaries",
        "arguments", "output", "collectives per round", "grouped convolutions",
    ]  # fmt: skip
    heads += ["command buffers, loops outside (without flags)"] if on_gpu else []
    heads += ["launches", "bytes", "FLOPs", "estimated round"]
    dates = sorted({row.get("date", "today") for row in rows.values()})
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    versions = {f"{name} {text}" for row in rows.values() for name, text in row["versions"].items()}
    lines = [
        f"**{target.name}** ({target.rates.source}); {period}, {', '.join(sorted(versions))}",
        "",
        f"| {' | '.join(heads)} |",
        "|" + "---|" * len(heads),
    ]
    for key, row in rows.items():
        _, case, strategy = key.split(" ")
        cells = _cells(target, row, previous.get(key, {}), unit)
        name = f"{strategy} (= {row['same_as']})" if "same_as" in row else strategy
        lines.append(f"| {' | '.join([case, name, *cells])} |")
    return "\n".join(lines)


def _cells(target: Target, row: Row, old: Row, unit: str) -> list[str]:
    def cell(name: str, text: Any) -> str:
        return changed(row[name], old.get(name), text)

    cells = [cell(f"{unit}_per_step", count_text), cell(f"{unit}_per_round", count_text)]
    cells += [cell(name, bytes_text) for name in ("temporaries", "arguments", "output")]
    used = row["temporaries"] + row["arguments"] + row["output"] - row["aliased"]
    if used > target.rates.memory:
        cells[2] += " (does not fit)"
    cells.append(changed(row["collectives_per_round"], old.get("collectives_per_round"), _kinds))
    cells.append(cell("grouped_convolutions", str))
    if unit == "kernels":
        cells.append(f"{_buffers(row)} ({_buffers(row['default'])})")
    now = estimate(row, target.rates)
    before = estimate(old, target.rates) if old else {}
    parts = ("launches", "bytes", "flops", "total")
    cells += [changed(now[part], before.get(part), _time) for part in parts]
    return cells


def changed(value: Any, previous: Any, text: Any) -> str:
    """Returns a figure as text, with the previous one if it changed by more than 10 %.

    Example:
        >>> changed(1.6e6, 9.7e6, count_text), changed(105, 100, count_text)
        ('1.60 M (was 9.70 M)', '105')
    """
    if previous is None:
        return text(value)
    if isinstance(value, (int, float)):
        differs = abs(value - previous) > CHANGE * abs(previous)
    else:
        differs = value != previous
    return f"{text(value)} (was {text(previous)})" if differs else text(value)


def count_text(value: float) -> str:
    """Returns a count with a unit.

    Example:
        >>> count_text(8.0), count_text(2.5), count_text(41438), count_text(9.7e6)
        ('8', '2.5', '41.4 k', '9.70 M')
    """
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if value >= 1e4:
        return f"{value / 1e3:.1f} k"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def bytes_text(value: float) -> str:
    """Returns bytes with a unit.

    Example:
        >>> bytes_text(300), bytes_text(2.5e6), bytes_text(1.96e9)
        ('0.3 kB', '2.5 MB', '1.96 GB')
    """
    if value >= 1e9:
        return f"{value / 1e9:.2f} GB"
    return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds else "-"


def _kinds(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{number:g} {kind}" for kind, number in counts.items()) or "none"


def _buffers(row: Row) -> str:
    return f"{row['command_buffers']}, {row['loops_outside']}"
