"""``python -m benchmarks compare``: two revisions of the repository, measured in turns.

    python -m benchmarks compare main~5 .                   # rounds of W1 to W4; "." is this tree
    python -m benchmarks compare v0.1.0 v0.2.0 --workloads W1 W4 --candidates ours ours-1dev

Each revision is checked out into a folder of its own and measured with its own benchmarks, in the
interpreter and the environment of this process.  The two take turns, and the order changes from
repeat to repeat, so that a disturbance or a drift of the machine affects both.  A ratio is that of
the two measurements of one repeat; the table has the median and the extremes of these.
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks.jobs import ROOT, Job, Measured, Options, command_line, run
from benchmarks.rounds import Names, jobs
from benchmarks.workloads import WORKLOADS


def main(arguments: Sequence[str]) -> None:
    """Measures two revisions and prints their ratios."""
    args = _parser().parse_args(arguments)
    options = Options(tuple(args.workloads), tuple(args.candidates), args.seconds, {})
    with tempfile.TemporaryDirectory() as folder:
        roots = [
            checked_out(revision, pathlib.Path(folder) / name)
            for name, revision in (("first", args.first), ("second", args.second))
        ]
        try:
            ratios = measured(jobs(options), roots, args.repeats)
        finally:
            subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=False)
    print(f"\n{table(ratios, args.first, args.second)}")


def checked_out(revision: str, folder: pathlib.Path) -> pathlib.Path:
    """Returns a folder with a revision; that of this file for "."."""
    if revision == ".":
        return ROOT
    command = ["git", "worktree", "add", "--detach", "--force", str(folder), revision]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"revision is {revision!r}: {done.stderr.strip()}")
    return folder


Pairs = dict[tuple[str, str], list[tuple[float, float]]]  # (case, candidate) -> seconds of both


def measured(
    todo: Sequence[Job], roots: Sequence[pathlib.Path], repeats: int, measure=run
) -> Pairs:
    """Returns the seconds of both revisions for every job and repeat."""
    pairs: Pairs = {}
    for repeat in range(repeats):
        for job in todo:
            seconds = {}
            for at in (0, 1) if repeat % 2 == 0 else (1, 0):
                one: Measured = measure(job._replace(root=roots[at]))
                seconds[at] = one["seconds"]
            pairs.setdefault((job.case, job.candidate), []).append((seconds[0], seconds[1]))
            print(f"  {repeat + 1}/{repeats} {job.case} {job.candidate}", flush=True)
    return pairs


def table(pairs: Mapping[tuple[str, str], Sequence[tuple[float, float]]], *names: str) -> str:
    """Returns a Markdown table of the ratios, second revision over the first.

    Example:
        >>> print(table({("W1", "ours"): [(0.010, 0.009), (0.012, 0.012)]}, "old", "new"))
        | | | old, ms | new, ms | new / old | from .. to |
        |---|---|---|---|---|---|
        | W1 | ours | 11 | 10.5 | 0.95 | 0.90 .. 1.00 |
    """
    first, second = names
    lines = [
        f"| | | {first}, ms | {second}, ms | {second} / {first} | from .. to |",
        "|---" * 6 + "|",
    ]
    for (case, candidate), both in pairs.items():
        old, new = (1e3 * statistics.median(pair[i] for pair in both) for i in (0, 1))
        ratios = sorted(b / a for a, b in both)
        lines.append(
            f"| {case} | {candidate} | {old:.3g} | {new:.3g} | {statistics.median(ratios):.2f} "
            f"| {ratios[0]:.2f} .. {ratios[-1]:.2f} |"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    def candidate(text: str) -> str:
        if text not in Names():
            raise argparse.ArgumentTypeError(f"{text!r}; expected a candidate of the part rounds")
        return text

    parser = command_line("compare", __doc__)
    add = parser.add_argument
    add("first", help='a revision, as git names it, or "." for this tree')
    add("second", help="the other revision")
    add("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    add("--candidates", nargs="+", type=candidate, default=["ours", "ours-1dev"])
    add("--repeats", type=int, default=3, help="measurements of each (default 3)")
    add("--seconds", type=float, default=2.0, help="of timed rounds per measurement (default 2)")
    return parser
