"""``--adapters`` and ``--initial-model``: the leaves that are trained, files, refusals."""

import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fedjax_sim.studies.setups.config import RunConfig

import fedjax_sim as fs
from fedjax_sim.cli import main
from fedjax_sim.models import Model, mlp
from fedjax_sim.studies.setups import adapters
from fedjax_sim.wrappers.received import upload_shapes

MODULE = """
import jax
import jax.numpy as jnp
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
"""


@pytest.fixture
def net() -> Model:
    names: dict = {}
    exec(MODULE, names)
    return names["net"](10)


@pytest.mark.parametrize(
    ("option", "trained"), [("lora:2", 2 * (12 + 128)), ("ffa-lora:2", 2 * 12)]
)
def test_uploads_are_adapters(net, option, trained):
    params = jax.eval_shape(adapters.adapted(net, option).init, jax.random.key(0))
    upload = upload_shapes(adapters.on_adapters(fs.fedavg(0.1), option), params)
    assert sum(leaf.size for leaf in jax.tree.leaves(upload)) == trained


@pytest.mark.slow
def test_all_seeds_start_from_the_file_and_have_adapters_of_their_own(net, tmp_path):
    kernels = {"query": np.ones((6, 64)), "value": np.zeros((6, 64)), "head": np.ones((10, 6))}
    path = tmp_path / "model.npz"
    np.savez(path, allow_pickle=False, **{f"{k}/kernel": v for k, v in kernels.items()})
    config = RunConfig(initial_model=path, adapters="lora:1")
    keys = jax.random.split(jax.random.key(0), 2)
    params = adapters.initial_params(config, adapters.adapted(net, "lora:1"), keys)
    for name, kernel in kernels.items():
        np.testing.assert_array_equal(params["base"][name]["kernel"], np.stack([kernel, kernel]))
        assert params["base"][name]["kernel"].dtype == jnp.float32
    a = params["adapters"]["query"]["kernel"]["a"]
    assert (a[0] != a[1]).any()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"head/kernel is missing; expected \(10, 6\)"),
        ({"head/kernel": np.ones((3, 6))}, r"head/kernel is of shape \(3, 6\); expected \(10"),
        ({"head/kernel": np.full((10, 6), "a")}, "head/kernel has dtype <U1; expected numbers"),
        (
            {"head/kernel": np.ones((10, 6)), "body/kernel": np.ones(2), "norm": np.ones(1)},
            "which has body/kernel, norm besides the arrays of the model; expected a file of the",
        ),
        (None, "cannot be read .*; expected a file that fedjax-sim export wrote"),
    ],
)  # fmt: skip
def test_files_of_other_models_are_refused(arrays, message, tmp_path):
    net = Model(lambda key: {"head": {"kernel": jnp.zeros((10, 6))}}, lambda params, x: x)
    path = tmp_path / "model.npz"
    if arrays is not None:
        np.savez(path, allow_pickle=False, **arrays)
    keys = jax.random.split(jax.random.key(0), 1)
    with pytest.raises(ValueError, match=f"initial_model is '.*model.npz'.*({message})"):
        adapters.initial_params(RunConfig(initial_model=path), net, keys)


@pytest.mark.parametrize("option", ["lora", "lora:0", "lora:x", "bitfit:2", ":2"])
def test_other_options_are_refused(option):
    with pytest.raises(ValueError, match=r"adapters is .*; expected lora:RANK or ffa-lora:RANK"):
        adapters.parse(option)


def test_models_without_attention_are_refused():
    with pytest.raises(ValueError, match="adapters is 'lora:2'; expected a model with kernels of"):
        adapters.adapted(mlp(3, (4,), 2), "lora:2")


@pytest.mark.slow
def test_fine_tuning_of_an_exported_model(tmp_path, monkeypatch):
    """Run, export, run with adapters; then the same again from config.json."""
    (tmp_path / "own_attention.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    small = ["--algorithms", "fedavg", "--model", "own_attention:net", "--rounds", "2", "--seeds",
             "1", "--num-clients", "16", "--local-steps", "2"]  # fmt: skip
    assert main.main(["run", "quickstart", *small, "--output", "base"]) == 0
    assert main.main(["export", "base"]) == 0
    options = ["--initial-model", "model.npz", "--adapters", "lora:2", "--output", "tuned"]
    assert main.main(["run", "quickstart", *small, *options]) == 0
    # A file does not say which code runs, so the model is named beside it.
    again = ["run", "tuned/config.json", "--model", "own_attention:net", "--output", "again"]
    assert main.main(again) == 0
    net = importlib.import_module("own_attention").net
    tuned, again = fs.load("tuned", model=net), fs.load("again")
    base = fs.load("base").params()
    params = tuned.params()
    assert jax.tree.all(jax.tree.map(np.array_equal, params["base"], base))
    assert params["adapters"]["query"]["kernel"]["b"].any()
    assert jax.tree.all(jax.tree.map(np.array_equal, params, again.params()))
    assert tuned.predict(np.zeros((1, 8, 8, 1), np.uint8)).shape == (1, 10)
    outcome = json.loads((tmp_path / "tuned" / "fedavg" / "outcome.json").read_text())
    assert outcome["upload_bits"] == outcome["download_bits"] == 32 * 2 * (12 + 128)
