"""``adapters:lora`` and ``--initial-model``: fine-tuning of a model that a run exported."""

import importlib
import json

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.cli import main

MODULE = """
import jax
import fedjax_sim as fs
from fedjax_sim.models import Model

def net(num_classes):
    shapes = {"query": (6, 64), "value": (6, 64), "head": (num_classes, 6)}

    def init(key):
        keys = jax.random.split(key, 3)
        drawn = {n: jax.random.normal(k, s) / 8 for k, (n, s) in zip(keys, shapes.items())}
        return {name: {"kernel": kernel} for name, kernel in drawn.items()}

    def apply(params, x):
        x = x.reshape(-1, 64)
        y = jax.nn.sigmoid(x @ params["query"]["kernel"].T) * (x @ params["value"]["kernel"].T)
        return y @ params["head"]["kernel"].T

    return Model(init, apply)

def study():
    small = fs.presets.options(
        algorithms=("fedavg",), rounds=2, seeds=1, num_clients=16, local_steps=2
    )
    return fs.Study(small, model=net(10))
"""


@pytest.mark.slow
def test_fine_tuning_of_an_exported_model(tmp_path, monkeypatch):
    """Run, export, run with adapters; then the same again, in another folder."""
    (tmp_path / "own_attention.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = ["run", "own_attention.py"]
    assert main.main([*run, "--output", "base"]) == 0
    assert main.main(["export", "base"]) == 0
    adapters = ["--initial-model", "model.npz", "adapters:lora", "--adapters.rank", "2"]
    assert main.main([*run, *adapters, "--output", "tuned"]) == 0
    assert main.main([*run, *adapters, "--output", "again"]) == 0
    assert main.main(["run", "tuned/config.json", "--output", "none"]) == 2  # it names no code
    net = importlib.import_module("own_attention").net(10)
    tuned, again = fs.load("tuned", model=net), fs.load("again", model=net)
    base = fs.load("base").params()
    params = tuned.params()
    assert jax.tree.all(jax.tree.map(np.array_equal, params["base"], base))
    assert params["adapters"]["query"]["kernel"]["b"].any()
    assert jax.tree.all(jax.tree.map(np.array_equal, params, again.params()))
    assert tuned.predict(np.zeros((1, 8, 8, 1), np.uint8)).shape == (1, 10)
    outcome = json.loads((tmp_path / "tuned" / "fedavg" / "outcome.json").read_text())
    assert outcome["upload_bits"] == outcome["download_bits"] == 32 * 2 * (12 + 128)
