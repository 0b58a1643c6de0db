"""The pages' text from rows: one per table, figure or theorem of a paper, and its claims."""

import collections
import os.path
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.harness.tables import EXACT, TOLERANCES
from experiments.reproductions import known
from experiments.reproductions.reading import RESULTS, Result
from experiments.reproductions.verdicts import RULE, VERDICTS, Evidence, verdict

Reading = Callable[[Result], str]
NOT_YET = "not run yet"


class Row(NamedTuple):
    """A table, figure or theorem of a paper."""

    item: str
    paper: str  # its numbers or statement
    remark: str  # what explains the difference, or why it cannot run here
    results: tuple[str, ...] = ()  # reports; the first one that exists is quoted
    ours: Reading | None = None  # the quotation; "" if the report does not have it yet
    command: str = ""  # of the first report; "" if there is none
    further: str = ""  # a command that adds the quoted numbers to the report
    stated: bool = True  # by the paper, so that it counts as a claim as long as nothing was run

    @property
    def found(self) -> Result | None:
        """The first report that exists."""
        return next((r for r in map(Result, self.results) if r.exists), None)


class Paper(NamedTuple):
    """A paper with its rows."""

    title: str
    name: str  # of its page
    rows: Sequence[Row]
    story: Callable[[], str]  # a paragraph: what was claimed, what was run, what came out
    remarks: Mapping[
        str, str
    ] = {}  # start of a claim's text: on claims that our numbers differ from
    notes: Mapping[str, str] = {}  # by the name that remarks refer to
    beside: str = ""  # pattern of ``report: claim``: those that are not in the paper's tally


class Judged(NamedTuple):
    """A claim with its verdict."""

    claim: str
    verdict: str
    why: str
    found: str = "-"
    margin: str = "-"
    remark: str = ""
    report: Result | None = None
    beside: bool = False


def judged(paper: Paper) -> list[Judged]:
    """The verdicts of a paper's claims; a table or figure without any result is one claim."""
    claims, seen = [], set()
    for row in paper.rows:
        result = row.found
        if result is None:
            if row.command and row.stated:
                claims.append(Judged(f"{row.item}: {row.paper}", *verdict(None), remark=row.remark))
        elif result.name not in seen:
            seen.add(result.name)
            claims += [_judged(paper, result, c) for c in result.claims.to_dict("records")]
    return claims


def _judged(paper: Paper, result: Result, claim: Mapping[str, str]) -> Judged:
    text = ": ".join(filter(None, [claim.get("setting"), claim["claim"]]))
    ours = claim.get("our threshold", "")
    evidence = Evidence.of(claim)
    differences = known.differences(result, text)
    decided = verdict(evidence, differences, known.length(result), known.least_seeds(result))
    remark = ""
    if claim["agrees"] != "yes":
        remark = _remark(paper, result, claim["claim"])
    beside = bool(paper.beside) and re.search(paper.beside, f"{result.name}: {text} ({ours})")
    shown = text + f" (our threshold: {ours})" * bool(ours)
    margin = _margin(evidence)
    return Judged(shown, *decided, claim["found"], margin, remark, result, bool(beside))


def _margin(evidence: Evidence) -> str:
    if evidence.kind == EXACT:
        return f"{evidence.low:.3g}"
    if evidence.seeds < 2:
        return "one seed" if evidence.seeds else "-"
    return f"{evidence.low:.3g} to {evidence.high:.3g}; {evidence.seeds} seeds"


def _remark(paper: Paper, result: Result, claim: str) -> str:
    """The first remark whose key is the beginning of the claim or of ``report: claim``."""
    texts = (claim, f"{result.name}: {claim}")
    remarks = (
        why for start, why in paper.remarks.items() if any(text.startswith(start) for text in texts)
    )
    return next(remarks, "")


def decided(claims: Sequence[Judged]) -> str:
    """``holds: a; b. does not hold: c.``: claims by their verdicts, without thresholds of ours."""
    parts = []
    for name in VERDICTS:
        texts = [claim.claim.partition(" (our")[0] for claim in claims if claim.verdict == name]
        parts += [f"*{name}*: {'; '.join(texts)}."] if texts else []
    return " ".join(parts)


