"""The page of reproductions: current, complete, and read from the reports."""

import json
import re

import pytest

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
    assert (result.title, result.command) == ("A report", "python -m experiments.x")
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
    )
    other = folder / "results" / "paper" / "other.md"
    other.write_text("# Other")
    other.with_suffix(".json").write_text(json.dumps({"command": "python -m experiments.y"}))
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
    reason = "b has more steps: 5"
    assert f"| a beats b (our threshold: > 1 x) | no | a 1, b 2 | {reason} | {link} |" in lines
    assert f"| e | no | 4 | noise | {link} |" in lines
    other = "[paper/other.md](results/paper/other.md)"
    assert f"| {other} | Other | `python -m experiments.y` |" in lines
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
