"""The pages of reproductions: current, complete, and read from the reports."""

import importlib
import inspect
import json
import re
import shlex

import pytest
import tyro

from experiments.harness.options import settings
from experiments.reproductions import __main__ as script
from experiments.reproductions import fedswa, known, page, reading
from experiments.reproductions.page import Paper, Row
from experiments.reproductions.reading import Result
from experiments.reproductions.verdicts import OTHER, SHORT, UNDECIDED, VERDICTS

REPORT = """# A report

| setting | method | accuracy |
|---|---|---|
| IID | a | 0.5 |
| IID | b |  |
| skewed | a | 0.25 |

## The paper's claims

| claim | found | agrees | kind | seeds | low | high | our threshold |
|---|---|---|---|---|---|---|---|
| a beats b | a 1, b 2 | no | seeds | 3 | -2 | -1 | > 1 x |
| c \\| d | 3 | yes | exact | 1 | 0 | 0 |  |
| e | 4 | no | seeds |  |  |  |  |
| f is flat | 5 | yes | seeds | 4 | 0.25 | 0.5 |  |

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
    assert result.claims["claim"].tolist() == ["a beats b", "c \\| d", "e", "f is flat"]
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
    paper = Paper("P", "p", rows, lambda: "A story.", {"e": "noise"}, {"note": "N"}, "flat")
    text = page.paper_page(paper, folder)
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
    margin = "-2 to -1; 3 seeds"
    claim = f"a beats b (our threshold: > 1 x) | does not hold |  | a 1, b 2 | {margin} |  | {link}"
    assert f"| {claim} |" in lines
    assert f"| c \\| d | holds |  | 3 | 0 |  | {link} |" in lines
    assert f"| e | undecided | no interval over seeds | 4 | - | noise | {link} |" in lines
    assert "| missing: 2 | not run |  | - | - |  | - |" in lines
    assert "cannot run: 3" not in text  # no claim
    assert lines.index("## Beside the paper") < lines.index(
        f"| f is flat | holds |  | 5 | 0.25 to 0.5; 4 seeds |  | {link} |"
    )
    first = page.main_page([paper], [paper._replace(title="Q", beside="")]).splitlines()
    counts = [line for line in first if line.startswith("| [")]
    assert counts == [
        "| [P](reproductions/p.md) | 1 | 1 | 0 | 1 | 0 | 1 |",
        "| [P](reproductions/p.md) | 1 | 0 | 0 | 0 | 0 | 0 |",
        "| [Q](reproductions/p.md) | 2 | 1 | 0 | 1 | 0 | 1 |",
    ]
    assert "A story. [All claims](reproductions/p.md)." in first
    scripts = {"experiments.x": "X.", "experiments.z": "Z."}
    further = page.further_page([text], [paper], reading.all_results(), scripts, folder)
    other = "[paper/other.md](results/paper/other.md)"
    commands = "`python -m experiments.w`, then `python -m experiments.y`"
    assert f"| {other} | Other | {commands} |" in further
    assert "A report" not in further
    assert "* `python -m experiments.z`: Z." in further
    assert "X." not in further


def test_claims_are_those_of_the_first_report_of_a_row_and_count_once(folder):
    other = folder / "results" / "paper" / "newer.md"
    other.write_text(REPORT.replace("a beats b", "a beats c"))
    other.with_suffix(".json").write_text(json.dumps({"command": "python -m experiments.x"}))
    results = ("paper/newer", "paper/run-0.5")
    rows = [Row(name, "1", "", results, lambda r: "x") for name in ("one", "two")]
    claims = page.judged(Paper("P", "p", rows, lambda: ""))
    assert [claim.claim.partition(" (")[0] for claim in claims] == [
        "a beats c", "c \\| d", "e", "f is flat",
    ]  # fmt: skip
    missing = Row("three", "1", "", ("paper/none",), lambda r: "x", "python")
    rows = (missing, missing._replace(item="ours", stated=False), Row("drawing", "1", "no data"))
    claims = page.judged(Paper("P", "p", rows, lambda: ""))
    assert [(claim.claim, claim.verdict) for claim in claims] == [("three: 1", "not run")]


def test_a_row_says_which_runs_its_report_does_not_have_yet(folder):
    report = folder / "results" / "paper" / "run-0.5.md"
    report.write_text(
        REPORT.replace("# A report\n", "# A report\n\nNot finished yet: b has none.\n")
    )
    row = Row("found", "1", "", ("paper/run-0.5",), lambda r: r.values("accuracy"), "full")
    text = page.paper_page(Paper("P", "p", (row,), lambda: ""), folder)
    assert "| a 0.5, a 0.25. Not finished yet: b has none. ([paper" in text


@pytest.fixture(scope="module")
def pages():
    """The pages as the files have them now."""
    return script.pages()


def test_pages_are_current(pages):
    """``python -m experiments.reproductions`` writes them."""
    assert {path.name: path.read_text() for path in pages} == {
        path.name: text for path, text in pages.items()
    }
    assert set(pages) == {script.DOCS / "reproductions.md", *script.DOCS.glob("reproductions/*.md")}


def test_every_claim_has_a_verdict_and_other_settings_are_named():
    for paper in (*script.PAPERS, *script.OTHERS):
        for claim in page.judged(paper):
            assert claim.verdict in VERDICTS, claim
            assert bool(claim.why) == (claim.verdict in (OTHER, UNDECIDED, SHORT)), claim


def test_reports_with_claims_have_known_differences_or_decide():
    """Every pattern of a difference, a length or a cost is about a report that exists."""
    names = [result.name for result in reading.all_results()]
    for entry in (*known.DIFFERENCES, *known.LENGTHS):
        if not entry.reports.startswith(("fedswa/(table2|averages", "fco/(lasso|lowrank)")):
            assert any(re.match(entry.reports, name) for name in names), entry
    narrow = known.differences(Result("fedswa/table2-cpu-1000/x"), "FedSWA above FedAvg, FedSAM")
    assert len(narrow) == 2
    assert "6-16-120-84" in narrow[0]
    assert "weight decay" in narrow[1]
    wide = known.differences(Result("fedswa/table2-cpu-wide-1000/x"), "above FedSAM-program")
    assert wide == ["LeNet-5 of 32-32-192-96 channels and units, half of the program's"]
    assert not known.differences(Result("fedswa/table2-gpu-1000/x"), "FedMoSWA above FedAvg")
    assert known.least_seeds(Result("favano/mnist/table2")) == 5
    assert known.least_seeds(Result("fedswa/table2-cpu-1000/x")) == 3
    assert known.length(Result("favano/mnist/table2")) == (5000, 5000)
    assert known.length(Result("fedswa/drift/drift")) is None


def test_training_losses_and_gaps_are_as_remarks_say():
    """A method that is ahead either fits better or has the smaller gap, as its remark says."""
    checked = set()
    for claim in page.judged(fedswa.PAPER):
        if claim.remark not in (fedswa.UNDERFIT, fedswa.GENERALISES_LESS):
            continue
        table = claim.report.table("", "accuracy", "train loss").set_index("method")
        columns = ["accuracy", "train loss", "test - train loss"]
        table = table[columns].astype(float)
        own, others = re.fullmatch(
            r"(?:.*: )?(\S+) is more accurate than (.*)", claim.claim
        ).groups()
        rest = table.loc[[name for name in others.split(", ") if name in table.index]]
        ahead = rest[rest["accuracy"] > table.loc[own, "accuracy"]]
        fits = ahead["train loss"] < table.loc[own, "train loss"]
        if claim.remark == fedswa.UNDERFIT:
            assert fits.all(), claim
        else:
            gaps = ahead["test - train loss"] < table.loc[own, "test - train loss"]
            assert len(ahead), claim
            assert (gaps & ~fits).all(), claim
        checked.add(claim.remark)
    assert len(checked) == 2


def test_pages_name_every_script_and_existing_files(pages):
    text = "\n".join(pages.values())
    for path, page_text in pages.items():
        for link in re.findall(r"\]\(([^)]*)\)", page_text):
            assert (path.parent / link).exists(), (path.name, link)
    scripts = reading.all_scripts()
    assert {"experiments.fedswa.table2", "experiments.reproductions"} <= set(scripts)
    assert all(scripts.values())
    assert not [module for module in scripts if module not in text]


def test_every_row_has_a_result_or_a_reason():
    for paper in (*script.PAPERS, *script.OTHERS):
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
