"""Runs the quick tests on mutated code: ``python -m tests.mutations RESULTS.json COVERAGE...``.

``mutations.json`` lists the mutations: 120 that ``draw.py`` drew, then others written by hand for
selectors, tunings, networks and generated clients.  Coverage with the tests as contexts says which
tests run a mutated line, and needs ``pip install pytest-cov==7.1.0``::

    python -m pytest -m "not slow" --cov=fedjax_sim --cov-context=test --cov-report=

The tests of the fewest lines run first, and the first failure is kept.  Results are written after
each mutation, and a mutation that has one is skipped.
"""

import argparse
import collections
import difflib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from coverage import CoverageData

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_FIRST = 10  # tests of the first attempt
_COMMAND = (sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider")

Contexts = dict[str, dict[int, set[str]]]  # names of tests by path and line


def _contexts(files: list[str]) -> Contexts:
    """Returns the tests that run each line; the files of one line's tests are merged."""
    result: Contexts = collections.defaultdict(lambda: collections.defaultdict(set))
    for file in files:
        data = CoverageData(file)
        data.read()
        for path in data.measured_files():
            lines = result["fedjax_sim" + path.rpartition("/fedjax_sim")[2]]
            for line, names in data.contexts_by_lineno(path).items():
                lines[line] |= {name.rpartition("|")[0] for name in names if name}
    return result


def _place(mutation: dict[str, str], package: pathlib.Path) -> pathlib.Path | None:
    """Returns the one module that contains the lines, wherever they have moved."""
    path = package.parent / mutation["path"]
    if path.exists() and path.read_text().count(mutation["before"]) == 1:
        return path
    texts = {path: path.read_text() for path in package.rglob("*.py")}
    counts = {path: text.count(mutation["before"]) for path, text in texts.items()}
    places = [path for path, count in counts.items() if count]
    return places[0] if len(places) == 1 and counts[places[0]] == 1 else None


def _tests(mutation: dict[str, str], text: str, lines: dict[int, set[str]]) -> list[str]:
    """Returns the tests that run a changed line, or the module if it runs while importing."""
    start = text[: text.index(mutation["before"])].count("\n") + 1
    old, new = (mutation[key].splitlines() for key in ("before", "after"))
    changed = {
        start + line
        for kind, first, last, *_ in difflib.SequenceMatcher(None, old, new).get_opcodes()
        if kind != "equal"
        for line in range(first, last)
    }
    counts = collections.Counter(name for names in lines.values() for name in names)
    tests = set().union(*(lines[line] for line in changed if line in lines)) or set(counts)
    return sorted(tests, key=lambda name: (counts[name], name))


def _first_failure(folder: pathlib.Path, tests: list[str], seconds: int) -> str | None:
    """Returns the first test that fails with the package in the folder, or None if all pass."""
    names = folder / "tests.txt"
    names.write_text("\n".join(tests) + "\n")
    # Without the current folder, whose package is not mutated.
    environment = os.environ | {"PYTHONPATH": f"{folder}:{_ROOT}", "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            [*_COMMAND, f"@{names}"],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "time"  # as in a loop that does not end
    if done.returncode == 0:
        return None
    found = _FAILED.search(done.stdout)
    return found.group(1) if found else done.stdout[-400:] + done.stderr[-400:]


def _died_by(
    mutation: dict[str, str], folder: pathlib.Path, contexts: Contexts, seconds: int
) -> str | None:
    path = _place(mutation, folder / "fedjax_sim")
    if path is None:
        return "not applicable"
    text = path.read_text()
    tests = _tests(mutation, text, contexts[str(path.relative_to(folder))])
    cache = pathlib.Path(importlib.util.cache_from_source(str(path)))
    cache.unlink(missing_ok=True)
    path.write_text(text.replace(mutation["before"], mutation["after"]))
    try:
        parts = [part for part in (tests[:_FIRST], tests[_FIRST:]) if part]
        failures = (_first_failure(folder, part, seconds) for part in parts)
        return next(filter(None, failures), None)
    finally:
        cache.unlink(missing_ok=True)
        path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutations")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("coverage", nargs="+")
    parser.add_argument("--seconds", type=int, default=1800, help="limit of one run of pytest")
    arguments = parser.parse_args()
    contexts = _contexts(arguments.coverage)
    mutations = json.loads((_HERE / "mutations.json").read_text())
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(_ROOT / "fedjax_sim", folder / "fedjax_sim")
        for number, mutation in enumerate(mutations):
            if str(number) in results:
                continue
            results[str(number)] = _died_by(mutation, folder, contexts, arguments.seconds)
            arguments.results.write_text(json.dumps(results, indent=1) + "\n")
            print(number, mutation["path"], results[str(number)], flush=True)
    survivors = [number for number, test in results.items() if test is None]
    print(f"{len(results)} mutations, {len(survivors)} survived: {', '.join(survivors)}")


if __name__ == "__main__":
    main()
