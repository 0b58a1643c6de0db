"""A campaign of faults: ``python -m tests.faults --minutes 10``.

Tries kinds of faults in turn and prints how many were tried, how many lost something, and how many
gave an error that the documentation does not describe.  Exit code 1 if there is one of these.
``--readers 100000`` gives that many damaged files to the readers instead, equally many to each.
``--only run: sweep:`` tries the faults whose names begin so.
"""

import argparse
import collections
import itertools
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence

_HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "helpers")]  # as pytest sets it

# ruff: noqa: E402
import folder_trials
import numpy as np
import process_trials
import reader_trials
from faults import Outcome, Result, Trial

_MARKS = "<!-- faults: begin -->\n", "<!-- faults: end -->"


def trials(base: pathlib.Path) -> dict[str, Trial]:
    """Returns all trials by the name of their fault."""
    run = folder_trials.Folders("run", base)
    result = run.trials() | folder_trials.Folders("sweep", base).trials()
    result |= process_trials.tmpfs_trials(run.start, run.bits)
    return result | reader_trials.trials() | process_trials.Processes(base).trials()


def campaign(
    base: pathlib.Path,
    seconds: float,
    seed: int,
    num_inputs: int | None = None,
    only: Sequence[str] = ("",),
) -> tuple[dict[str, collections.Counter], list[str]]:
    """Gives each kind of fault the same time, those of processes thrice as much.

    With ``num_inputs``, tries that many damaged files instead, equally many per reader.

    Returns the outcomes by fault, and the descriptions of defects.
    """
    kinds = trials(base) if num_inputs is None else reader_trials.trials()
    kinds = {name: trial for name, trial in kinds.items() if name.startswith(tuple(only))}
    rng = np.random.default_rng(seed)
    spent = dict.fromkeys(kinds, 0.0)
    outcomes = {name: collections.Counter() for name in kinds}
    defects: list[str] = []
    end = time.monotonic() + seconds
    names = itertools.islice(itertools.cycle(kinds), num_inputs)
    while time.monotonic() < end or num_inputs is not None:
        if num_inputs is None:
            name = min(spent, key=lambda name: spent[name] / (3 if "processes" in name else 1))
        elif (name := next(names, None)) is None:
            break
        began = time.monotonic()
        folder = base / "trial"
        try:
            outcome, description = kinds[name](rng, folder)
        except Exception as error:  # of the campaign itself
            outcome, description = Result(Outcome.UNDOCUMENTED, f"trial: {error!r}")
        shutil.rmtree(folder, ignore_errors=True)
        spent[name] += time.monotonic() - began
        outcomes[name][outcome] += 1
        if outcome in (Outcome.LOST, Outcome.UNDOCUMENTED):
            defects.append(f"{name}: {outcome.value}: {description}")
            print(defects[-1], file=sys.stderr, flush=True)
    return outcomes, defects


def table(outcomes: dict[str, collections.Counter]) -> str:
    """Returns the outcomes as Markdown."""
    heads = ["fault", "tried", *(outcome.value for outcome in Outcome)]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    total = sum(outcomes.values(), collections.Counter())
    for name, counts in [*outcomes.items(), ("all", total)]:
        numbers = [sum(counts.values()), *(counts[outcome] for outcome in Outcome)]
        rows.append([name, *(f"{number:,}" for number in numbers)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.faults")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--readers", type=int, help="damaged files, in place of --minutes")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=pathlib.Path, help="page that shows the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcomes, defects = campaign(
            pathlib.Path(folder),
            60 * arguments.minutes,
            arguments.seed,
            arguments.readers,
            arguments.only,
        )
    text = table(outcomes)
    print(text)
    if arguments.write is not None:
        page = arguments.write.read_text()
        head, rest = page.split(_MARKS[0])
        tail = rest.split(_MARKS[1])[1]
        arguments.write.write_text(f"{head}{_MARKS[0]}{text}{_MARKS[1]}{tail}")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
