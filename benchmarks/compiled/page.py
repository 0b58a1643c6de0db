"""Tables of docs/performance.md on compiled programs, from benchmarks/results/compiled.json.

python -m benchmarks.compiled.page       # writes the sections after a compilation
"""

import datetime
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.compiled.command import RESULTS
from benchmarks.compiled.figures import estimate
from benchmarks.compiled.report import bytes_text, count_text
from benchmarks.compiled.targets import target
from benchmarks.published_table import PAGE
from benchmarks.report import time_text

Row = Mapping[str, Any]
Rows = Mapping[str, Row]  # by "TARGET CASE STRATEGY"

V5E, CHIPS, GPU = "v5e:2x2", ("v5e:2x2", "v5p:2x2x1", "v6e:2x2"), "h200"
TITLES = {
    "W1": "W1, 100 clients",
    "W2": "W2, 10 clients",
    "W3": "W3, 10 clients",
    "W4": "W4, 1,000 clients",
    "asynchronous": "FAVANO, 20 contacts",
    "SCAFFOLD": "SCAFFOLD, state of 10,000 clients",
    "ResNet-18": "ResNet-18, 10 clients",
    "ViT-Tiny": "ViT-Tiny, 10 clients",
    "sweep": "sweep of 49 x 3 (W4's model)",
}
NETWORKS = "ResNet-18", "ViT-Tiny"
NONE = "not compiled"


def main() -> None:
    """Replaces the sections of the page."""
    PAGE.write_text(filled(PAGE.read_text(), json.loads(RESULTS.read_text())["rows"]))


def filled(page: str, rows: Rows) -> str:
    """Returns the page with its sections written from the rows."""
    for name, write in SECTIONS.items():
        begin, end = f"<!-- compiled {name}: begin -->\n", f"<!-- compiled {name}: end -->\n"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}{write(rows)}{end}{after}"
    return page


def tpus(rows: Rows) -> str:
    """Returns cycles of a local step, of all clients together and one after the other.

    Example:
        >>> row = {"cycles_per_step": 1e6, "temporaries": 2e9, "date": "2026-11-28"}
        >>> half = row | {"cycles_per_step": 5e5}
        >>> found = {"v5e:2x2 W1 vmapped": half, "v5e:2x2 W1 sequential": row}
        >>> print(tpus(found).splitlines()[2])
        | W1, 100 clients | 500.0 k, 2.00 GB | 1.00 M, 2.00 GB | 0.50 | | | 28 Nov |
    """
    lines = []
    for case, title in TITLES.items():
        one, other = (
            rows.get(f"{V5E} {case} {way}") for way in ("vmapped", "sequential")
        )  # fmt: skip
        one = one or rows.get(f"{V5E} {case} auto")  # a sweep has one way
        if one is None:
            continue
        used = [rows.get(f"{chip} {case} {way}") for chip in CHIPS for way in _WAYS]
        quotients = [_quotient(rows, chip, case) for chip in CHIPS]
        cells = [title, _cycles(one), _cycles(other), *quotients, _dates(used)]
        lines.append(cells)
    heads = ("program", "v5e, vmapped", "v5e, one after the other", "quotient", "v5p", "v6e")
    return _table((*heads, "compiled"), lines)


def chunks(rows: Rows) -> str:
    """Returns millions of cycles together, in pairs and one by one, with the least in bold.

    Example:
        >>> names = "vmapped", "auto", "sequential"
        >>> found = {f"v5e:2x2 ResNet-18 {name}": {"cycles_per_step": n * 1e6, "date": "2026-11-28"}
        ...          for name, n in zip(names, (47, 38.5, 39.9))}
        >>> print(chunks(found).splitlines()[2])
        | ResNet-18 | 47.0, **38.5**, 39.9 (28 Nov) | | |
    """
    lines = []
    for case in NETWORKS:
        cells = []
        for chip in CHIPS:
            found = _chunks(rows, chip, case)
            numbers = [row["cycles_per_step"] / 1e6 for row in found if row]
            texts = [f"**{n:.1f}**" if n == min(numbers) else f"{n:.1f}" for n in numbers]
            cells.append("" if None in found else f"{', '.join(texts)} ({_dates(found)})")
        if any(cells):
            lines.append([case, *cells])
    heads = "millions of cycles: together, in pairs, one by one", "v5e", "v5p", "v6e"
    odd = ", ".join(f"{pairs_in_odd_cohort(rows, n):.3f} for {word}" for n, word in _ODD.items())
    text = (
        "The last pair of an odd cohort is filled with a repeated client. The cycles in pairs over "
        "those one by one are\ntherefore, in the geometric mean of these cases, "
    )
    return f"{_table(heads, lines)}\n{text}{odd} clients.\n"


