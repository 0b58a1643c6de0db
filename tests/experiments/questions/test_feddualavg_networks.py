"""Networks in l1 balls: starts, measures and choices by hand, planted tables, a small run."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree

import fedjax_sim as fs
from experiments.questions import feddualavg_networks as study
from experiments.questions import feddualavg_networks_problem as problem
from experiments.questions import feddualavg_networks_runs as runs
from experiments.questions import feddualavg_networks_tables as tables
from experiments.questions.feddualavg_networks_answers import answers
from experiments.questions.feddualavg_networks_problem import AVERAGED, METHODS, Cell
from experiments.questions.feddualavg_networks_report import STUDY

CELL = Cell("network", 10.0, 2, 0.1)


@dataclasses.dataclass(frozen=True)
class Centred:
    """Half the squared distance to a centre."""

    centre: float

    def value(self, x):
        return ((x - self.centre) ** 2).sum() / 2

    def to_dual(self, x):
        return x - self.centre

    def to_primal(self, y):
        return y + self.centre

    def argmin(self, psi, y, c):
        return psi.prox(y + self.centre, c)


def trained(cell, method, *, rounds=2, mirror=None, params=None, lr=0.3):
    """The last model of one seed."""
    setup, _ = problem.make_setup(cell, 0, rounds)
    if params is not None:
        setup = dataclasses.replace(setup, params=params(setup.params))
    where = fs.prox.kernels
    composite = fs.prox.composite(fs.prox.L1Ball(cell.radius), mirror, where)
    algorithm = METHODS[method](lr, composite, 1.0, project_start=True)
    final, _ = jax.jit(lambda setup: fs.run(algorithm, setup, jax.random.key(1)))(setup)
    return final.server.params


@pytest.mark.slow
def test_the_prox_centre_drops_out():
    """A dual that starts at h's gradient has the centre of a squared norm twice, with two signs."""
    models = [trained(CELL, "FedDualAvg", mirror=mirror) for mirror in (None, Centred(0.25))]
    for plain, centred in zip(*map(jax.tree.leaves, models), strict=True):
        # Sums with the centre round at its size, 0.25; a projection adds such errors up.
        np.testing.assert_allclose(plain, centred, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedDualAvg", "FedMiD"])
def test_kernels_of_0_never_move(method):
    start = jax.tree.map(jnp.zeros_like, problem.network("network").init(jax.random.key(0)))
    model = trained(CELL, method, params=lambda params: start)
    for layer in model.values():
        assert not np.any(layer["kernel"])
    assert np.any(model["dense2"]["bias"])


@pytest.mark.slow
def test_methods_are_fedavg_in_a_ball_that_never_binds():
    wide = CELL._replace(radius=1e6)
    setup, _ = problem.make_setup(wide, 0, 2)
    final, _ = jax.jit(lambda setup: fs.run(fs.fedavg(0.3), setup, jax.random.key(1)))(setup)
    for method in (name for name in METHODS if name != AVERAGED):
        found = trained(wide, method)
        for one, other in zip(*map(jax.tree.leaves, (found, final.server.params)), strict=True):
            # Dual states add steps in another order: a few roundings of entries of size 1.
            np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_distance_of_the_average_by_two_runs():
    """With one step per round the average after two rounds is that of the models after 1 and 2."""
    cell, pairs = CELL._replace(num_steps=1), np.array([[0.3, 1.0]])
    found = runs.measured(cell, AVERAGED, pairs, [0], 2)
    algorithm = fs.feddualavg(0.3, problem.ball(cell.radius))
    models = []
    for rounds in (1, 2):
        setup, _ = problem.make_setup(cell, 0, rounds)
        final, _ = jax.jit(lambda setup: fs.run(algorithm, setup, runs.seed_keys(1)[0]))(setup)
        models.append(ravel_pytree(final.server.params)[0])
    expected = np.linalg.norm(models[0] - models[1]) / 2 / np.linalg.norm(models[1])
    # Models of size 5 after gradients in single precision.
    assert found["distance"].item() == pytest.approx(expected, rel=1e-4)


def test_measures_by_hand():
    first = jnp.array([[1.0, 0.0, -2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])  # [outputs, inputs]
    second = jnp.array([[1.0, 1.0, 0.0], [0.0, 0.5, 5e-5]])
    bias = {"bias": jnp.ones(3)}
    params = {"dense1": {"kernel": first, **bias}, "dense2": {"kernel": second, **bias}}
    assert float(problem.density(params)) == pytest.approx(6 / 15)  # 5e-5 counts as 0
    # l1 norms 6 and 2.50005 in balls of radius 10.
    assert float(problem.sizes(params, 10.0)) == pytest.approx((0.6 + 0.250005) / 2)
    # The second unit has no weights in; the third has a small one out.
    assert float(problem.live_units(params)) == pytest.approx(2 / 3)
    assert float(problem.live_units({"dense1": params["dense1"]})) == 1


def test_starts():
    params = problem.network("network").init(jax.random.key(3))
    sizes = {}
    for start in problem.STARTS:
        model = problem.started(params, CELL._replace(start=start))
        assert not np.any(model["dense1"]["bias"])
        sizes[start] = [float(jnp.abs(layer["kernel"]).sum()) for layer in model.values()]
    # Means of |uniform| are half its bound: 1024 sqrt(6 / 80) / 2 and 160 sqrt(6 / 26) / 2.
    assert sizes["projected"] == pytest.approx([140.2, 38.4], rel=0.1)
    assert sizes["scaled"] == pytest.approx([10, 10], rel=1e-5)
    assert sizes["near 0"] == pytest.approx([size / 100 for size in sizes["projected"]], rel=1e-5)
    assert sizes["outside"] == sizes["projected"]


def test_digits_are_used_once():
    parts = problem.split(4)
    assert [len(part["y"]) for part in parts.values()] == [800, 400, 597]
    one, other = (
        np.sort(np.concatenate([part["x"].sum(1) for part in problem.split(seed).values()]))
        for seed in (4, 5)
    )
    np.testing.assert_array_equal(one, other)
    setup, own = problem.make_setup(CELL, 4, 1)
    assert setup.task.num_clients == problem.CLIENTS
    assert len(own["train"]["y"]) == 800


def test_rates_are_those_of_the_least_validation_loss(monkeypatch):
    asked = []

    def measured(cell, method, pairs, seeds, rounds):
        asked.append(pairs)
        loss = np.abs(np.log10(pairs[:, 0]) + 1) + pairs[:, 1]
        loss = np.where(pairs[:, 0] == 0.01, np.nan, loss)  # diverged
        scored = {name: np.stack([10 * loss, 20 * loss]) for name in runs.METRICS}
        return scored | {runs.CHOSEN_BY: np.stack([loss, loss])}

    monkeypatch.setattr(runs, "measured", measured)
    row = runs.tuned(CELL, "FedMiD", (0.01, 0.1, 1.0), (1.0, 3.0), 5, 2)
    assert (row["lr"], row["server_lr"], row["at edge"]) == (0.1, 1.0, False)
    assert (row["train loss 0"], row["train loss 1"]) == (10, 20)
    assert len(asked[0]) == 6
    row = runs.tuned(CELL, AVERAGED, (0.1, 1.0), (3.0,), 5, 2)
    assert asked[1].tolist() == [[0.1, 1.0], [1.0, 1.0]]
    assert row["at edge"]


LOSSES = {
    "FedDualAvg": 0.5,
    "FedDualAvg-OSP": 2.0,
    "FedMiD": 1.0,
    "FedMiD-OSP": 1.02,
    AVERAGED: 1.0,
}


@pytest.fixture
def table():
    """FedDualAvg has half of FedMiD's loss but for softmax at K = 1, and a fifth of its density."""
    rows = []
    for cell, method in study.points(study.Options(radii=(10.0, 30.0), steps=(1, 16))):
        loss = LOSSES[method] * {"projected": 1, "outside": 1.2}.get(cell.start, 1.02)
        loss = 1.0 if (cell.model, cell.num_steps) == ("softmax", 1) else loss
        dense = 0.1 if method == "FedDualAvg" else 0.5
        row = {**cell._asdict(), "method": method, "lr": 0.1, "server_lr": 1.0, "at edge": False}
        for seed in range(5):
            row[f"train loss {seed}"] = loss * (1 + seed)
            row[f"test accuracy {seed}"] = 0.5 + 0.1 * (method == "FedDualAvg")
            row[f"density {seed}"] = row[f"client density {seed}"] = dense
            row[f"live units {seed}"] = dense
            row[f"size {seed}"] = 1.0
            row[f"distance {seed}"] = 0.25 if method == AVERAGED else math.nan
        rows.append(row)
    return pd.DataFrame(rows)


def test_ratios_are_paired_by_seed(table):
    point = {"model": "network", "radius": 10.0, "alpha": 0.1, "num_steps": 16}
    # Losses of seeds differ by five times, ratios not at all.
    ratio = tables.over(table, "train loss", "FedDualAvg", "FedMiD", **point)
    assert tuple(ratio) == pytest.approx((0.5, 0.5, 0.5))
    begun = tables.started(
        table, "train loss", "outside", **(point | {"radius": 30.0}), method="FedMiD"
    )
    assert begun.mean == pytest.approx(1.2)
    with pytest.raises(ValueError, match="which 0 rows have; expected one row"):
        tables.scores(table, "density", method="FedAvg", **point)
    assert set(tables.means(table, "density")["FedMiD"]) == {0.5}
    assert len(tables.compared(table)) == len(tables.means(table, "density")) == 16


def test_page_of_planted_results(table):
    found = answers(table)
    # Its loss in the network is lower at K = 1, too, against the third expectation.
    assert [one.right for one in found] == [True, True, False, True, True, True, True]
    facts = {"rounds": 60, "seeds": 5}
    page = STUDY.page({"": table}, facts)
    assert "the network FedDualAvg has 0.5 [0.5, 0.5] times FedMiD's training loss" in page.found
    assert "0.2 [0.2, 0.2] times its density; in softmax regression 0.707" in page.found
    assert "its lead is larger in loss, as large in density" in page.found
    assert "Loss over FedMiD-OSP's: 0.49 [0.49, 0.49] (K = 1)" in page.found
    assert len(page.found) < 400
    assert "0.25 to 0.25 of the last model's norm" in found[5].found
    sparse = table.copy()
    convex = (sparse["model"] == "softmax") & (sparse["method"] == "FedDualAvg")
    sparse.loc[convex, [f"density {seed}" for seed in range(5)]] /= 2
    found = STUDY.page({"": sparse}, facts).found
    assert "its lead is larger in loss, smaller in density" in found
    report, figures = STUDY.build({"": table}, facts)
    assert list(figures) == ["feddualavg_networks"]
    assert "## Starts over the projected one" in report.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"radii": (0.0,)}, "radii is"),
        ({"lrs": ()}, "lrs is"),
        ({"seeds": 1}, "seeds is 1"),
        ({"rounds": 0}, "rounds is 0"),
    ],
)
def test_bad_options_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        study.Options(**given)