def main_page(papers: Sequence[Paper], others: Sequence[Paper]) -> str:
    """The first page: verdicts of all papers, the rule, a paragraph per paper.

    Args:
        others: pages without a paper, or with a benchmark of others.
    """
    verdicts = [(paper, judged(paper)) for paper in papers]
    tally = [_tally(p, [c for c in claims if not c.beside]) for p, claims in verdicts]
    beside = [_tally(p, [c for c in claims if c.beside]) for p, claims in verdicts]
    beside += [_tally(paper, judged(paper)) for paper in others]
    tolerances = "\n".join(f"| {name} | {value:g} |" for name, value in TOLERANCES.items())
    parts = ["# Reproductions", INTRODUCTION, _counts(tally), BESIDE, _counts(beside)]
    parts += ["## The rule", RULE, "| tolerance | |\n|---|---|\n" + tolerances, READING]
    for paper in (*papers, *others):
        parts += [f"## {paper.title}", f"{paper.story()} [All claims]({_page(paper)})."]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """How many claims of each paper our runs confirm. Generated by
`python -m experiments.reproductions` from the files under `experiments/results`; every number is
quoted from there, and rows fill themselves once their files exist."""
BESIDE = """Beside the papers: measurements that are not the paper's claims (other data that are
small enough for whole grids, flatness, comparisons of ours), and PFLlib's page."""
READING = """A margin is what a claim says is positive: the points by which one method is ahead of
another, or what is left of a tolerance; of several parts, the least of their lower and of their
upper ends. Pages per paper have every table, figure and theorem beside our results, then every
claim with its margin, its verdict and what decided it. A claim that was tested in several settings
has a row for each. A table or figure without any result counts once. Statements that are false or
misprinted as they stand are on [the page of errata](errata.md); where a claim says "corrected", the
form there was tested. What is left is on
[a page of further reports and scripts](reproductions/further.md)."""
COUNTS = f"| paper | {' | '.join(VERDICTS)} |\n|---|{'---|' * len(VERDICTS)}"


def _page(paper: Paper) -> str:
    return f"reproductions/{paper.name}.md"


def _tally(paper: Paper, claims: Sequence[Judged]) -> tuple[str, list[int]]:
    counts = collections.Counter(claim.verdict for claim in claims)
    return f"[{paper.title}]({_page(paper)})", [counts[name] for name in VERDICTS]


def _counts(rows: Sequence[tuple[str, list[int]]]) -> str:
    lines = [f"| {title} | {' | '.join(map(str, row))} |" for title, row in rows if any(row)]
    return "\n".join([COUNTS, *lines])


def paper_page(paper: Paper, folder: pathlib.Path) -> str:
    """A paper's page; links are relative to its folder."""
    parts = [f"# {paper.title}", f"{paper.story()} The rule of the verdicts: {BACK}."]
    parts += ["\n".join(f"* **{name}**: {text}" for name, text in paper.notes.items())]
    parts += ["## Tables, figures and theorems"]
    parts += ["\n".join([HEADER, *(_row(row, folder) for row in paper.rows)])]
    claims = judged(paper)
    for heading, beside in (("Claims", False), ("Beside the paper", True)):
        chosen = [_line(claim, folder) for claim in claims if claim.beside == beside]
        parts += [f"## {heading}", "\n".join([CLAIMS_HEADER, *chosen])] if chosen else []
    return "\n\n".join(part for part in parts if part) + "\n"


BACK = "[reproductions](../reproductions.md)"
HEADER = "| what | paper | ours | why they differ | command |\n|---|---|---|---|---|"
CLAIMS_HEADER = "| claim | verdict | why | ours | margin | remark | report |\n|" + "---|" * 7


def _row(row: Row, folder: pathlib.Path) -> str:
    ours, command = "-", f"`{row.command}`" if row.command else "-"
    if row.results:
        found = row.found
        text = row.ours(found) if found is not None and row.ours is not None else ""
        ours = NOT_YET
        if found is not None and text:
            first = found.name == row.results[0]
            parts = filter(None, [text, found.line("Not finished yet: ", "")])
            ours = f"{'. '.join(parts)} ({_link(found, folder)})"
            command = found.commands + f", then `{row.further}`" * bool(row.further)
            command += f"; {NOT_YET}: `{row.command}`" * (not first)
    return f"| {row.item} | {row.paper} | {ours} | {row.remark} | {command} |"


def _line(claim: Judged, folder: pathlib.Path) -> str:
    report = _link(claim.report, folder) if claim.report else "-"
    cells = (claim.claim, claim.verdict, claim.why, claim.found, claim.margin, claim.remark, report)
    return f"| {' | '.join(cells)} |"


def further_page(
    texts: Sequence[str],
    papers: Sequence[Paper],
    results: Sequence[Result],
    scripts: Mapping[str, str],
    folder: pathlib.Path,
) -> str:
    """The reports that no row names, and the scripts that no other page names."""
    named = {name for paper in papers for row in paper.rows for name in row.results}
    listed = [
        f"| {_link(r, folder)} | {r.title} | {r.commands} |" for r in results if r.name not in named
    ]
    parts = ["# Further reports and scripts", f"Those that {BACK} do not quote."]
    if listed:
        head = "| report | title | command |\n|---|---|---|"
        parts += ["## Reports", "\n".join([head, *listed])]
    text = "\n".join([*texts, *listed])
    lines = [f"* `python -m {m}`: {line}" for m, line in scripts.items() if m not in text]
    parts += ["## Scripts", "\n".join(lines)] if lines else []
    return "\n\n".join(parts) + "\n"


def _link(result: Result, folder: pathlib.Path) -> str:
    file = result.file(".md")
    path = pathlib.PurePath(os.path.relpath(file, folder)).as_posix()
    return f"[{file.relative_to(RESULTS).as_posix()}]({path})"
