"""Accuracy against the spectral gap: table by hand, evaluation of clients' models, a short run."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.topologies import gap
from experiments.topologies.gap_report import KEYS, scores, summary
from experiments.topologies.redraw import redraw


def test_gaps_are_those_of_the_shares():
    """A share a leaves 1 - a of the gap where the second largest eigenvalue is positive."""
    for name, graph in gap.GRAPHS.items():
        whole = graph.spectral_gap
        found = [graph.lazy(share).spectral_gap for share in gap.SHARES]
        expected = [(1 - share) * whole for share in gap.SHARES]
        np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)


def test_scores_and_summary():
    rows = [
        ("D-PSGD", 0.1, "ring", share, seed, done, metric, value + share + 0.1 * seed + 0.01 * done)
        for share in (0.0, 0.5)
        for seed in (0, 1, 2)
        for done in (1, 2)
        for metric, value in [("mean/accuracy", 0.2), ("worst/accuracy", 0.1), ("consensus", 3.0)]
    ]
    columns = ["method", "alpha", "graph", "share", "seed", "round", "metric", "value"]
    table = scores(pd.DataFrame(rows, columns=columns), {("ring", 0.0): 0.4, ("ring", 0.5): 0.2})
    assert table.shape == (6, len(KEYS) + 4)
    found = summary(table)
    assert found["gap"].tolist() == [0.2, 0.4]
    np.testing.assert_allclose(found["accuracy"], [0.82, 0.32], rtol=1e-12)
    np.testing.assert_allclose(found["worst client"], [0.72, 0.22], rtol=1e-12)
    np.testing.assert_allclose(found["distance"], [3.62, 3.12], rtol=1e-12)
    # Student's quantile of 2 degrees of freedom times 0.1 / sqrt(3).
    half = 4.302653 * 0.1 / 3**0.5
    np.testing.assert_allclose(found["high"] - found["accuracy"], half, rtol=1e-6)
    table.loc[table["seed"] == 1, ["mean/accuracy", "worst/accuracy", "consensus"]] = np.nan
    assert summary(table)[["accuracy", "worst client", "distance"]].isna().all(axis=None)


def test_clients_are_evaluated_with_their_own_models():
    algorithm = fs.topologies.d_psgd(0.1, fs.topologies.ring(3))
    server = algorithm.init(jnp.array(2.0))._replace(models=jnp.array([1.0, 2.0, 3.0]))
    state = fs.RunState(jnp.array(1), server, (), (), jnp.array(0))
    eval_fn = Partial(gap.of_clients, Partial(lambda params: {"test/accuracy": params / 4}))
    found = fs.evaluation.evaluate(eval_fn, state)
    expected = {"mean/accuracy": 0.5, "worst/accuracy": 0.25, "consensus": 2 / 3}
    assert found == pytest.approx(expected)


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path, monkeypatch):
    monkeypatch.setattr(gap, "GRAPHS", {name: gap.GRAPHS[name] for name in ("ring", "complete")})
    options = gap.Options(rounds=2, seeds=2, alphas=(0.1,), work=tmp_path / "work", output=tmp_path)
    gap.main(options)
    folder = tmp_path / "topologies" / "gap"
    text = (folder / "gap.md").read_text()
    assert "| gradient tracking |" in text
    assert (folder / "gap.png").exists()
    (folder / "gap.md").unlink()
    redraw(tmp_path / "topologies")
    assert (folder / "gap.md").read_text() == text


def test_options_are_checked():
    with pytest.raises(ValueError, match="seeds is 0; expected at least 1"):
        gap.Options(seeds=0)