def test_finished_points_are_not_repeated(table, tmp_path, monkeypatch):
    options = study.Options(
        radii=(10.0, 30.0), steps=(1, 16), work=tmp_path / "work", output=tmp_path / "results"
    )
    planted = {tuple(row[:6]): row for row in table.itertuples(index=False)}
    calls = []

    def tuned(cell, method, lrs, server_lrs, rounds, seeds):
        calls.append((*cell, method))
        assert (lrs, server_lrs, rounds, seeds) == (options.lrs, options.server_lrs, 60, 5)
        return dict(zip(table.columns, planted[calls[-1]], strict=True))

    monkeypatch.setattr(study, "tuned", tuned)
    study.main(options)
    assert len(calls) == len(set(calls)) == len(table) == 2 * 2 * 2 * 2 * len(METHODS) + 2 * 3
    folder = tmp_path / "results" / "questions" / "feddualavg_networks"
    first = (folder / "feddualavg_networks.csv").read_text()
    pd.testing.assert_frame_equal(
        pd.read_csv(folder / "feddualavg_networks.csv"), table, check_dtype=False, rtol=1e-4
    )
    assert (folder / "feddualavg_networks.png").stat().st_size < 100_000
    study.main(options)
    assert len(calls) == len(table)
    assert (folder / "feddualavg_networks.csv").read_text() == first


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedDualAvg", "FedMiD-OSP"])
def test_small_run(method):
    """Two rates and two seeds for two rounds: a finite score of every metric, inside the balls."""
    row = runs.tuned(CELL, method, (0.1, 0.3), (1.0, 3.0), 2, 2)
    for name in (name for name in runs.METRICS if name != "distance"):
        assert np.isfinite([row[f"{name} {seed}"] for seed in range(2)]).all()
    # Scores have four digits.
    assert max(row["size 0"], row["size 1"]) <= 1.0005
    assert row["train loss 0"] != row["train loss 1"]
