"""Flatness: its tables from made-up measurements, and runs with checkpoints that they need."""

import dataclasses
import json

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import loss_surface, problem, redraw, runs, surface_tables, table2
from experiments.fedswa.flatness import Measured
from experiments.fedswa.settings import COLUMNS, Options, skewed
from experiments.harness import read_tables
from fedjax_sim import datasets, models
from fedjax_sim.diagnostics.surfaces import Surface

SETTING = skewed(COLUMNS["cifar10-lenet5"])


def bowl(height):
    """``height * (a^2 + b^2)`` with unequal axes."""
    a, b = np.linspace(-1, 1, 5), np.linspace(-2, 2, 7)
    return Surface(a, b, height * (a[:, None] ** 2 + b**2) + 0.5)


def measurement(method, seed, top):
    row = {"method": method, "lr": 0.1, "seed": seed, "train loss": 1.0, "top eigenvalue": top}
    row |= dict.fromkeys(surface_tables.RISES.values(), top / 10)
    grids = {name: bowl(top) for name in ("train", "test", "clients")}
    return Measured(row, grids, np.array([[0.0, 0.0], [0.5, -0.5]]))


@pytest.fixture
def results():
    tops = {"FedAvg": (4.0, 6.0), "FedSWA": (2.0, 3.0), "FedMoSWA": (7.0, 9.0)}
    return {
        (m, seed): measurement(m, seed, top) for m, v in tops.items() for seed, top in enumerate(v)
    }


def test_surfaces_survive_their_file(results):
    tables = surface_tables.tables(results)
    assert len(tables[""]) == 6
    part = tables["surfaces"].query("surface == 'train' and method == 'FedSWA'")
    drawn = surface_tables._surface(part)
    expected = bowl(2.0)  # the first seed's
    for field, values in expected._asdict().items():
        np.testing.assert_allclose(getattr(drawn, field), values)
    assert tables["dots"].query("method == 'FedSWA'")["b"].tolist() == [0, -0.5]


def test_claims_compare_means_over_seeds(results):
    claims = {
        claim.text: claim for claim in surface_tables.claims(surface_tables.tables(results)[""])
    }
    claim = claims["FedSWA is flatter than FedAvg: top eigenvalue"]
    assert (claim.holds, claim.found) == (True, {"FedSWA": 2.5, "FedAvg": 5.0})
    assert not claims["FedMoSWA is flatter than FedAvg: train rise, r = 0.5"].holds
    assert not any("FedSAM" in text for text in claims)


@pytest.mark.slow
def test_report_is_written_and_redrawn(results, tmp_path, monkeypatch):
    monkeypatch.setattr(loss_surface, "measured", lambda setting, lrs, options: results)
    options = loss_surface.LossSurface(
        pilot_rounds=0, seeds=2, rounds=1000, concentration=0.6, work=tmp_path, output=tmp_path
    )
    loss_surface.main(options)
    folder, name = tmp_path / "fedswa" / "loss_surface-cpu-1000", f"{SETTING.name}-lr0.1"
    text = (folder / f"{name}.md").read_text()
    assert "| FedSWA | 2 | 0.1 | 1 | 2.5 |" in text
    assert set(read_tables(folder, name)) == {"", "surfaces", "dots"}
    figures = sorted(path.name for path in folder.glob("*.png"))
    assert figures == [
        f"{name}-{part}.png" for part in ("clients", "test-contours", "train-contours")
    ]
    assert (tmp_path / f"{name}-train-relief.png").exists()
    for path in folder.glob("*.png"):
        path.unlink()
    (folder / f"{name}.md").unlink()
    redraw.redraw(tmp_path / "fedswa")
    assert (folder / f"{name}.md").read_text() == text
    assert sorted(path.name for path in folder.glob("*.png")) == figures


