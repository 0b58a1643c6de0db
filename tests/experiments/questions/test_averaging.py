"""The study of averaging: its prediction against closed forms and a NumPy loop, a small run."""

import numpy as np
import pandas as pd
import pytest

from experiments.questions import averaging, averaging_report
from experiments.questions.averaging_problem import DECAY, Moments, examples, moments, optimum
from experiments.questions.averaging_report import STUDY, cells, extrapolated, of, ratio
from experiments.questions.averaging_theory import limit, scaffold_ratio, small_step_limit

H, Q, S = 0.5, 0.3, 0.5  # of F = H x^2 / 2 + Q x^3 / 6 with noise of variance S
LINE = Moments(*(np.full((1,) * n, value) for n, value in ((2, H), (3, Q), (4, 0.0), (2, S))))


def test_one_client_settles_where_sgd_does_whatever_the_length_of_a_visit():
    lr = 0.2
    variance = lr * S / (H * (2 - lr * H))
    expected = -Q * variance / (2 * H)
    for num_steps in (1, 2, 7):
        assert limit(LINE, lr, num_steps, 1) == pytest.approx(expected, rel=1e-9)


def test_infinitely_many_clients_with_one_step_settle_at_the_optimum():
    assert limit(LINE, 0.2, 1, np.inf) == pytest.approx(0, abs=1e-15)
    assert small_step_limit(LINE, 0.2, 1) == pytest.approx(0, abs=1e-15)


def test_small_steps():
    lr, num_steps = 1e-4, 9
    known = moments()
    predicted = limit(known, lr, num_steps, np.inf)
    # The next term is smaller by lr K times the curvature, 5e-4.
    np.testing.assert_allclose(predicted, small_step_limit(known, lr, num_steps), rtol=2e-3)
    with_controls = limit(known, lr, num_steps, np.inf, scaffold=True)
    np.testing.assert_allclose(with_controls / predicted, scaffold_ratio(num_steps), rtol=2e-3)
    # Towards flat models: against the gradient of the trace of covariance times Hessian.
    assert known.bend(known.noise) @ predicted < 0


def test_moments_are_those_of_the_mean_loss():
    known, (rows, labels), w = moments(), examples(), optimum()

    def gradients(x):
        return rows * (1 / (1 + np.exp(-rows @ x)) - labels)[:, None] + DECAY * x

    assert np.abs(gradients(w).mean(0)).max() < 1e-14
    np.testing.assert_allclose(known.noise, np.cov(gradients(w).T, bias=True), atol=1e-12)
    h, basis = 1e-4, np.eye(len(w))
    column = (gradients(w + h * basis[2]) - gradients(w - h * basis[2])).mean(0) / (2 * h)
    # Errors of central differences are of the order h^2.
    np.testing.assert_allclose(known.hessian[2], column, atol=1e-6)
    bent = (gradients(w + h * basis[2]) + gradients(w - h * basis[2])).mean(0) / h**2
    direction = np.outer(basis[2], basis[2])
    np.testing.assert_allclose(known.bend(direction), bent, atol=1e-5)
    p = 1 / (1 + np.exp(-rows @ w))
    each = (p * (1 - p))[:, None, None] * rows[:, :, None] * rows[:, None]
    each -= each.mean(0)
    expected = np.mean(each @ known.noise @ each, axis=0)
    np.testing.assert_allclose(known.scattered(known.noise), expected, atol=1e-12)


