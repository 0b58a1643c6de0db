"""Runs that earlier versions of the experiments kept are found again: identities are fixed."""

import json

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import problem, table2, table4_rho
from fedjax_sim import datasets, models
from fedjax_sim.runs.sweeps import program

# Of the data below with 1,000 rounds and three seeds, written by the version before the experiments
# had folders.
IDENTITIES = ("48989d14c871004b", "2bb70fe8ad164710", "e9e4380ce6908bd9")
SMOKE_PILOT = "1d9842c13fe17331"  # scale smoke, 30 rounds, seed 0


@pytest.fixture
def made_up(monkeypatch):
    """Integers for images, and a model that starts at zero: the same bits on every machine."""

    def part(count):
        x = (np.arange(count * 12) % 251).astype(np.uint8).reshape(count, 2, 2, 3)
        return {"x": x, "y": (np.arange(count) % 10).astype(np.int32)}

    dataset = datasets.Dataset("made up", part(6000), part(50), 10, None, None, None, "files")
    model = models.Model(
        lambda key: {"w": jnp.zeros((12, 10))},
        lambda params, x: x.reshape(len(x), -1) @ params["w"],
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: dataset)
    monkeypatch.setattr(problem, "build_model", lambda *arguments: model)

    def no_training(*arguments):
        raise AssertionError("a kept run was not found")

    monkeypatch.setattr(program.Programs, "prepare", no_training)


def keep(folder, runs, rounds):
    """A file of finished runs ``(configuration, seed, identity)`` as sweeps have written it."""
    (folder / "slices").mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"config": {}}, indent=2) + "\n")
    meta = [[json.dumps(config, sort_keys=True), seed, name] for config, seed, name in runs]
    values = np.tile(np.linspace(0.2, 0.6, len(rounds)), (len(runs), 1))
    metrics = ("test/accuracy", "test/loss", "train/accuracy", "train/loss", "time", "local_steps")
    np.savez(
        folder / "slices" / "0123456789abcdef.npz",
        meta=np.array(json.dumps(meta)),
        round=np.asarray(rounds),
        diverged_at=np.zeros(len(runs), int),
        **{f"metrics:{name}": values for name in metrics},
    )


@pytest.mark.slow
def test_table2_finds_the_runs_of_the_old_script(made_up, tmp_path):
    """``fedswa_table2 --rounds 1000 --seeds 3 --pilot-rounds 0 --methods FedSWA``."""
    config = {"method": "FedSWA", "lr": 0.1}
    folder = tmp_path / "cpu" / "cifar10-lenet5-dirichlet0.6-1000"
    runs = [(config, str(seed), name) for seed, name in enumerate(IDENTITIES)]
    keep(folder, runs, range(5, 1001, 5))
    options = table2.Table2(
        rounds=1000, seeds=3, pilot_rounds=0, methods=("FedSWA",), work=tmp_path,
        output=tmp_path / "out",
    )  # fmt: skip
    table2.main(options)
    written = tmp_path / "out" / "fedswa" / "table2-cpu-1000"
    name = "cifar10-lenet5-dirichlet0.6-lr0.1"
    history = pd.read_csv(written / f"{name}.csv")
    assert sorted(history["seed"].unique()) == [0, 1, 2]
    assert history["round"].max() == 1000
    assert "| FedSWA | 0.1 | 59.10 | ± 0.00 |" in (written / f"{name}.md").read_text()
    assert (written / f"{name}.png").exists()


@pytest.mark.slow
def test_hyper_parameters_and_pilots_have_the_old_names(made_up, tmp_path):
    """Both pilot and run of one entry of Table 4, at the smallest scale."""
    pilot = tmp_path / "smoke" / "cifar10-lenet5-dirichlet0.6-pilot30"
    keep(pilot, [({"method": "FedSWA", "lr": 0.03}, "0", SMOKE_PILOT)], range(5, 31, 5))
    options = table4_rho.Table4(
        scale="smoke", rounds=1000, methods=("FedSWA",), lrs=(0.03,), rhos=(0.3,), alphas=(1.5,),
        pilot_on="test", work=tmp_path, output=tmp_path / "out",
    )  # fmt: skip
    with pytest.raises(AssertionError, match="a kept run was not found"):
        table4_rho.main(options)  # the pilot was found, its run is not there
    config = {"method": "FedSWA", "lr": 0.1, "rho": 0.3, "alpha": 1.5}
    folder = tmp_path / "cpu" / "cifar10-lenet5-dirichlet0.6-1000"
    keep(folder, [(config, "0", IDENTITIES[0])], range(5, 1001, 5))
    table4_rho.main(
        table4_rho.Table4(
            rounds=1000, methods=("FedSWA",), pilot_rounds=0, rhos=(0.3,), alphas=(1.5,),
            work=tmp_path, output=tmp_path / "out",
        )
    )  # fmt: skip
    written = tmp_path / "out" / "fedswa" / "table4_rho-cpu-1000"
    text = written / "cifar10-lenet5-dirichlet0.6-lr0.1.md"
    assert "| FedSWA | 0.1 | 0.3 | 1.5 | 59.10 |" in text.read_text()
