"""Checks of README.md and of the commands on the site's pages: examples run, commands parse."""

import ast
import pathlib
import re
import shlex

import jax
import jax.numpy as jnp
import pytest

from fedjax_sim import datasets, models, objectives
from fedjax_sim.cli.grid import configurations, read_sweep
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.cli.run_options import RunOptions
from fedjax_sim.engine.evaluation import evaluator
from fedjax_sim.studies.setups import registry
from fedjax_sim.studies.setups.checks import check
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import clients_of, entries_of
from fedjax_sim.studies.setups.settings import resolve_hyper
from fedjax_sim.studies.setups.study import Study

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [path.read_text() for path in sorted((ROOT / "docs").glob("**/*.md"))]


def commands(start: str) -> list[str]:
    """Rests of the lines with commands in the README and on the pages."""
    pattern = rf"^(?:\$ )?fedjax-sim {start} (.*)$"
    texts = [re.sub(r"\\\n\s*", "", text) for text in (README, *PAGES)]  # lines that continue
    return [rest for text in texts for rest in re.findall(pattern, text, re.MULTILINE)]


def parsed(command: str) -> Study:
    """The study that a command of ``fedjax-sim run`` describes."""
    source, study, rest = read_arguments(shlex.split(command))
    given = parse(RunOptions, f"run {source}", "", rest, RunOptions(study.options))
    return study.replaced(options=given.run)


@pytest.mark.slow
def test_python_example_runs_and_learns():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 11
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    digits = datasets.load("digits")
    model = models.mlp((8, 8, 1), hidden=(64,), num_classes=10)
    evaluate = evaluator(objectives.classification_metrics(model.apply), digits.test)
    accuracy = jax.vmap(evaluate)(names["state"].server.params)["accuracy"]
    assert accuracy.shape == (3,)
    # Chance is 0.1; the quickstart's runs end above 0.9 for every one of these rates.
    assert jnp.min(accuracy) > 0.85


@pytest.mark.parametrize("command", commands("run quickstart"))
def test_commands_are_accepted(command):
    study = parsed(f"quickstart {command}")
    check(study)
    resolve_hyper(entries_of(study), study.options.algorithms)


@pytest.mark.parametrize(
    "command", [c for c in commands("(?:run|sweep|clients)") if "partition:pfllib" in c]
)
def test_partitions_of_the_pages_are_possible(command):
    """PFLlib's rule ends without a partition if the smallest client cannot have enough examples."""
    given = r"partition:\S+|--(?:alpha|num-clients|test-of|classes-per-client) \S+|--balanced"
    study = parsed(" ".join(["quickstart", *re.findall(given, command)]))
    divided = clients_of(study, datasets.load("digits"))
    assert divided.data.num_clients == study.options.population.num_clients == 20


def test_pages_have_commands():
    assert len(commands("run quickstart")) >= 5
    assert len(commands("sweep quickstart")) >= 3


def test_sweep_commands_are_accepted():
    counts = []
    for command in commands("sweep quickstart"):
        _, _, study, config = read_sweep(shlex.split(f"quickstart {command}"), "")
        counts.append(len(configurations(study, config)))
    assert counts[0] == 36  # with three seeds the 108 runs that the README names
    assert "108 FedAvgM runs" in README
    assert read_sweep(["quickstart", "--grid.lr.values", "1"], "")[3].run.seeds == 3
    assert min(counts) > 1


def test_experiments_of_the_page_of_algorithms_exist():
    """A new algorithm needs no entry: its page then names the quickstart."""
    tree = ast.parse((ROOT / "docs/extensions/algorithms.py").read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPERIMENTS"
    )
    experiments = ast.literal_eval(value)
    named = [name for names in experiments.values() for name in names.split()]
    assert set(named) <= set(registry.ALGORITHMS)
    for module in experiments:
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    for name in set(registry.ALGORITHMS) - set(named):
        check(Study(options(algorithms=(name,))))


def test_number_of_algorithms():
    assert f"\n{len(registry.ALGORITHMS)} algorithms " in README


def test_links_of_the_readme_exist():
    links = re.findall(r"\]\(([^)#]+?)(?:#.*?)?\)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_is_short():
    assert len(README.splitlines()) <= 110


def test_pictures_exist_and_are_small():
    pictures = re.findall(r"!\[.+?\]\((.*?)\)", README)
    assert len(pictures) == 3
    for picture in pictures:
        assert 0 < (ROOT / picture).stat().st_size < 150_000
