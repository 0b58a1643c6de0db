"""Runs the quick tests on mutated code: ``python -m tests.mutations RESULTS.json``.

Every mutation of ``mutations.json`` is applied to a copy of the package.  The tests in whose names
or imports its module occurs run first, then all quick tests, and the first failure is kept.
Results are written after each mutation, and a mutation that has one is skipped.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
# The battery meets most of the core, one algorithm at a time.
_BATTERY = "tests/algorithms/test_common.py"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def _apply(mutation: dict[str, str], package: pathlib.Path) -> str | None:
    """Changes the one module that contains the lines; returns its name, or None."""
    path = package.parent / mutation["path"]
    places = [path] if path.exists() and mutation["before"] in path.read_text() else [
        other for other in sorted(package.rglob("*.py")) if mutation["before"] in other.read_text()
    ]  # fmt: skip
    if len(places) != 1 or places[0].read_text().count(mutation["before"]) != 1:
        return None
    text = places[0].read_text()
    places[0].write_text(text.replace(mutation["before"], mutation["after"]))
    return ".".join(places[0].relative_to(package).with_suffix("").parts).removesuffix(".__init__")


def _related(module: str) -> list[str]:
    """Test files about a module: by its name, or because they import it; then the battery."""
    last = module.rpartition(".")[2]
    pattern = re.compile(rf"fedjax_sim\.{re.escape(module)}\b|fs\.{re.escape(module)}\b")
    files = sorted((_ROOT / "tests").rglob("test_*.py"))
    named = [file for file in files if last in file.stem]
    using = [file for file in files if file not in named and pattern.search(file.read_text())]
    return [str(file.relative_to(_ROOT)) for file in named + using[:6]] + [_BATTERY]


def _first_failure(package: pathlib.Path, tests: list[str], seconds: int) -> str | None:
    """Returns the first test that fails with the package, or None if all pass."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    environment = os.environ | {"PYTHONPATH": f"{package.parent}:{_ROOT}"}
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "time"  # as in a loop that does not end
    if done.returncode in (0, 5):  # 5: no quick tests in these files
        return None
    found = _FAILED.search(done.stdout)
    return found.group(1) if found else done.stdout[-200:] + done.stderr[-200:]


def _died_by(mutation: dict[str, str], seconds: int) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        package = pathlib.Path(folder) / "fedjax_sim"
        shutil.copytree(_ROOT / "fedjax_sim", package)
        module = _apply(mutation, package)
        if module is None:
            return "not applicable"
        return _first_failure(package, _related(module), seconds) or _first_failure(
            package, ["-n", "2", "--dist", "loadfile", "tests"], 3 * seconds
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutations")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--seconds", type=int, default=600, help="limit of the related tests")
    arguments = parser.parse_args()
    mutations = json.loads((_HERE / "mutations.json").read_text())
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for number, mutation in enumerate(mutations):
        if str(number) in results:
            continue
        results[str(number)] = _died_by(mutation, arguments.seconds)
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
        print(number, mutation["path"], results[str(number)], flush=True)
    survivors = [number for number, test in results.items() if test is None]
    print(f"{len(results)} mutations, {len(survivors)} survived: {', '.join(survivors)}")


if __name__ == "__main__":
    main()
