"""The page's text from rows: one per table, figure or theorem of a paper, and its claims."""

import os.path
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from experiments.reproductions.reading import RESULTS, Result

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


class Paper(NamedTuple):
    """A paper with its rows."""

    title: str
    rows: Sequence[Row]
    explained: Mapping[str, str] = {}  # start of a claim's text: why it does not hold here
    notes: Mapping[str, str] = {}  # by the name that remarks refer to


def page(
    papers: Sequence[Paper],
    results: Sequence[Result],
    scripts: Mapping[str, str],
    folder: pathlib.Path,
) -> str:
    """The whole page; links are relative to its folder.

    Args:
        results: all reports; those that no row names are listed at the end.
        scripts: all scripts with a line on each; those that the page does not name are listed, too.
    """
    parts = [INTRODUCTION]
    for paper in papers:
        parts += [f"## {paper.title}"]
        parts += ["\n".join(f"* **{name}**: {text}" for name, text in paper.notes.items())]
        parts += [*_rows(paper.rows, folder), *_claims(paper, folder)]
    parts = [part for part in parts if part]
    named = {name for paper in papers for row in paper.rows for name in row.results}
    listed = [
        f"| {_link(r, folder)} | {r.title} | {r.commands} |" for r in results if r.name not in named
    ]
    if listed:
        head = "| report | title | command |\n|---|---|---|"
        parts += ["## Further reports", "\n".join([head, *listed])]
    text = "\n".join(parts)
    listed = [f"* `python -m {m}`: {line}" for m, line in scripts.items() if m not in text]
    parts += ["## Further scripts", "\n".join(listed)] if listed else []
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# Reproductions

Every table, figure and claim of the five papers, and PFLlib's page, beside our results. Generated
by `python -m experiments.reproductions` from the files under `experiments/results`: our numbers are
quoted from there, with the command that wrote them. "Not run yet" rows fill themselves once their
files exist."""
HEADER = "| what | paper | ours | why they differ | command |\n|---|---|---|---|---|"
CLAIMS_HEADER = "| claim | holds | ours | why not | report |\n|---|---|---|---|---|"


def _rows(rows: Sequence[Row], folder: pathlib.Path) -> list[str]:
    return ["\n".join([HEADER, *(_row(row, folder) for row in rows)])]


def _row(row: Row, folder: pathlib.Path) -> str:
    ours, command = "-", f"`{row.command}`" if row.command else "-"
    if row.results:
        found = next((r for r in map(Result, row.results) if r.exists), None)
        text = row.ours(found) if found is not None and row.ours is not None else ""
        ours = NOT_YET
        if found is not None and text:
            first = found.name == row.results[0]
            parts = filter(None, [text, found.line("Not finished yet: ", "")])
            ours = f"{'. '.join(parts)} ({_link(found, folder)})"
            command = found.commands + f", then `{row.further}`" * bool(row.further)
            command += f"; {NOT_YET}: `{row.command}`" * (not first)
    return f"| {row.item} | {row.paper} | {ours} | {row.remark} | {command} |"


def _claims(paper: Paper, folder: pathlib.Path) -> list[str]:
    lines, names = [], dict.fromkeys(name for row in paper.rows for name in row.results)
    for result in filter(lambda r: r.exists, map(Result, names)):
        for claim in result.claims.to_dict("records"):
            text = ": ".join(filter(None, [claim.get("setting"), claim["claim"]]))
            if claim.get("our threshold"):
                text += f" (our threshold: {claim['our threshold']})"
            reason = ""
            if claim["holds"] != "yes":
                reason = result.reason(claim["claim"]) or _reason(paper, result, claim["claim"])
            cells = [text, claim["holds"], claim["found"], reason, _link(result, folder)]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return ["### Claims", "\n".join([CLAIMS_HEADER, *lines])] if lines else []


def _reason(paper: Paper, result: Result, claim: str) -> str:
    """The first reason whose key is the beginning of the claim or of ``report: claim``."""
    texts = (claim, f"{result.name}: {claim}")
    reasons = (
        why
        for start, why in paper.explained.items()
        if any(text.startswith(start) for text in texts)
    )
    return next(reasons, "not explained")


def _link(result: Result, folder: pathlib.Path) -> str:
    file = result.file(".md")
    path = pathlib.PurePath(os.path.relpath(file, folder)).as_posix()
    return f"[{file.relative_to(RESULTS).as_posix()}]({path})"
