"""Drift within visits: measured distances beside a NumPy loop, and claims from made-up drifts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import drift, drift_runs

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")


@pytest.mark.slow
def test_distances_of_noiseless_visits_by_numpy(monkeypatch):
    """All clients, one of which has a control; the server's control is not 0 either."""
    monkeypatch.setattr(drift_runs, "NOISE", 0.0)
    problem = drift_runs.quadratic_problem(rounds=2, steps=4)
    A, b = (np.asarray(part, np.float64) for part in problem.exact)
    state = drift_runs.state_after(problem, 0.1, 0)
    rng = np.random.default_rng(0)
    x, m = rng.normal(size=(2, drift_runs.DIM))
    controls = np.zeros_like(b)
    controls[1] = rng.normal(size=drift_runs.DIM)
    state = state._replace(
        server=state.server._replace(params=jnp.asarray(x, jnp.float32), control=jnp.asarray(m)),
        clients=jnp.asarray(controls, jnp.float32),
    )
    rates = drift_runs.schedules(0.1, 4)["Theorem H.1"]
    np.testing.assert_allclose(rates, 0.1 * (2 / 3) ** np.arange(4), rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 2)
    measured = drift_runs.squared_distances(problem, state, rates, keys)
    expected = np.empty((len(b), 4))
    for i in range(len(b)):
        y = x.copy()
        for k in range(4):
            y = y - float(rates[k]) * (A[i] @ (y - b[i]) - controls[i] + m)
            expected[i, k] = ((y - x) ** 2).sum()
    # Single precision; the draws differ in noise only, of which there is none.
    np.testing.assert_allclose(measured, np.repeat(expected[:, None], 2, axis=1), rtol=1e-4)
    bounds = drift_runs.bounds(problem, state, 0.1, rates)
    assert expected.mean() < bounds["recursion"] < 100 * expected.mean()
    assert np.isnan(bounds["a third of Lemma G.12"])  # the rate is too large for the lemma


def test_schedules_have_the_sums_that_their_names_say():
    rates = drift_runs.schedules(0.2, 50)
    np.testing.assert_allclose(rates["constant"], 0.2, rtol=1e-6)
    assert rates[drift_runs.EQUATION_3][0] == rates["constant"][0]
    # K (1 + rho) + 1 - rho, over 2 K.
    sums = [float(rates[name].sum()) for name in (drift_runs.EQUATION_3, drift_runs.SAME_SUM)]
    np.testing.assert_allclose(sums, 0.2 * (50 * 1.1 + 0.9) / 2, rtol=1e-5)


def test_claims():
    """Eq. 3 leaves 0.3, the theorem's rates 0.5, a constant rate with Eq. 3's sum 0.4."""
    shares = {"constant": 1.0, "Theorem H.1": 0.5, "Equation 3, rho 0.1": 0.3}
    shares["constant, sum of Equation 3"] = 0.4
    rows = [
        {"case": case, "round": round, "schedule": name, "drift": share * round}
        | {"a third of Lemma G.12": third}
        for case, third in (("known", 5.0), ("network", np.nan))
        for round in (1, 10)
        for name, share in shares.items()
    ]
    claims = drift.claims(pd.DataFrame(rows))
    holds = [claim.holds for claim in claims if claim.setting == "network"]
    assert holds == [True, False, True, True, True]
    known = [claim for claim in claims if claim.setting == "known"]
    assert [claim.holds for claim in known[:5]] == holds
    # 1 of 5 and 10 of 5.
    assert (known[5].found, known[5].holds) == ("0.2 to 2 of it", True)


@pytest.mark.slow
def test_files(tmp_path, monkeypatch):
    schedules = list(drift_runs.schedules(0.1, 3))
    table = pd.DataFrame(
        [
            {"case": case, "round": round, "schedule": name, "drift": 1.0 + i}
            | {"recursion": 2.0, "a third of Lemma G.12": 3.0}
            for case in ("a", "b")
            for round in (1, 10)
            for i, name in enumerate(schedules)
        ]
    )
    monkeypatch.setattr(drift, "measure", lambda options: table)
    drift.main(dataclasses.replace(drift.Options(), output=tmp_path))
    folder = tmp_path / "fedswa" / "drift"
    written = pd.read_csv(folder / "drift.csv")
    pd.testing.assert_frame_equal(written, table, check_dtype=False)
    assert "The paper's claims" in (folder / "drift.md").read_text()
    assert (folder / "drift.png").stat().st_size > 2_000
