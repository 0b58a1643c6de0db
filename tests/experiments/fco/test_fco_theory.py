"""The theorems' experiment: its constants are what they say, and its table comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.fco import quadratics, theorems, theory, theory_report
from experiments.fco.quadratics import DIM, NOISE, NUM_CLIENTS
from experiments.fco.theorems import RADIUS
from experiments.fco.theory import Options


@pytest.fixture(scope="module")
def problem():
    return quadratics.make_problem(0)


def found(problem, name):
    (theorem,) = [t for t in theorems.theorems(problem) if t.name == name]
    return theorem.constants


def gradients(problem, client, x, count=2000):
    """Noisy ones of a client, ``[count, d]``."""

    def one(key):
        return quadratics.oracle(problem, client, key, 1).grad(jnp.asarray(x), 0)

    return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(3), count)))


def test_noise_has_the_lengths_that_the_constants_say(problem, x64):
    """Both norms; means over 2,000 draws, whose errors are a few percent."""
    x = np.linspace(-1, 1, DIM)
    exact = problem.hessian @ x + problem.linear[2]
    noise = gradients(problem, 2, x) - exact
    np.testing.assert_allclose(np.linalg.norm(noise, axis=1), NOISE, rtol=1e-12)
    sigma = np.sqrt(np.mean(quadratics.dual_norm(problem, noise) ** 2))
    assert sigma == pytest.approx(found(problem, "4.7").sigma, rel=0.05)
    # Unbiased: the mean of so many has a length of about NOISE / sqrt(2000).
    assert np.linalg.norm(noise.mean(0)) < 3 * NOISE / 2000**0.5


def test_no_gradient_in_the_ball_exceeds_its_bound(problem, x64):
    bound = found(problem, "4.4").G
    rng = np.random.default_rng(0)
    largest = 0.0
    for corner in (*np.eye(DIM), *-np.eye(DIM)):
        inside = RADIUS * (0.9 * corner + 0.1 * rng.dirichlet(np.ones(DIM)))
        for point in (RADIUS * corner, inside):
            for client in range(NUM_CLIENTS):
                size = np.linalg.norm(problem.hessian @ point + problem.linear[client]) + NOISE
                largest = max(largest, size)
    assert largest == pytest.approx(bound, rel=1e-12)  # a corner attains it


def test_dual_norm_is_dual(problem):
    """sup <y, x> over sqrt(x' A x / ||A||) <= 1 is attained at x proportional to A^-1 y."""
    y = np.random.default_rng(1).normal(size=DIM)
    x = np.linalg.solve(problem.hessian, y)
    x /= np.sqrt(x @ problem.hessian @ x / problem.smoothness)
    assert y @ x == pytest.approx(float(quadratics.dual_norm(problem, y)), rel=1e-10)


@pytest.mark.slow
def test_table_of_short_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(theory, "LOCAL_STEPS", (2,))
    theory.main(Options(rounds=(4, 32), repetitions=2, output=tmp_path))
    table = pd.read_csv(tmp_path / "theory" / "theory.csv")
    assert len(table) == 2 * len(theorems.theorems(quadratics.make_problem(0)))
    proved = table["theorem"] != theorems.NOT_A_THEOREM
    assert table.loc[proved, "holds"].all()
    assert (table["gap"] > 0).all()
    # Tuned bounds are upper bounds of the bounds at the prescribed rates.
    assert (table["bound"] <= table["tuned bound"] * (1 + 1e-4)).all()
    text = (tmp_path / "theory" / "theory.md").read_text()
    assert "Theorems: 8 of 8 bounds hold." in text
    (tmp_path / "theory" / "theory.md").unlink()
    theory_report.redraw(tmp_path / "theory")
    assert (tmp_path / "theory" / "theory.md").read_text() == text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"rounds": ()}, "rounds is"), ({"rounds": (0,)}, "rounds is"), ({"repetitions": 1}, "is 1")],
)
def test_refusals(wrong, message):
    with pytest.raises(ValueError, match=message):
        Options(**wrong)
