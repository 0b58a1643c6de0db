"""An algorithm, a model and data that are not of the library, on the command line."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.cli.main import main

MODULE = '''
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from fedjax_sim import datasets, models


class State(NamedTuple):
    params: Any


def nova(lr, mu: float = 0.0, *, server_lr=1.0):
    """FedNova: progress per local step. Wang et al., 2020."""

    def local(start, state, oracle, work):
        def step(k, x):
            grad = oracle.grad(x, k)
            new = jax.tree.map(lambda x, g, s: x - lr * (g + mu * (x - s)), x, grad, start)
            return jax.tree.map(lambda n, o: jnp.where(k < work.num_steps, n, o), new, x)

        end = jax.lax.fori_loop(0, work.max_steps, step, start)
        steps = jnp.maximum(work.num_steps, 1).astype(jnp.float32)
        return jax.tree.map(lambda e, s: (e - s) / steps, end, start), state

    def update(server, mean, round):
        return State(jax.tree.map(lambda x, d: x + FACTOR * server_lr * d, server.params, mean))

    return fs.FedAlgorithm(init=State, local=local, update=update)


FACTOR = 3.0


def net(shape, num_classes):
    return models.mlp(shape, (8,), num_classes)


def load():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 1, 4, 4)) + y[:, None, None, None]
    return datasets.from_arrays(x, np.array(["cat", "dog", "eel"])[y], clients=np.arange(300) % 12)


def loss(outputs, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], 1)[:, 0]


def metrics(outputs, y):
    return {"margin": jax.lax.top_k(outputs, 2)[0] @ jnp.array([1.0, -1.0])}


def rule(key, rounds, sizes, cohort_size, num_steps):
    return fs.timelines.uniform(key, rounds, len(sizes), cohort_size, num_steps)


def nothing(key):
    return None
'''
OPTIONS = (
    "--model slow_objects:net --dataset slow_objects:load --partition natural --cohort-size 3 "
    "--rounds 4 --local-steps 3 --seeds 2 --validation 0.2 --validation-of pool"
).split()


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "slow_objects.py"
    path.write_text(MODULE)
    return path


@pytest.fixture(autouse=True)
def here(module, monkeypatch):
    monkeypatch.chdir(module.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(command: str, *options: str) -> int:
    return main([*command.split(), *OPTIONS, *options])


@pytest.mark.slow
def test_own_objects_beside_a_built_in_algorithm(module, tmp_path, capsys):
    functions = (
        "--loss slow_objects:loss --metrics slow_objects:metrics --sampling slow_objects:rule"
    )
    command = f"run --algorithms fedavg slow_objects:nova --hyper nova.mu=1 {functions}"
    output = ["--output", str(tmp_path)]
    assert run(command, *output) == 0
    frame = pd.read_csv(tmp_path / "history.csv")
    assert set(frame["algorithm"]) == {"fedavg", "nova"}
    assert {"valid/accuracy", "valid/margin", "test/margin"} <= set(frame["metric"])
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["algorithms"]["nova"] == {"lr": 0.2, "mu": 1.0}
    assert saved["data"]["class_names"] == ["cat", "dog", "eel"]
    assert saved["data"]["valid_examples"] == 48  # a fifth of 240
    assert len(saved["code"]) == 6

    before = (tmp_path / "history.csv").read_bytes()
    again = ["run", str(tmp_path / "config.json"), *output]
    assert main(again) == 2  # a file does not say which code runs
    assert "has 'slow_objects:nova' in algorithms, and a file may not" in capsys.readouterr().err
    own = ["--algorithms", "fedavg", "slow_objects:nova", *functions.split(), *OPTIONS[:4]]
    assert main([*again, *own]) == 0  # finished before
    assert (tmp_path / "history.csv").read_bytes() == before
    module.write_text(MODULE.replace("FACTOR = 3.0", "FACTOR = 2.0"))
    capsys.readouterr()
    assert run(command, *output) == 2
    error = capsys.readouterr().err
    module.write_text(MODULE)
    assert "another comparison: the code of slow_objects:nova has changed; choose" in error
    assert (tmp_path / "history.csv").read_bytes() == before


@pytest.mark.slow
def test_sweep_of_an_own_hyper_parameter_by_the_validation_part(module, tmp_path, capsys):
    grid = "--grid nova.mu=0,1 --metric valid/accuracy"
    command = f"sweep --algorithms slow_objects:nova {grid} --output {tmp_path}"
    assert run(command) == 0
    assert run(command) == 0
    assert "4 runs (4 found), 0 programs" in capsys.readouterr().out
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert sorted(scores["mu"].unique()) == [0.0, 1.0]
    history = pd.read_csv(tmp_path / "history.csv").query("metric == 'valid/accuracy'")
    last = history.loc[history["round"] == 4].set_index(["mu", "seed"])["value"]
    np.testing.assert_allclose(
        scores.set_index(["mu", "seed"])["score"].sort_index(), last.sort_index()
    )
    module.write_text(MODULE.replace("FACTOR = 3.0", "FACTOR = 2.0"))
    assert run(command) == 2
    module.write_text(MODULE)
    assert "the code of slow_objects:nova has changed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_partition_per_seed(tmp_path):
    """All algorithms of a seed share its clients, which are those of a run of that seed alone."""
    options = "--algorithms fedavg slow_objects:nova --partition dirichlet --num-clients 6"
    both, alone = tmp_path / "both", tmp_path / "alone"
    timeline = "--timeline slow_objects:rule"
    command = f"run {options} {timeline} --partition-per-seed --output {both}"
    assert run(command) == 0
    assert run(command) == 0
    assert run(
        f"run {options} {timeline} --output {alone} --partition-seed 1 --seed 1", "--seeds", "1"
    ) == 0  # fmt: skip
    frame, single = (pd.read_csv(folder / "history.csv") for folder in (both, alone))
    assert sorted(frame["seed"].unique()) == [0, 1]
    keys = ["algorithm", "round", "metric"]
    mine = frame.query("seed == 1").set_index(keys)["value"].sort_index()
    theirs = single.set_index(keys)["value"].sort_index()
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)  # a program with an axis of one seed
    timing = json.loads((both / "nova" / "1" / "timing.json").read_text())
    assert timing["local_steps"] == 4 * 3 * 3


@pytest.mark.slow
def test_a_sampling_rule_returns_a_timeline(capsys):
    assert run("run --algorithms fedavg --sampling slow_objects:nothing") == 2
    assert "which returned None; expected a fedjax_sim.Timeline" in capsys.readouterr().err
