"""The page of reproductions: current, complete, and read from the reports."""

import importlib
import inspect
import json
import re
import shlex

import pytest
import tyro

from experiments.harness.options import settings
from experiments.reproductions import __main__ as script
from experiments.reproductions import page, reading
from experiments.reproductions.page import Paper, Row
from experiments.reproductions.reading import Result

REPORT = """# A report

| setting | method | accuracy |
|---|---|---|
| IID | a | 0.5 |
| IID | b |  |
| skewed | a | 0.25 |

## The paper's claims

| claim | found | holds | our threshold |
|---|---|---|---|
| a beats b | a 1, b 2 | no | > 1 x |
| c \\| d | 3 | yes |  |
| e | 4 | no |  |

## Where the paper's statements do not hold here

* a beats b: b has more steps: 5.
* e: not explained.

`python -m experiments.x`
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of results with one report, and a cache of its own."""
    monkeypatch.setattr(reading, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results")
    reading.sections.cache_clear()
    made = tmp_path / "results" / "paper" / "run-0.5.md"
    made.parent.mkdir(parents=True)
    made.write_text(REPORT)
    made.with_name("run-0.5.json").write_text(json.dumps({"command": "python -m experiments.x"}))
    yield tmp_path
    reading.sections.cache_clear()


def test_reports_are_read(folder):
    result = Result("paper/run-0.5")
    assert [r.name for r in reading.all_results()] == [result.name]
    assert result.exists
    assert not Result("paper/run-0").exists
    assert (result.title, result.commands) == ("A report", "`python -m experiments.x`")
    assert result.values("accuracy", where={"setting": "IID"}) == "a 0.5"
    assert result.values("accuracy", rows=("a",)) == "a 0.5, a 0.25"
    assert result.claims["claim"].tolist() == ["a beats b", "c \\| d", "e"]
    assert [result.reason(claim) for claim in ("a beats b", "e", "a")] == [
        "b has more steps: 5", "", "",
    ]  # fmt: skip
    assert result.line("`python").endswith("experiments.x`")
    with pytest.raises(ValueError, match=r"run-0\.5: no table below 'Missing' with"):
        result.table("Missing", "accuracy")


def test_rows_and_claims(folder):
    rows = (
        Row("found", "1.0", "why", ("paper/run-0.5",), lambda r: r.values("accuracy"), "full"),
        Row("second choice", "1", "", ("paper/no", "paper/run-0.5"), lambda r: "x", "full"),
        Row("missing", "2", "", ("paper/no",), lambda r: "never", "full"),
        Row("not in the report", "2", "", ("paper/run-0.5",), lambda r: "", "full"),
        Row("cannot run", "3", "no data"),
        Row("added", "3", "", ("paper/run-0.5",), lambda r: "x", "full", "more"),
    )
    other = folder / "results" / "paper" / "other.md"
    other.write_text("# Other")
    facts = {"earlier": ["python -m experiments.w"], "command": "python -m experiments.y"}
    other.with_suffix(".json").write_text(json.dumps(facts))
    papers = [Paper("P", rows, {"e": "noise"}, {"note": "N"})]
    scripts = {"experiments.x": "X.", "experiments.z": "Z."}
    text = page.page(papers, reading.all_results(), scripts, folder)
    lines = text.splitlines()
    link = "[paper/run-0.5.md](results/paper/run-0.5.md)"
    assert "* **note**: N" in lines
    command = "`python -m experiments.x`"
    assert f"| found | 1.0 | a 0.5, a 0.25 ({link}) | why | {command} |" in lines
    assert f"| second choice | 1 | x ({link}) |  | {command}; not run yet: `full` |" in lines
    assert "| missing | 2 | not run yet |  | `full` |" in lines
    assert "| not in the report | 2 | not run yet |  | `full` |" in lines
    assert "| cannot run | 3 | - | no data | - |" in lines
    assert f"| added | 3 | x ({link}) |  | {command}, then `more` |" in lines
    reason = "b has more steps: 5"
    assert f"| a beats b (our threshold: > 1 x) | no | a 1, b 2 | {reason} | {link} |" in lines
    assert f"| e | no | 4 | noise | {link} |" in lines
    other = "[paper/other.md](results/paper/other.md)"
    commands = "`python -m experiments.w`, then `python -m experiments.y`"
    assert f"| {other} | Other | {commands} |" in lines
    assert "A report" not in text
    assert "* `python -m experiments.z`: Z." in lines
    assert "X." not in text


def test_a_row_says_which_runs_its_report_does_not_have_yet(folder):
    report = folder / "results" / "paper" / "run-0.5.md"
    report.write_text(
        REPORT.replace("# A report\n", "# A report\n\nNot finished yet: b has none.\n")
    )
    row = Row("found", "1", "", ("paper/run-0.5",), lambda r: r.values("accuracy"), "full")
    text = page.page([Paper("P", (row,))], [], {}, folder)
    assert "| a 0.5, a 0.25. Not finished yet: b has none. ([paper" in text


def test_page_is_current():
    """``python -m experiments.reproductions`` writes it."""
    assert script.PAGE.read_text() == script.text()


def test_every_claim_that_does_not_hold_is_explained():
    assert "| not explained |" not in script.PAGE.read_text()


def test_page_names_every_script_and_existing_files():
    text = script.PAGE.read_text()
    for path in re.findall(r"\]\(([^)]*)\)", text):
        assert (script.PAGE.parent / path).exists(), path
    scripts = reading.all_scripts()
    assert {"experiments.fedswa.table2", "experiments.reproductions"} <= set(scripts)
    assert all(scripts.values())
    assert not [module for module in scripts if module not in text]


def test_every_row_has_a_result_or_a_reason():
    for paper in script.PAPERS:
        for row in paper.rows:
            assert row.item, paper.title
            assert row.paper, row.item
            assert bool(row.results) == (row.ours is not None), row.item
            assert (row.results and row.command) or row.remark, row.item
            for name in re.findall(r"\*\*(\w+)\*\*", row.remark):
                assert name in paper.notes, row.item


# The numbers of the papers' tables and figures, by the place of the paper on the page.
NUMBERED = {
    0: {"Table": range(1, 9), "Figure": range(1, 13)},
    1: {"Table": range(1, 3), "Figure": range(1, 8)},
    2: {
        "Table": (2.1, 3.1),
        "Figure": (1.1, 2.1, *(f"3.{i}" for i in range(1, 8)), *(f"4.{i}" for i in range(1, 15))),
    },
    3: {"Figure": range(1, 6)},
}


def numbers(item, kind):
    """The numbers in "Figures 1, 4 and 6 to 10: ..." or "Figure 3a: ..."."""
    listed = re.match(rf"{kind}s? ([\d., ]*\d[ab]?(?: (?:and|to) \d[\d.]*[ab]?)*)", item)
    found = []
    for first, last in re.findall(
        r"([\d.]+\d|\d)[ab]?(?: to ([\d.]+))?", listed[1] if listed else ""
    ):
        chapter, _, end = last.rpartition(".")
        start = int(first.rpartition(".")[2])
        prefix = f"{chapter}." if chapter else ""
        found += [f"{prefix}{i}" for i in range(start, int(end) + 1)] if last else [first]
    return found


def test_numbers_of_items():
    assert numbers("Figures 1, 4 and 6 to 8: surfaces", "Figure") == ["1", "4", "6", "7", "8"]
    assert numbers("Figures 3.1 to 3.3: spread", "Figure") == ["3.1", "3.2", "3.3"]
    assert numbers("Figures 3a and 6: CIFAR-10", "Figure") == ["3", "6"]
    assert numbers("Table 2, MNIST, IID", "Table") == ["2"]
    assert numbers("Section 4: gap", "Table") == []


@pytest.mark.parametrize("place", NUMBERED)
def test_every_table_and_figure_of_a_paper_has_a_row(place):
    items = [row.item for row in script.PAPERS[place].rows]
    for kind, expected in NUMBERED[place].items():
        found = {number for item in items for number in numbers(item, kind)}
        assert found >= set(map(str, expected)), kind


def commands_of_results():
    """The last command of every report and the options that it recorded."""
    for result in reading.all_results():
        facts = json.loads(result.file(".json").read_text())
        yield pytest.param(facts["command"], facts.get("options", {}), id=result.name)


@pytest.mark.parametrize(("command", "recorded"), list(commands_of_results()))
def test_recorded_commands_give_the_recorded_options(command, recorded):
    """A command that is repeated from nothing does what wrote the files."""
    module, *arguments = shlex.split(command.removeprefix("python -m "))
    program = importlib.import_module(module)
    if hasattr(program, "main"):
        kind = next(iter(inspect.signature(program.main).parameters.values())).annotation
    else:
        kind = program.Options
    options = tyro.cli(kind, args=arguments)
    assert "--finished" not in arguments
    chosen = json.loads(json.dumps(settings(options), default=str).replace("Infinity", "null"))
    known = set(chosen) & set(recorded)
    assert {name: chosen[name] for name in known} == {name: recorded[name] for name in known}