@pytest.mark.parametrize("scaffold", [False, True])
def test_prediction_against_a_loop_in_numpy(scaffold):
    """Means of pairs of runs of three clients on a line with opposite noise."""
    lr, num_steps, clients, pairs = 0.2, 5, 3, 5_000
    rng = np.random.default_rng(0)
    x, controls = np.zeros(2 * pairs), np.zeros((2 * pairs, clients))
    total, rounds = np.zeros(2 * pairs), range(160)
    for number in rounds:
        y, common = np.repeat(x[:, None], clients, 1), controls.mean(1, keepdims=True)
        for _ in range(num_steps):
            signs = rng.choice([-1.0, 1.0], (pairs, clients))
            gradient = H * y + Q * y**2 / 2 + np.sqrt(S) * np.concatenate([signs, -signs])
            y = y - lr * (gradient + scaffold * (common - controls))
        if scaffold:
            controls = controls - common + (x[:, None] - y) / (num_steps * lr)
        x = y.mean(1)
        total += x * (number >= 40)  # the start is forgotten: (1 - 0.1)^200
    means = (total / 120).reshape(2, -1).mean(0)
    error = means.std() / np.sqrt(pairs)
    predicted = limit(LINE, lr, num_steps, clients, scaffold=scaffold).item()
    # Four standard errors, and terms of second order in the spread, (Q / H)^2 times its variance.
    assert means.mean() == pytest.approx(predicted, abs=4 * error + 0.03 * abs(predicted))
    assert 4 * error < 0.03 * abs(predicted)
    other = limit(LINE, lr, num_steps, clients, scaffold=not scaffold).item()
    assert abs(means.mean() - other) > 0.1 * abs(predicted)


@pytest.fixture(scope="module")
def exact():
    """Cells whose means are the predicted ones."""
    found = []
    known = moments()
    for cell in averaging.cells(1.0):
        predicted = limit(
            known, cell.lr, cell.num_steps, cell.num_clients, scaffold=cell.method == "SCAFFOLD"
        )
        flat = known.bend(known.noise)
        for number, value in enumerate(predicted):
            found.append({
                **cell._asdict(), "seeds": 10, "size": 1.0, "error of size": 0.001,
                "slope": predicted @ flat, "error of slope": 1e-9, "coordinate": number,
                "mean": value, "error": 1e-6, "predicted": value,
            })  # fmt: skip
    return pd.DataFrame(found)


@pytest.fixture
def rows(exact):
    return exact.copy()


def test_page_of_exact_results(rows):
    page = STUDY.page({"": rows}, {"steps": 9600, "seeds": 10})
    assert [answer.right for answer in page.answers] == [True] * 6
    table = cells(rows)
    np.testing.assert_allclose(table["cosine"], 1)
    one, many = (of(table, "FedAvg", 0.1, 16, number) for number in (1, 1024))
    assert ratio(one, many).mean == pytest.approx(2.53, abs=0.01)


def test_page_of_other_results(rows):
    far = (rows["num_steps"] == 16) & (rows["num_clients"] == 1024) & (rows["method"] == "FedAvg")
    rows.loc[far, "mean"] += 0.5 * rows["predicted"].abs()
    rows.loc[far, "size"] = 1.5
    rows.loc[far, "slope"] = 1e-6
    page = STUDY.page({"": rows}, {"steps": 9600, "seeds": 10})
    assert [answer.right for answer in page.answers] == [False, False, False, False, True, False]


def test_extrapolation_of_a_displacement_that_grows_with_the_square(rows):
    own = rows[(rows["method"] == "FedAvg") & (rows["num_steps"] == 16)].copy()
    for lr in (0.05, 0.1):
        at = own["lr"] == lr
        own.loc[at, "mean"] = lr**2 * np.tile([1.0, 2, 3, 4, 5, 6, 7, 8], at.sum() // 8)
    assert extrapolated(own, 1024).mean == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_small_run(tmp_path):
    options = averaging.Options(steps=512, seeds=2, share=0.01, output=tmp_path)
    averaging.main(options)
    table = pd.read_csv(tmp_path / "questions" / "averaging" / "averaging.csv")
    assert set(table["num_clients"]) == {1, 3, 10}
    assert np.isfinite(table.select_dtypes("number")).all(axis=None)
    averaging_report.build({"": table}, {"steps": 512, "seeds": 2})


def test_bad_options():
    with pytest.raises(ValueError, match="steps is 100; expected"):
        averaging.Options(steps=100)
    with pytest.raises(ValueError, match="share is 0"):
        averaging.Options(share=0)
