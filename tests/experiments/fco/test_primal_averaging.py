"""Densities of clients' models, their average and the server's model."""

import functools

import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.fco import brains, methods, primal_averaging, primal_averaging_report, scans
from experiments.fco.primal_averaging import Run
from experiments.fco.primal_averaging_report import claims


def densities(run, clients, monkeypatch):
    """By metric, of two seeds and 6 rounds with the first clients of the stand-in."""
    monkeypatch.setattr(primal_averaging, "EVERY", 1)
    data = brains.sparse_classification(0, dim=12, num_nonzero=2)
    rows = np.split(np.arange(18 * clients), clients)
    train = fs.from_assignment(data.train.examples, rows)
    shared = scans.make_problem(
        data, train, weight=0.05, batches=fs.epochs(1, 1), rounds=6, cohort=clients, seeds=2
    )
    found = primal_averaging.measure(run, shared)
    assert found[["seed", "round"]].to_numpy().tolist() == [
        [seed, done] for seed in range(2) for done in range(1, 7)
    ]
    return {str(name): found[name].to_numpy() for name in ("clients", "average", "server")}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedDualAvg", "FedMiD"])
def test_the_average_of_one_client_is_its_model(method, monkeypatch):
    """And FedDualAvg's server has that model, too, whose dual state it takes over.

    FedMiD's has it without its own proximal step.  Densities are multiples of 1/12.
    """
    plain = functools.partial(fs.fedmid, server_prox=False)
    monkeypatch.setitem(methods.METHODS, "FedMiD", plain)
    found = densities(Run(method, 0.02, 1.0), 1, monkeypatch)
    np.testing.assert_allclose(found["clients"], found["average"], atol=1e-6)
    np.testing.assert_allclose(found["clients"], found["server"], atol=1e-6)
    assert found["clients"].min() < 1


@pytest.mark.slow
def test_averages_of_several_clients_are_denser(monkeypatch):
    """Supports of clients differ; the server's own proximal step makes its model sparser again."""
    found = densities(Run("FedMiD", 0.02, 1.0), 4, monkeypatch)
    assert (found["average"] > found["clients"] + 1e-6).any()
    assert (found["server"] <= found["average"] + 1e-6).all()
    assert (found["server"] < found["average"] - 1e-6).any()


def test_claims_have_the_differences_of_the_same_seed():
    rows = [
        {
            "run": "FedMiD, 0.1, 1",
            "seed": seed,
            "round": done,
            "clients": clients,
            "average": mean,
            "server": 0.3 + seed,
        }
        for seed, clients, mean in ((0, 0.1, 0.6), (1, 0.6, 0.6))
        for done in (10, 20)
    ]
    sparse, denser = claims(pd.DataFrame(rows))
    np.testing.assert_allclose(sparse.margins, [[0.4, -0.1]])  # below 0.5
    np.testing.assert_allclose(denser.margins, [[0.5, 0.0]], atol=1e-12)
    sparse, denser = claims(pd.DataFrame(rows[:2]))
    assert (sparse.holds, denser.holds) == (True, True)
    assert denser.found == {"least difference": 0.5, "largest": 0.5}
    dual = [row | {"run": "FedDualAvg, 0.1, 1", "server": 0.2 + row["seed"]} for row in rows]
    tested, *_ = claims(pd.DataFrame([*rows, *dual]))  # 0.3 and 1.3 against 0.2 and 1.2
    np.testing.assert_allclose(tested.margins, [[0.1, 0.1]])
    dense = [row | {"run": "FedDualAvg, 1, 1", "server": 0.5 + row["seed"]} for row in rows]
    tested, *_ = claims(pd.DataFrame([*rows, *dual, *dense]))  # its densest run
    np.testing.assert_allclose(tested.margins, [[-0.2, -0.2]])
    assert not tested.holds


@pytest.mark.slow
def test_primal_averaging_files(tmp_path, monkeypatch):
    monkeypatch.setattr(primal_averaging, "RUNS", primal_averaging.RUNS[-1:])
    options = primal_averaging.Options(
        source="synthetic", voxels=12, rounds=20, seeds=2, output=tmp_path
    )
    primal_averaging.main(options)
    folder = tmp_path / "primal_averaging"
    assert set(pd.read_csv(folder / "figure-1.1.csv")["round"]) == {10, 20}
    text = (folder / "figure-1.1.md").read_text()
    assert "SYNTHETIC STAND-IN" in text
    assert (folder / "figure-1.1.png").stat().st_size > 2_000
    (folder / "figure-1.1.md").unlink()
    primal_averaging_report.redraw(folder)
    assert (folder / "figure-1.1.md").read_text() == text


def test_bad_options_raise():
    with pytest.raises(ValueError, match="seeds is 0; expected at least 1"):
        primal_averaging.Options(seeds=0)