def pairs_in_odd_cohort(rows: Rows, number: int) -> float:
    """Returns the mean quotient of cycles in pairs and one by one for an odd number of clients."""
    found = [_chunks(rows, chip, case) for case in NETWORKS for chip in CHIPS]
    quotients = [
        pairs["cycles_per_step"] / alone["cycles_per_step"]
        for _, pairs, alone in found
        if pairs and alone
    ]
    return statistics.geometric_mean(quotients) * (number + 1) / number


def _chunks(rows: Rows, chip: str, case: str) -> list[Row | None]:
    """The rows together, in pairs and one by one."""
    return [rows.get(f"{chip} {case} {way}") for way in ("vmapped", "auto", "sequential")]


def gpus(rows: Rows) -> str:
    """Returns kernels of a local step and the estimate of a round on one GPU.

    Example:
        >>> row = {"kernels_per_step": 7.0, "kernels_per_round": 230.0, "bytes_per_round": 0.0,
        ...        "flops_per_round": 0.0, "host_iterations_per_round": 0,
        ...        "roofline_seconds": 2.8e-4, "date": "2026-11-28"}
        >>> print(gpus({"h200 W1 auto": row}).splitlines()[2])
        | W1, 100 clients | 7, 510 µs | not compiled | 28 Nov |
    """
    lines = []
    for case, title in TITLES.items():
        one = rows.get(f"{GPU} {case} auto")  # all clients at once
        other = rows.get(f"{GPU} {case} sequential")
        if one is not None:
            absent = "" if case == "sweep" else NONE
            lines.append([title, _kernels(one), _kernels(other, absent), _dates([one, other])])
    return _table(("program", "vmapped", "one after the other", "compiled"), lines)


def halves(rows: Rows) -> str:
    """Returns the figures in bfloat16: time, bytes, and in which dtype results and sums are.

    Example:
        >>> row = {"cycles_per_step": 2e7, "bytes_per_step": 1e9, "date": "2026-11-28",
        ...        "half_precision": {"wide_products": 3, "half_products": 1, "half_sums": 0}}
        >>> print(halves({"v5e:2x2 ResNet-18-bfloat16 auto": row}).splitlines()[2])
        | ResNet-18, v5e | 20.0 M | 1.00 GB | 3 | 1 | 0 | | 28 Nov |
    """
    lines = []
    for name in NETWORKS:
        for chip in (V5E, GPU):
            row = rows.get(f"{chip} {name}-bfloat16 auto")
            if row is None:
                continue
            amount = _kernels(row) if chip == GPU else f"{row['cycles_per_step'] / 1e6:.1f} M"
            found = row.get("half_precision", {})
            lines.append([
                f"{name}, {chip.partition(':')[0]}",
                amount,
                bytes_text(row["bytes_per_step"]),
                *(f"{found[kind]:,}" if found else "" for kind in _HALVES),
                ", ".join(f"{n:,} {name}" for name, n in row.get("accumulators", {}).items()),
                _dates([row]),
            ])  # fmt: skip
    heads = (
        "in bfloat16", "per local step: kernels and estimated round, or cycles",
        "bytes per local step", *_HALVES.values(), "instructions of matrix units by dtype of sums",
        "compiled",
    )  # fmt: skip
    return _table(heads, lines)


_ODD = {3: "three", 5: "five", 7: "seven", 9: "nine"}
_WAYS = "vmapped", "sequential", "auto"
_HALVES = {
    "wide_products": "products with float32 results",
    "half_products": "with bfloat16 results",
    "half_sums": "reductions in bfloat16",
}
SECTIONS: Mapping[str, Callable[[Rows], str]] = {
    "tpus": tpus, "chunks": chunks, "halves": halves, "gpus": gpus,
}  # fmt: skip


def _cycles(row: Row | None) -> str:
    return f"{count_text(row['cycles_per_step'])}, {bytes_text(row['temporaries'])}" if row else ""


def _kernels(row: Row | None, absent: str = NONE) -> str:
    if row is None:
        return absent
    seconds = estimate(row, target(GPU).rates)["total"]
    return f"{row['kernels_per_step']:,.0f}, {time_text(seconds)}"


def _quotient(rows: Rows, chip: str, case: str) -> str:
    """The time together over that one after the other."""
    found = [rows.get(f"{chip} {case} {way}") for way in ("vmapped", "sequential")]
    if None in found:
        return ""
    one, other = (row["cycles_per_step"] for row in found if row)
    return f"{one / other:.2f}" if one > 0.1 * other else f"{one / other:.2g}"


def _dates(rows: Sequence[Row | None]) -> str:
    """The days of some rows, for example ``28 Nov``."""
    days = sorted({row["date"] for row in rows if row})
    texts = [f"{day.day} {day:%b}" for day in map(datetime.date.fromisoformat, (days[0], days[-1]))]
    return " to ".join(dict.fromkeys(texts))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = ("".join(f"| {cell} " if cell else "| " for cell in line) + "|" for line in lines)
    return "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *body]) + "\n"


if __name__ == "__main__":
    main()
