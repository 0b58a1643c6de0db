"""Every command of ``fedjax-sim`` that a page, notebook or script prints is parsed, not run.

A command that is misspelled anywhere, or whose options do not suit each other, fails.  The commands
of docs/clusters.md run in tests/docs/test_clusters.py, those of pages with code when the site is
built.
"""

import ast
import itertools
import json
import pathlib
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fedjax_sim import datasets
from fedjax_sim.cli import (
    advise,
    draw_clients,
    export,
    folder_commands,
    fork,
    init,
    measured,
    plot,
    run_options,
    table,
)
from fedjax_sim.cli.errors import Failure
from fedjax_sim.cli.grid import SWEEP, SweepOptions, configurations
from fedjax_sim.cli.main import USAGE
from fedjax_sim.cli.options import MISSING, parse, read_arguments
from fedjax_sim.cli.space import TUNING, Space, TuneOptions
from fedjax_sim.datasets.tables import is_table
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    PRESETS,
    Run,
    Study,
    check_study,
    clients_of,
    entries_of,
    load_study,
    names_of,
    resolve_hyper,
)

ROOT = pathlib.Path(__file__).parent.parent.parent
YOUR_OWN = ROOT / "docs" / "your_own.md"
PAGES = [
    *(
        path
        for path in sorted((ROOT / "docs").glob("**/*.md"))
        if "_build" not in path.parts and path.stem not in ("changelog", "contributing")  # copies
    ),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *(ROOT / name for name in ("README.md", "SECURITY.md", "experiments/README.md", "Makefile")),
    *sorted((ROOT / "experiments").glob("**/*.py")),
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *(
        path
        for path in sorted((ROOT / "fedjax_sim").glob("**/*.py"))
        if not {"cli", "setups"} & set(path.parts)  # usage lines and templates
    ),
]
OF_COMPARISONS = {
    "run": run_options.RunOptions,
    "clients": draw_clients.ClientsOptions,
    "advise": advise.AdviseOptions,
    "measure": measured.MeasureOptions,
}
OF_FOLDERS = {
    "plot": plot.PlotOptions,
    "table": table.TableOptions,
    "export": export.ExportOptions,
    "fork": fork.ForkOptions,
    "report": folder_commands.ReportOptions,
}
# Flags in the text of pages that are none of ours: of Slurm, XLA, pip, benchmarks and experiments.
OTHERS = {
    "array", "candidates", "finished", "full", "gpus", "gpus-per-node", "grids", "minutes", "only",
    "readers", "show", "target", "checkpoints",
}  # fmt: skip


def text_of(path: pathlib.Path) -> str:
    """The page as it is read: text of notebooks' cells, comments without their sign."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return re.sub(r"^ *# ?", "", text, flags=re.MULTILINE) if path.suffix == ".py" else text


def commands_of(path: pathlib.Path) -> list[str]:
    """Commands in blocks and in the text; what a sentence calls a command without options, too."""
    text = re.sub(r"\\\n\s*", "", text_of(path))  # lines that continue
    blocks = re.findall(r"^[ \t]*(?:\$ |!)?(fedjax-sim .*)$", text, re.MULTILINE)
    inline = re.findall(r"`(fedjax-sim [^`]*)`", re.sub(r"\n\s*", " ", text))
    return [command for command in dict.fromkeys([*blocks, *inline]) if "|" not in command]


COMMANDS = [
    pytest.param(path, command, id=f"{path.relative_to(ROOT)}: {command[:60]}")
    for path in PAGES
    for command in commands_of(path)
]


def modules_of(path: pathlib.Path) -> dict[str, str]:
    """Python files that a page writes or shows, and for other names those of docs/your_own.md."""
    pattern = r"(?:%%writefile|```python\n#) (\w+\.py)\n(.*?)```"
    found = dict(re.findall(pattern, path.read_text(), re.DOTALL))
    return found if path == YOUR_OWN else modules_of(YOUR_OWN) | found


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[pathlib.Path]:
    """An empty current folder, from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before:
        if pathlib.Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


def write_modules(folder: pathlib.Path, page: pathlib.Path) -> None:
    for name, code in modules_of(page).items():
        (folder / name).write_text(code)


def checked(command: str) -> Any:
    """The options of a command, after all checks that need no data."""
    program, name, *words = shlex.split(command)
    assert program == "fedjax-sim"
    words = [word for word in words if word not in ("--help", "...")]
    if words and words[0].endswith(("config.json", "best.json")):  # of a run or a tuning
        words[0] = "quickstart"
    if name in OF_COMPARISONS:
        kind = OF_COMPARISONS[name]
        source, study, rest = read_arguments(words)
        given = parse(kind, f"{name} {source}", "", rest, kind(study.options))
        study = study.replaced(options=given.run)
        check_study(study)
        resolve_hyper(entries_of(study), given.run.algorithms)
        return given
    if name == "sweep":
        *_, study, given = SWEEP.read(words, "")
        return configurations(study, given)
    if name == "tune":
        *_, study, given = TUNING.read(words, "")
        return Space(study, given).corners
    if name in OF_FOLDERS:
        kind, default = OF_FOLDERS[name], None
        if name == "fork":
            default = fork.ForkOptions(MISSING, alternatives=fork.with_alternatives(words))
        if name == "fork" and not any(word.startswith("-") for word in words):
            return None
        with folder_commands._read(kind, name, "", words, default=default) as (_, given):
            return given
    if name == "list":
        own = words[:1] if "".join(words[:1]).endswith(".py") else []
        assert set(words[len(own) :]) <= set(ALGORITHMS)
        return words
    assert name == "init", command
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    assert names[0].endswith(".py")
    assert len(names) == 1 or names[1] in PRESETS or is_table(names[1])
    return parse(init.InitOptions, init.USAGE, "", words[len(names) :], init.InitOptions())


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_are_accepted(folder, page, command):
    write_modules(folder, page)
    if command.split()[1] in ("run", *OF_FOLDERS) and len(command.split()) < 3:
        return  # a sentence about the command
    checked(command)


