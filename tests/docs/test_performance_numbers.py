"""Numbers of docs/performance.md are those of benchmarks/results, as far as they are printed."""

import json
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text()
ROUNDS = {  # column -> candidate; the table is in milliseconds
    "ours": "ours",
    "ours-1dev": "ours-1dev",
    "DrJAX, 2 devices": "drjax-mesh",
    "plain vmap": "jax-vmap",
    "plain map": "jax-map",
    "torch, 2 threads": "torch-loop",
    "torch, 1 thread": "torch-loop-1",
    "FedJAX": "fedjax",
}
EPYC = {
    "ours": "ours",
    "ours-1dev": "ours-1dev",
    "pfl, 2 threads": "pfl",
    "torch, 2 threads": "torch-loop",
}
SWEEP = {
    "sweep": "sweep",
    "loop, all cores": "loop",
    "loop, one device": "loop-1dev",
    "all vmapped": "vmap",
}


def cases(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["cases"]


def table(first: str) -> list[dict[str, str]]:
    """Rows of the table whose header starts with these columns."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(split[0], row, strict=True)) for row in split[2:]]


def assert_printed(text: str, value: float) -> None:
    """The printed number is the value, rounded to the printed digits."""
    number = re.sub(r"[*x ]|ms", "", text)
    digits = number.partition(".")[2]
    zeros = 0 if "." in number else len(number) - len(number.rstrip("0"))
    unit = 10.0 ** (zeros - len(digits))
    scale = 1000 if text.endswith("ms") else 1
    assert abs(float(number) - scale * value) <= 0.5001 * unit, (text, value)


@pytest.mark.parametrize(
    ("results", "first", "columns", "scale"),
    [
        ("rounds", "milliseconds per round | floor | ours | ours-1dev", ROUNDS, 1000),
        ("sweep", "seconds | floor | sweep", SWEEP, 1),
        (
            "epyc/rounds",
            "milliseconds per round | floor | ours | ours-1dev | pfl, 2 threads",
            EPYC,
            1000,
        ),
    ],
)
def test_seconds_of_a_table(results, first, columns, scale):
    measured = cases(results)
    rows = table(first)
    assert [next(iter(row.values())).split()[0] for row in rows] == list(measured)
    for row, case in zip(rows, measured.values(), strict=True):
        assert_printed(row["floor"], scale * case["floor_seconds"])
        for column, candidate in columns.items():
            assert bool(row[column]) == (candidate in case["candidates"]), (row, column)
            if row[column]:
                assert_printed(row[column], scale * case["candidates"][candidate]["seconds"])


def test_ratios_of_the_first_table():
    measured = cases("rounds")
    for name, printed in re.findall(r"^\| (W\d): .*? \| (.*) \|$", PAGE, re.MULTILINE):
        targets = [item for item in measured[name]["ratios"] if item["target"] is not None]
        assert printed.count(" x") == len(targets)
        ratios = sorted(item["ratio"] for item in targets)
        shown = sorted(printed.split(", "), key=lambda text: float(text.split()[0]))
        for text, ratio in zip(shown, ratios, strict=True):
            assert_printed(text, ratio)


def test_seconds_of_cells():
    measured = cases("cells")
    lines = re.findall(r"^\| (M = \d+) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for name, text in lines:
        cells = [cell.strip() for cell in text.split("|")]
        for part, kind, ours in ((cells[:3], "run", "run"), (cells[3:], "sweep", "sweep")):
            case = measured[f"{name.replace(' ', '')} {kind}"]
            assert_printed(part[0], case["candidates"][ours]["seconds"])
            assert_printed(part[1], case["candidates"]["numpy"]["seconds"])
            assert_printed(part[2], case["ratios"][0]["ratio"])


def test_quotients_of_evaluations():
    columns = {
        "one model": "evaluation",
        "three models, vmapped": "evaluation-seeds",
        "one model, batches of 1,000": "evaluation-1000",
    }
    rows = table("evaluation / training, per example | one model")
    for row, case in zip(rows, cases("evaluation").values(), strict=True):
        for column, candidate in columns.items():
            measured = case["candidates"][candidate]
            wall, processor = row[column].removesuffix(")").split(" (")
            assert_printed(wall, measured["ratio"])
            assert_printed(processor, measured["cpu_ratio"])


def test_seconds_of_composite_problems():
    columns = {
        "FedAvg, no regulariser": "fedavg",
        "FedDualAvg-OSP": "feddualavg_osp",
        "FedMiD": "fedmid",
        "FedDualAvg": "feddualavg",
    }
    rows = table("seconds per sweep | floor")
    for row, case in zip(rows, cases("composite").values(), strict=True):
        for column, candidate in columns.items():
            assert_printed(row[column], case["candidates"][candidate]["seconds"])
        assert_printed(row["floor"], case["floor_seconds"])
        seconds, quotient = row["its runs one by one"].removesuffix(" x)").split(" (")
        assert_printed(seconds, case["candidates"]["loop"]["seconds"])
        assert_printed(quotient, case["ratios"][0]["ratio"])


def test_tables_of_the_queue_for_gpus():
    """They are what ``python -m benchmarks.gpu_table`` writes."""
    from benchmarks import gpu_table

    _, _, rest = PAGE.partition(gpu_table.BEGIN)
    assert rest.partition(gpu_table.END)[0] == gpu_table.section(gpu_table.kept())
