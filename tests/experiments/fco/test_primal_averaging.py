"""Densities of clients' models, their average and the server's model."""

import functools

import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.fco import methods, primal_averaging, primal_averaging_report, recovery
from experiments.fco.lasso import LASSO
from experiments.fco.recovery import DataSet


def densities(run, clients):
    """By metric ``[T]``: a run of 6 rounds with that many clients in all."""
    experiment = LASSO._replace(sets={"I": DataSet(3, 8, clients, 23)})
    shared = recovery.make_problem(experiment, "I", recovery.Options(rounds=6)).shared
    history = primal_averaging.measure(run, shared)
    assert history["round"].max() == 6
    return {str(name): part["value"].to_numpy() for name, part in history.groupby("metric")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "FedDualAvg",
        pytest.param("FedMiD", marks=pytest.mark.slow),
        pytest.param("FedDualAvg-OSP", marks=pytest.mark.slow),
    ],
)
def test_the_average_of_one_client_is_its_model(method):
    """And FedDualAvg's server has that model, too, whose dual state it takes over."""
    found = densities(primal_averaging.Run(method, 0.02), clients=1)
    for cutoff in ("0", "0.01"):
        alone = found[f"clients > {cutoff}"]
        np.testing.assert_array_equal(alone, found[f"average > {cutoff}"])
        if method.startswith("FedDualAvg"):
            np.testing.assert_allclose(alone, found[f"server > {cutoff}"], atol=1e-6)
    assert found["clients > 0.01"].min() < 1


@pytest.mark.slow
def test_one_clients_model_is_fedmids_server_without_its_proximal_step(monkeypatch):
    plain = functools.partial(fs.fedmid, server_prox=False)
    monkeypatch.setitem(methods.METHODS, "FedMiD", plain)
    found = densities(primal_averaging.Run("FedMiD", 0.02), clients=1)
    # x - (x - end) is end up to rounding, and 0 where it is 0.
    for cutoff in ("0", "0.01"):
        np.testing.assert_allclose(
            found[f"clients > {cutoff}"], found[f"server > {cutoff}"], atol=1e-6
        )
    assert found["clients > 0.01"].min() < 1


@pytest.mark.slow
def test_averages_have_the_union_of_the_supports():
    found = densities(primal_averaging.Run("FedDualAvg", 0.02), clients=4)
    assert (found["average > 0"] >= found["clients > 0"] - 1e-6).all()
    assert (found["average > 0"] > found["clients > 0"] + 1e-6).any()
    assert (found["server > 0"] <= found["average > 0"] + 1e-6).all()


@pytest.mark.slow
def test_primal_averaging_files(tmp_path, monkeypatch):
    tiny = LASSO._replace(sets={"IV": DataSet(3, 8, 6, 12)})
    monkeypatch.setattr(primal_averaging, "LASSO", tiny)
    monkeypatch.setattr(primal_averaging, "RUNS", primal_averaging.RUNS[-1:])
    options = primal_averaging.Options(sets=("IV",), rounds=20, output=tmp_path)
    primal_averaging.main(options)
    folder = tmp_path / "primal_averaging"
    assert set(pd.read_csv(folder / "IV.csv")["round"]) == {1, 10, 20}
    assert "| run | density of | round 20 |" in (folder / "IV.md").read_text()
    assert (folder / "IV.png").stat().st_size > 2_000
    text = (folder / "IV.md").read_text()
    (folder / "IV.md").unlink()
    primal_averaging_report.redraw(folder, "IV")
    assert (folder / "IV.md").read_text() == text


def test_unknown_sets_raise():
    with pytest.raises(ValueError, match=r"sets is \('V',\)"):
        primal_averaging.Options(sets=("V",))