def test_only_finished_runs_are_reported(tmp_path, monkeypatch):
    """Of two methods and two seeds one run is there; the other three are run without --finished."""
    history = pd.DataFrame(
        [("0", 0, done, m, 0.1 * done) for done in (5, 10) for m in ("test/accuracy", "test/loss")],
        columns=["seed", "diverged_at", "round", "metric", "value"],
    )
    made = []

    def simulated(setting, configuration, seed, options):
        made.append((configuration["method"], seed))
        path = runs.run_folder(setting, configuration, seed, options)
        path.mkdir(parents=True)
        frame = history.assign(seed=seed)
        return type("Result", (), {"to_frame": staticmethod(lambda: frame)})

    monkeypatch.setattr(runs, "simulated", simulated)
    options = Options(seeds=2, pilot_rounds=0, checkpoints=True, finished=True, work=tmp_path)
    grid = {"FedAvg": [{}], "FedSWA": [{}]}
    with pytest.raises(SystemExit, match="has no finished run of FedAvg, FedSWA"):
        runs.compared(SETTING, grid, options)
    one = dataclasses.replace(options, finished=False, seeds=1)
    runs.compared(SETTING, {"FedSWA": [{}]}, one)
    found, lrs = runs.compared(SETTING, grid, options)
    assert set(zip(found["method"], found["lr"], found["seed"], strict=True)) == {
        ("FedSWA", 0.1, 0)
    }
    assert lrs == {"FedAvg": 0.1, "FedSWA": 0.1}
    found, _ = runs.compared(SETTING, grid, dataclasses.replace(options, finished=False))
    assert made == [("FedSWA", 0), ("FedAvg", 0), ("FedAvg", 1), ("FedSWA", 1)]
    assert len(found) == 4 * len(history)
    assert list(found.columns[:3]) == ["method", "lr", "seed"]


@pytest.mark.slow
def test_a_run_with_checkpoints_equals_the_sweep(tmp_path, monkeypatch):
    """Seed 1 of two; a linear model of 2 x 2 images."""

    def part(count):
        x = (np.arange(count * 12) % 251).astype(np.uint8).reshape(count, 2, 2, 3)
        return {"x": x, "y": (np.arange(count) % 10).astype(np.int32)}

    dataset = datasets.Dataset("made up", part(3000), part(50), 10, None, None, None, "files")
    model = models.Model(
        lambda key: {"w": jax.random.normal(key, (12, 10)) / 251},
        lambda params, x: x.reshape(len(x), -1) @ params["w"],
    )
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: dataset)
    monkeypatch.setattr(problem, "build_model", lambda *arguments: model)
    options = table2.Table2(
        scale="smoke", rounds=2, seeds=2, pilot_rounds=0, methods=("FedMoSWA",), work=tmp_path
    )
    swept, _ = runs.compared(SETTING, {"FedMoSWA": [{}]}, options)
    kept = dataclasses.replace(options, checkpoints=True)
    found, _ = runs.compared(SETTING, {"FedMoSWA": [{}]}, kept)
    names = ["seed", "round", "metric"]
    both = swept.merge(found, on=names)
    assert len(both) == len(swept) == len(found)
    accuracy = both[both["metric"].str.contains("/")]
    # Single precision, compiled twice.
    np.testing.assert_allclose(accuracy["value_x"], accuracy["value_y"], rtol=1e-4)
    folder = runs.run_folder(SETTING, {"method": "FedMoSWA", "lr": 0.1}, 1, kept)
    assert json.loads((folder / "run.json").read_text())["replicas"] == ["1"]
    again, _ = runs.compared(SETTING, {"FedMoSWA": [{}]}, dataclasses.replace(kept, finished=True))
    pd.testing.assert_frame_equal(again, found)


def test_measurements_with_other_options_are_kept_apart():
    """The name at the defaults is that of the first kept measurements."""
    names = {
        loss_surface.LossSurface(**{name: value}).label_of_measurements
        for name, value in [("points", 51), ("points", 7), ("examples", 500), ("extent", 2.0),
                            ("iterations", 40)]
    }  # fmt: skip
    assert len(names) == 5
    assert "51-1-10000" in names
