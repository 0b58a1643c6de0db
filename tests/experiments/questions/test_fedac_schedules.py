"""The study of FedAc's schedules: its problem, its methods against NumPy, its page, a small run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.questions import fedac_schedules as study
from experiments.questions import fedac_schedules_problem as problem
from experiments.questions import fedac_schedules_report as report
from experiments.questions import fedac_schedules_search as search
from experiments.questions.fedac_schedules_problem import CLIENTS, FEATURES, STEPS

LR, SLOPE = 2.0, 0.5
FACTS = {"seeds": 8, "tuning_seeds": 2, "updates": 3}


def gradient(w):
    rows, labels = problem.examples()
    return rows.T @ (1 / (1 + np.exp(-rows @ w)) - labels) / len(rows)


def test_optimum_and_gaps():
    assert np.abs(gradient(problem.optimum())).max() < 1e-13
    assert problem.gaps(problem.optimum()) == 0
    assert problem.gaps(np.zeros(FEATURES)) == pytest.approx(np.log(2) - 0.41476, abs=1e-5)
    assert np.isnan(problem.gaps(np.full(FEATURES, np.inf)))
    h, direction = 1e-5, np.arange(FEATURES) / FEATURES
    slope = (problem.loss(h * direction) - problem.loss(-h * direction)) / (2 * h)
    assert gradient(np.zeros(FEATURES)) @ direction == pytest.approx(slope, rel=1e-8)
    # Single precision: a sum of 1,024 examples.
    np.testing.assert_allclose(
        problem.mean_loss(jnp.ones(FEATURES, jnp.float32)),
        problem.loss(np.ones(FEATURES)),
        rtol=1e-5,
    )


def without_noise(num_rounds):
    """The setup with the gradients of all examples."""
    setup = problem.make_setup(1, num_rounds)
    task = dataclasses.replace(fs.empirical_task(
        problem._losses, fs.from_assignment(
            dict(zip("xy", (jnp.asarray(v, jnp.float32) for v in problem.examples()), strict=True)),
            [np.arange(problem.EXAMPLES)] * CLIENTS, disjoint=False,
        ), fs.full_batch(STEPS),
    ))  # fmt: skip
    return dataclasses.replace(setup, task=task)


def test_direct_method_in_numpy():
    """Two rounds without noise, in which all clients take the same steps."""
    x = ag = np.zeros(FEATURES)
    for after in (1, 2):
        beta, gamma = STEPS * after / 2 + 1, SLOPE * LR * after
        for _ in range(STEPS):
            middle = x / beta + (1 - 1 / beta) * ag
            g = gradient(middle)
            ag, x = middle - LR * g, x - gamma * g
    hyper = {"lr": jnp.array([LR]), "second": jnp.array([SLOPE])}
    key = jax.random.key(0)[None]
    found = problem.final_models(problem.direct, without_noise(2), hyper, key)
    # 32 accelerated steps in single precision.
    np.testing.assert_allclose(found[0, 0], ag, rtol=1e-4, atol=1e-5)


def test_learned_schedules_begin_at_the_direct_ones():
    setup, keys = problem.make_setup(1, 3), jax.random.split(jax.random.key(0), 2)
    start = jax.tree.map(lambda x: x[None], problem.logarithms(LR / 8, SLOPE, 3))
    given = {"lr": jnp.array([LR / 8]), "second": jnp.array([SLOPE])}
    learned = problem.final_models(problem.learned, setup, start, keys)
    direct = problem.final_models(problem.direct, setup, given, keys)
    # Exponentials of logarithms, and 48 steps in single precision.
    np.testing.assert_allclose(learned, direct, rtol=1e-3, atol=1e-4)


@jax.debug_nans(False)
def test_tuned_takes_the_least_gap_of_finite_runs(monkeypatch):
    """At 1e-3 the model hardly moves, at 3e38 it is no number."""
    monkeypatch.setattr(search, "LRS", (1e-3, 1.0, 3e38))
    keys = jax.random.split(jax.random.key(0), 2)
    found = search.tuned(search.METHODS["FedAvg"], problem.make_setup(1, 2), keys)
    assert found == {"lr": 1.0, "second": 0.0}


@jax.numpy_dtype_promotion("standard")  # optax's Adam needs it outside of programs
def test_descent_keeps_the_best_schedules():
    setup, keys = problem.make_setup(1, 2), jax.random.split(jax.random.key(0), 2)
    start = {"lr": jnp.full(2, np.log(0.01), jnp.float32)}
    found = search.descend(problem.learned_fedavg, setup, keys, start, 4)

    def mean_gap(hyper):
        one = jax.tree.map(lambda x: x[None], hyper)
        return problem.gaps(problem.final_models(problem.learned_fedavg, setup, one, keys)).mean()

    assert (found["lr"] > start["lr"]).all()  # 0.01 is far too slow
    assert mean_gap(found) < mean_gap(start)


def tables(powers, *, gamma=1.0, last=0.1):
    """Gaps ``R^-p`` with little noise, and learned schedules ``gamma = (r + 1)^p``."""
    rng, rounds = np.random.default_rng(0), (8, 16, 32, 64)
    gaps, schedules = [], []
    for batch in (1, 32):
        for number in rounds:
            for method, (size, power) in powers.items():
                values = size * number**-power * np.exp(0.001 * rng.normal(size=8))
                seeds = {f"seed {i}": v for i, v in enumerate(values)}
                gaps.append({"batch": batch, "rounds": number, "method": method} | seeds)
                gaps[-1] |= {"lr": 1.0, "second": 1.0}
            for repeat in range(3):
                for r in range(number):
                    lr = last if r >= number - number // 4 else 1.0
                    row = {"batch": batch, "rounds": number, "repeat": repeat, "round": r}
                    row |= {"lr": lr, "gamma": (1 + 0.01 * repeat) * (r + 1) ** gamma}
                    schedules.append(row | {"beta": 1.0, "method": "learned"})
            schedules.append(row | {"method": "direct", "repeat": 0})
    return {"": pd.DataFrame(gaps), "schedules": pd.DataFrame(schedules)}


EXPECTED = {
    "FedAvg": (1.0, 0.5), "FedAvg, learned": (0.9, 0.6), "augmented": (1.0, 1.2),
    "constant": (1.0, 1.2), "direct": (0.9, 1.2), "learned": (0.9, 1.35),
}  # fmt: skip


def test_page_of_expected_results():
    given = tables(EXPECTED)
    page = report.STUDY.page(given, FACTS)
    verdicts = [answer.right for answer in page.answers]
    assert verdicts == [True, True, True, True, False]  # FedAvg is as much slower with noise
    assert report.powers(given[""], "augmented", 32).mean() == pytest.approx(-1.2, abs=0.01)
    assert report.growth(given["schedules"], 32, 64).mean == pytest.approx(1, abs=1e-9)
    assert report.fall(given["schedules"], 32, 64).mean == pytest.approx(0.1)
    text, figures = report.STUDY.build(given, FACTS)
    assert "| 32 | direct | -1.2 [" in text.text
    assert set(figures) == {"fedac_schedules"}


def test_page_of_other_results():
    other = EXPECTED | {"direct": (2.0, 0.9), "learned": (0.1, 1.0)}
    page = report.STUDY.page(tables(other, gamma=0.1, last=1.0), FACTS)
    assert [answer.right for answer in page.answers] == [False] * 5


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")
def test_small_run(tmp_path):
    options = study.Options(
        batches=(1,), rounds=(1, 2), seeds=2, tuning_seeds=1, repeats=2, updates=2,
        output=tmp_path,
    )  # fmt: skip
    study.main(options)
    folder = tmp_path / "questions" / "fedac_schedules"
    gaps = pd.read_csv(folder / "fedac_schedules.csv")
    assert len(gaps) == 2 * 6
    assert (gaps[["seed 0", "seed 1"]] > 0).all(axis=None)
    schedules = pd.read_csv(folder / "fedac_schedules-schedules.csv")
    assert len(schedules) == (1 + 2) * (1 + 2 * 2)


def test_bad_options():
    for given, message in (
        ({"rounds": ()}, "rounds is"),
        ({"seeds": 1}, "seeds is 1; expected at least 2"),
        ({"updates": 0}, "updates is 0; expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            study.Options(**given)
