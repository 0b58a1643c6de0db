"""Section of docs/performance.md on published setups, from benchmarks/results/published.json.

python -m benchmarks.published_table       # writes the section after a measurement
"""

import json
from typing import Any

from benchmarks.jobs import ROOT
from benchmarks.published import EXTRAPOLATED, OURS
from benchmarks.published_setups import SETUPS
from benchmarks.report import time_text

RESULTS = ROOT / "benchmarks" / "results" / "published.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- published: begin -->\n", "<!-- published: end -->\n"
COLUMNS = (
    "setup", "theirs, hardware", "theirs", "ours", "compilation", "per round", "rounds run",
    "accuracy", "highest load", "our machine",
)  # fmt: skip


def main() -> None:
    """Replaces the section of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(
        f"{before}{BEGIN}{section(json.loads(RESULTS.read_text())['cases'])}{END}{after}"
    )


def section(cases: dict[str, Any]) -> str:
    """Returns the table, the sources and the assumptions of the measured setups."""
    measured = [name for name in SETUPS if name in cases]
    cores = {_ours(cases[name])["cores"] for name in measured}
    dates = sorted({cases[name]["date"][:10] for name in measured})
    counts = " or ".join(f"{count:.0f}" for count in sorted(cores))
    lines = [
        f"**{counts} CPU cores here are compared with the hardware in the second column, mostly "
        f"GPUs.** Measured on {' and '.join(dates)}; the others' times are those of the sources. "
        "The last column is the rate of all our cores together in a large product.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(_row(name, cases[name]))} |" for name in measured),
        "",
        *(_notes(name) for name in measured),
    ]
    return "\n".join(lines) + "\n"


def _ours(case: dict[str, Any]) -> dict[str, float]:
    candidates = case["candidates"]
    return candidates[OURS if OURS in candidates else EXTRAPOLATED]


def _row(name: str, case: dict[str, Any]) -> list[str]:
    setup, ours = SETUPS[name], _ours(case)
    others = ", ".join(f"{program} {time_text(s)}" for program, s in setup.seconds.items())
    extrapolated = EXTRAPOLATED in case["candidates"]
    complete = ours["measured_rounds"] >= setup.rounds
    unit = " per round" if setup.per_round else ""
    return [
        f"{name}: {setup.title}",
        setup.hardware,
        others + unit,
        f"**{time_text(ours['seconds'])}**{unit}{', extrapolated' if extrapolated else ''}",
        time_text(ours["compile_seconds"]),
        time_text(ours["seconds_per_round"]),
        f"{ours['measured_rounds']:,.0f} of {setup.rounds:,}",
        f"{ours['accuracy']:.3f}" if complete else "",
        f"{ours['highest_load']:.1f}",
        f"{case['machine']['flops'] / 1e9:.0f} GFLOP/s",
    ]


def _notes(name: str) -> str:
    setup = SETUPS[name]
    return f"* {name}. Sources: {'; '.join(setup.sources)}. {'; '.join(setup.assumptions)}."


if __name__ == "__main__":
    main()
