"""Checks of README.md: its example runs, its numbers, links and pictures are right."""

import ast
import json
import pathlib
import re
import shlex

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from scipy import stats

from fedjax_sim import datasets, models, objectives
from fedjax_sim.cli.grid import SWEEP, configurations
from fedjax_sim.engine.evaluation import evaluator
from fedjax_sim.studies.setups import ALGORITHMS, Study, check_study, options

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "experiments" / "results" / "pictures"


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


def test_the_sweep_has_as_many_runs_as_the_readme_says():
    (command,) = re.findall(r"^fedjax-sim sweep (.*)$", README.replace("\\\n", ""), re.MULTILINE)
    *_, study, sweep = SWEEP.read(shlex.split(command), "")
    count = len(configurations(study, sweep)) * study.options.seeds
    assert f"{count} FedAvgM runs" in README
    assert len(pd.read_csv(RESULTS / "grid.csv")) == count


def test_widths_of_the_intervals():
    history = pd.read_csv(RESULTS / "comparison.csv")
    last = history[history["round"] == history["round"].max()]
    a, b = (last[last["algorithm"] == name]["value"].to_numpy() for name in ("fedprox", "fedavg"))
    paired = stats.ttest_rel(a, b).confidence_interval()
    loose = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    widths = [100 * (x.high - x.low) / 2 for x in (paired, loose)]
    text = " ".join(README.split())
    assert "{:.2f} points wide to each side with pairs, and {:.2f} without".format(*widths) in text


@pytest.mark.parametrize(
    ("row", "candidates"),
    [
        ("FedJAX", ["fedjax"]),
        ("PyTorch, a loop over clients", ["torch-loop", "torch-loop-1"]),
        ("pfl-research", ["pfl", "pfl-1"]),
    ],
)
def test_speed_beside_other_simulators(row, candidates):
    """The faster one of a peer's numbers of threads, over our time, from the results."""
    (cells,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", README, re.MULTILINE)
    cases = json.loads((ROOT / "benchmarks" / "results" / "rounds.json").read_text())["cases"]
    for cell, case in zip(cells.split(" | "), cases.values(), strict=True):
        measured = case["candidates"]
        theirs = min(measured[x]["seconds"] for x in candidates if x in measured)
        ratio = theirs / measured["ours"]["seconds"]
        assert cell == (f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}")


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
    assert set(named) <= set(ALGORITHMS)
    for module in experiments:
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    for name in set(ALGORITHMS) - set(named):
        check_study(Study(options("quickstart", algorithms=(name,))))


def test_number_of_algorithms():
    assert f"| {len(ALGORITHMS)} algorithms " in README


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
