"""Reports of the measurements: ratios, tables, bar charts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fedjax_sim.reports.figures import COLORS, INK, style_axes

_UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
OTHERS = "#B8C0C8"  # bars of the candidates that are not ours


class Case(NamedTuple):
    """Candidates measured on one case; each row has ``seconds``."""

    name: str
    title: str
    unit: str  # what the seconds are of, e.g. "a round"
    rows: Mapping[str, Mapping[str, float]]
    ours: str  # the candidate that the others are compared with; "": there are no ratios
    floor: float | None = None  # least seconds by the machine's rates
    targets: Mapping[str, float] = {}  # peer -> how many times faster ours is meant to be
    local_steps: float | None = None  # that the seconds are of
    baseline: str = ""  # whose seconds the rows' ``ratio`` is relative to
    limits: Mapping[str, float] = {}  # candidate -> ratio that it is meant not to exceed
    same_work: Collection[str] | None = None  # candidates that do the work of ours; None: all


class Ratio(NamedTuple):
    """``peer`` takes ``ratio`` times the seconds of ours; ``target`` if there is one."""

    peer: str
    ratio: float
    target: float | None


def ratios(case: Case) -> list[Ratio]:
    """Returns the ratios of our time to the fastest other candidate and to peers with a target.

    A peer stands for its variants: "torch-loop" for "torch-loop-1", too.  Variants of ours are no
    others, nor are candidates that do other work.
    """
    if case.ours not in case.rows:
        return []
    seconds = {name: row["seconds"] for name, row in case.rows.items()}
    alike = seconds if case.same_work is None else case.same_work
    others = {k: v for k, v in seconds.items() if k in alike and not k.startswith(case.ours)}
    found = []
    for peer, target in case.targets.items():
        variants = {k: v for k, v in others.items() if k == peer or k.startswith(f"{peer}-")}
        if variants:
            best = min(variants, key=variants.__getitem__)
            found.append(Ratio(best, variants[best] / seconds[case.ours], target))
    if others:
        best = min(others, key=others.__getitem__)
        if best not in {ratio.peer for ratio in found}:
            found.insert(0, Ratio(best, others[best] / seconds[case.ours], None))
    return found


class Limit(NamedTuple):
    """Time of a candidate over the baseline's, and the largest ratio that is allowed."""

    candidate: str
    ratio: float
    limit: float


def limits(case: Case) -> list[Limit]:
    """Returns the candidates that have a limit, with the measured ratios."""
    return [
        Limit(name, case.rows[name]["ratio"], limit)
        for name, limit in case.limits.items()
        if name in case.rows
    ]


def table(case: Case) -> str:
    """Returns the case as text, the fastest candidate first."""
    lines = [f"{case.title}  (seconds {case.unit})"]
    width = max(len(name) for name in case.rows)
    for name, row in sorted(case.rows.items(), key=lambda item: item[1]["seconds"]):
        cells = [f"  {name:{width}s} {time_text(row['seconds']):>9s}"]
        if "best_seconds" in row:
            cells.append(f"best {time_text(row['best_seconds']):>9s}")
        if case.floor is not None:
            cells.append(f"{row['seconds'] / case.floor:8.1f} x floor")
        if case.local_steps is not None:
            cells.append(f"{case.local_steps / row['seconds']:14,.0f} local steps/s")
        rest = {k: v for k, v in row.items() if k not in ("seconds", "best_seconds", "calls")}
        cells += [f"{key.replace('_', ' ')} {_number(value)}" for key, value in rest.items()]
        lines.append("  ".join(cells))
    if case.floor is not None:
        lines.append(f"  {'floor':{width}s} {time_text(case.floor):>9s}")
    for ratio in ratios(case):
        line = f"  {case.ours}: {ratio.ratio:.2f} x as fast as {ratio.peer}"
        if ratio.target is not None:
            met = "reached" if ratio.ratio >= ratio.target else "not reached"
            line += f" (target {ratio.target:g} x: {met})"
        lines.append(line)
    for name, ratio, limit in limits(case):
        met = "kept" if ratio <= limit else "exceeded"
        lines.append(f"  {name}: {ratio:.2f} x {case.baseline} (at most {limit:g} x: {met})")
    return "\n".join(lines)


def as_json(case: Case) -> dict[str, Any]:
    """Returns the case as JSON values."""
    return {
        "title": case.title,
        "seconds_of": case.unit,
        "floor_seconds": case.floor,
        "candidates": {name: dict(row) for name, row in case.rows.items()},
        "ratios": [ratio._asdict() for ratio in ratios(case)],
        "limits": [limit._asdict() for limit in limits(case)],
    }


def chart(cases: Sequence[Case]) -> Figure:
    """Draws horizontal bars, a panel per case, the fastest on top; the dashed line is the floor."""
    columns = min(2, len(cases))
    rows = -(-len(cases) // columns)
    bars = max(len(case.rows) for case in cases)
    figure = Figure(figsize=(4.8 * columns, rows * (0.9 + 0.28 * bars)), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for case, axes in zip(cases, panels, strict=False):
        ordered = sorted(case.rows.items(), key=lambda item: item[1]["seconds"])
        names = [name for name, _ in ordered]
        seconds = [row["seconds"] for _, row in ordered]
        colors = [COLORS[0] if name.startswith(case.ours) else OTHERS for name in names]
        drawn = axes.barh(names, seconds, color=colors, height=0.7)
        axes.bar_label(drawn, [time_text(s) for s in seconds], padding=3, fontsize=8, color=INK)
        axes.invert_yaxis()
        axes.set_xscale("log")
        lowest = min(seconds) if case.floor is None else min(*seconds, case.floor)
        axes.set_xlim(lowest / 2, max(seconds) * 6)  # room for the last label, and a decade
        axes.xaxis.set_minor_formatter(NullFormatter())
        if case.floor is not None:
            axes.axvline(case.floor, color=COLORS[1], lw=1.5, ls="--")
        axes.set_title(case.title, fontsize=9, color=INK)
        axes.set_xlabel(f"seconds {case.unit}")
        style_axes(axes)
        axes.grid(visible=False, axis="y")
    for axes in panels[len(cases) :]:
        axes.remove()
    return figure


def _number(value: float) -> str:
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def time_text(seconds: float) -> str:
    """Returns a time with three significant digits and a unit.

    Example:
        >>> time_text(0.00551), time_text(3.7312), time_text(0.0331), time_text(812.4)
        ('5.51 ms', '3.73 s', '33.1 ms', '812 s')
        >>> time_text(2.5e-6)
        '2.50 µs'
    """
    unit, scale = next(
        ((unit, scale) for unit, scale in _UNITS if seconds >= 1 / scale), _UNITS[-1]
    )
    value = seconds * scale
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"