def test_commands_of_the_page_of_algorithms_are_accepted():
    """The page has a command per algorithm, with the options that the algorithm needs."""
    tree = ast.parse((ROOT / "docs/extensions/algorithms.py").read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS"
    )
    for name, options in ast.literal_eval(value).items():
        checked(f"fedjax-sim run quickstart {' '.join(options)} --algorithms {name}")


def test_pages_have_commands():
    found = [param.values[1].split()[1] for param in COMMANDS]
    assert len(found) >= 60
    for name in (*OF_COMPARISONS, *OF_FOLDERS, "sweep", "tune", "init", "list"):
        assert name in found
        assert f"fedjax-sim {name}" in USAGE


@pytest.mark.parametrize(
    "command",
    [
        "fedjax-sim run quickstart --alhpa 1",
        "fedjax-sim run quickstart attack:aile",
        "fedjax-sim run quickstart attack:alie --attack.y 1",
        "fedjax-sim run quickstart --hyper.fedprox.nu 1",
        "fedjax-sim run study.py --hyper.damped.nu 1",
        "fedjax-sim sweep --grid.lrr.values 0.1 0.2",
        "fedjax-sim sweep --grid.lr.value 0.1 0.2",
        "fedjax-sim tune --space.lrr.from 0.1 --space.lrr.to 1",
        "fedjax-sim tune --space.lr.form 0.1 --space.lr.to 1",
        "fedjax-sim plot results/x --bnad ci",
        "fedjax-sim fork results/x --round 4 --alternatives.slow.hper.lr 0.1",
        "fedjax-sim clients --partition pfllib-dir",
        "fedjax-sim init study.py --label x",
    ],
)
def test_misspelled_commands_are_refused(folder, command):
    write_modules(folder, YOUR_OWN)
    with pytest.raises((SystemExit, ValueError, Failure)):
        checked(command)


def known_flags() -> tuple[set[str], set[str]]:
    """Flags, and choices as NAME:KIND, of all commands."""
    of_several = [SweepOptions, TuneOptions, init.InitOptions]
    kinds = [*OF_COMPARISONS.values(), *OF_FOLDERS.values(), *of_several]
    fields = {name: field for kind in kinds for name, field in names_of(kind).items()}
    flags = {name for name, field in fields.items() if not field.alternatives}
    choices = {
        f"{name}:{getattr(group, 'kind', '')}"
        for name, field in fields.items()
        for group in field.alternatives
    }
    return {name.replace("_", "-") for name in flags}, {name.replace("_", "-") for name in choices}


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in PAGES
        if path.suffix in (".md", ".ipynb") and "experiments" not in path.parts
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_flags_in_sentences_exist(path):
    """Spans such as `--rounds 200` and `partition:shards --classes-per-client 3`."""
    flags, choices = known_flags()
    spans = re.findall(
        r"`((?:--|[a-z_.-]+:[a-z]|[a-z_.-]+:`)[^`]*)`?", re.sub(r"\n\s*", " ", text_of(path))
    )
    for span in spans:
        for word in span.split():
            if word.startswith("--") and "xla" not in word:
                name = word[2:].split("=")[0].rstrip(",").replace("_", "-")
                first = name.split(".")[0]
                dicts = ("hyper", "grid", "space", "alternatives")
                of_dict = first in dicts or "clip.bounds" in name
                assert name in flags | OTHERS or of_dict, span
            elif re.fullmatch(r"[a-z_.-]+:[a-z_-]+", word):
                group = word.split(":")[0]
                if any(choice.startswith(f"{group}:") for choice in choices):
                    assert word.replace("_", "-") in choices, span


def test_the_study_of_the_page_is_short_and_complete(folder):
    """The page promises one module with an own algorithm, model and metric from a preset."""
    write_modules(folder, YOUR_OWN)
    path = folder / "study.py"
    assert len([line for line in path.read_text().splitlines() if line]) <= 20
    study = load_study(path)
    assert study.own_parts == ("algorithms", "model", "metrics")
    assert list(entries_of(study)) == ["fedavg", "damped"]
    assert entries_of(study)["damped"].hyper_defaults == {"lr": 0.2, "mu": 0.1}


def test_the_page_describes_every_field_of_a_study():
    text = YOUR_OWN.read_text().partition("### The fields of a study")[2]
    described = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert described == list(Study.__dataclass_fields__)


@pytest.mark.parametrize(
    "command",
    sorted({command for param in COMMANDS if "partition:pfllib" in (command := param.values[1])}),
)
def test_partitions_of_the_pages_are_possible(command):
    """PFLlib's rule ends without a partition if the smallest client cannot have enough examples."""
    given = re.findall(r"(partition:\S+|--(?:alpha|num-clients|test-of) \S+)", command)
    run = parse(Run, "run quickstart", "", " ".join(given).split(), Run())
    divided = clients_of(Study(run), datasets.load("digits"))
    assert divided.data.num_clients == run.population.num_clients == 20
