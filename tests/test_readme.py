"""Checks of README.md: its examples run, its commands parse, its files exist."""

import pathlib
import re
import shlex

import jax
import jax.numpy as jnp
import pytest
import tyro

from fedjax_sim import datasets, models, objectives
from fedjax_sim.cli import docstrings, registry
from fedjax_sim.cli.build import hyper_parameters
from fedjax_sim.cli.config import RunOptions, SweepConfig
from fedjax_sim.cli.config_checks import check
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.names import PRESETS
from fedjax_sim.evaluation import evaluator

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_python_example_runs_and_learns():
    code, sweep = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 11
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    with jax.debug_nans(False):
        exec(compile(sweep, "README.md", "exec"), names)
    assert [c["lr"] for c in names["diverged"]] == [100.0] * 4
    digits = datasets.load("digits")
    model = models.mlp((8, 8, 1), hidden=(64,), num_classes=10)
    evaluate = evaluator(objectives.classification_metrics(model.apply), digits.test)
    accuracy = jax.vmap(evaluate)(names["state"].server.params)["accuracy"]
    assert accuracy.shape == (3,)
    # Chance is 0.1; the quickstart's runs end above 0.9 for every one of these rates.
    assert jnp.min(accuracy) > 0.85


def test_commands_are_accepted():
    commands = re.findall(r"^fedjax-sim run quickstart (.*)$", README, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        config = tyro.cli(RunOptions, args=shlex.split(command))
        check(config)
        hyper_parameters(config)


def test_sweep_commands_are_accepted():
    commands = re.findall(r"^fedjax-sim sweep quickstart (.*)$", README, re.MULTILINE)
    counts = [
        len(configurations(tyro.cli(SweepConfig, args=shlex.split(command))))
        for command in commands
    ]
    assert counts == [36, 72]


def test_rows_of_the_algorithm_table_run():
    """A new algorithm needs no row here; ``fedjax-sim list`` shows all of them."""
    rows = re.findall(r"^\| \S+ \| (.*?) \| `(\w+)` \| `(.*?)` \|$", README, re.MULTILINE)
    papers = {function: paper for paper, function, _ in rows}
    assert len(papers) >= 35
    assert papers == {
        name: docstrings.paper(registry.ALGORITHMS[name]) for name in papers
    }  # as fedjax-sim list
    for _, function, command in rows:
        if command.startswith("python -m "):
            assert (ROOT / f"{command[10:].replace('.', '/')}.py").exists()
            continue
        preset, *options = shlex.split(command.removeprefix("fedjax-sim run "))
        config = tyro.cli(type(PRESETS[preset]), args=options, default=PRESETS[preset])
        assert function in config.algorithms


def test_pictures_exist_and_are_small():
    pictures = re.findall(r"!\[.+?\]\((.*?)\)", README)
    assert len(pictures) == 4
    for picture in pictures:
        assert 0 < (ROOT / picture).stat().st_size < 150_000
