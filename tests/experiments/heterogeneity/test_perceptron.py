"""The perceptron of the report beside NumPy loops."""

import json
import pathlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from experiments.harness.redrawing import read_tables
from experiments.heterogeneity import perceptron
from experiments.heterogeneity import perceptron_bounds as bounds
from experiments.heterogeneity import perceptron_problem as problem
from experiments.heterogeneity import perceptron_report as tables
from experiments.heterogeneity.claims import claims
from experiments.heterogeneity.perceptron_problem import Case, Cases, Points
from experiments.heterogeneity.redraw import redraw

MODEL = problem.MODELS["code"]  # a slope whose entries differ


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def numpy_slope(x, y, b):
    """The derivative in b of one client's mean loss, from its two-dimensional points."""
    return (sigmoid(x @ np.array(MODEL.slope) + b) - y).mean()


def numpy_visit(x, y, b, case):
    """All local models of a visit, the last one the upload."""
    local = [b]
    for _ in range(case.tau):
        gradient = numpy_slope(x, y, local[-1]) + case.mu * (local[-1] - b)
        local.append(local[-1] - 0.2 * gradient)
    return local[1:]


def numpy_run(train, case, cohorts):
    """b after every round, the last client's last local b, and the means of all local models."""
    b, server, last, shadow = MODEL.start, [], [], []
    for cohort in cohorts:
        visits = np.array([numpy_visit(train.x[m], train.y[m], b, case) for m in cohort])
        shadow.append(visits.mean(0))
        b = visits[:, -1].mean()
        server.append(b)
        last.append(visits[-1, -1])
    return np.array(server), np.array(last), np.array(shadow)


def project(points):
    return problem.projected(points, MODEL)


@pytest.fixture(scope="module")
def points():
    """Train and test of two seeds."""
    return [problem.generated(seed, 0.25) for seed in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("participation", ["pair", "full"])
@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_paths_are_those_of_a_numpy_loop(points, participation, mu):
    """Double precision, 28 steps of contractions: 1e-12 leaves room for the order of sums.

    The program's longest visit is longer than tau.
    """
    case = Case(7, 4, mu)
    clients = np.stack([problem.cohorts(participation, 4, seed) for seed in range(2)])
    trains = [train for train, _ in points]
    found = problem.paths(case, clients, MODEL.start, [project(t) for t in trains], max_steps=9)
    for seed, train in enumerate(trains):
        server, last, _ = numpy_run(train, case, clients[seed])
        np.testing.assert_allclose(found[0][seed], server, rtol=1e-12)
        np.testing.assert_allclose(found[1][seed], last, rtol=1e-12)


def test_refuses_a_program_that_is_too_short(points):
    with pytest.raises(ValueError, match="max_steps is 2; expected at least the case's 3"):
        problem.paths(Case(3, 1), np.zeros((1, 1, 1), int), 0.0, [project(points[0][0])], 2)


@pytest.mark.slow
def test_measured_rows(points):
    """Gaps and heterogeneity by their definitions, for dealt points too; 1e-12 as above."""
    train, test = points[0]
    seen = (project(train), project(test))
    known = bounds.constants(*seen, MODEL.start)
    cases = [Case(3, 4), Case(2, 4, iid=True)]
    history = tables.measured("code", cases, [seen], [known])
    for participation in ("pair", "full"):
        for case in cases:
            mine = problem.dealt(train, 0) if case.iid else train
            cohorts = problem.cohorts(participation, 4, 0)
            server, last, _ = numpy_run(mine, case, cohorts)
            pooled = train.pooled
            drift = [
                abs(numpy_slope(mine.x[-1], mine.y[-1], b) - numpy_slope(pooled.x, pooled.y, b))
                for b in last
            ]
            rows = history[
                (history["participation"] == participation) & (history["case"] == case.name)
            ]
            np.testing.assert_allclose(rows["b"], server, rtol=1e-12)
            np.testing.assert_allclose(rows["heterogeneity"], drift, rtol=1e-10)
            for part, data in (("train", train), ("test", test)):
                z = data.pooled.x @ np.array(MODEL.slope)
                y = data.pooled.y

                def loss(b, z=z, y=y):
                    return -np.mean(y * np.log(sigmoid(z + b)) + (1 - y) * np.log(sigmoid(-z - b)))

                least = minimize_scalar(loss, bounds=(-6, 3), method="bounded").fun
                np.testing.assert_allclose(
                    rows[f"{part} gap"], [loss(b) - least for b in server], atol=1e-9
                )  # the search stops 1e-5 from the minimiser, its value 1e-11 above


def test_constants(points):
    """Against SciPy's bounded search, whose minimiser is good to about 1e-6."""
    train, test = (project(part) for part in points[0])
    known = bounds.constants(train, test, MODEL.start)

    def least(*parts):
        found = minimize_scalar(
            lambda b: sum(float(bounds.loss(part, b)) for part in parts),
            bounds=(-20, 5),
            method="bounded",
            options={"xatol": 1e-9},
        )
        return found.x

    normal, outlier = Points(train.x[:-1], train.y[:-1]), Points(train.x[-1], train.y[-1])
    assert known.optimum == pytest.approx(least(train.pooled), abs=1e-6)
    assert known.test_optimum == pytest.approx(least(test.pooled), abs=1e-6)
    assert known.pair_optimum == pytest.approx(least(normal.pooled, outlier), abs=1e-6)
    assert known.optima[-1] == pytest.approx(least(outlier), abs=1e-5)  # flat: F'' is 0.02
    assert abs(known.B - (MODEL.start - known.optimum)) < 1e-12
    b = np.linspace(-11.9, 4, 1597)  # not the module's grid; both miss a maximum by 1e-5 at most
    slopes = np.array([bounds.slope(Points(x, y), b) for x, y in zip(*train, strict=True)])
    assert known.zeta == pytest.approx(abs(slopes - slopes.mean(0)).max(), abs=1e-5)
    step = b[1] - b[0]
    # Central differences over 0.01 err by F'''' step^2 / 6, about 1e-5.
    second = np.diff(slopes) / step
    found = [known.L, known.client_L]
    np.testing.assert_allclose(found, [second.mean(0).max(), second.max()], atol=1e-4)
    assert known.L < known.client_L < 0.25


@pytest.mark.slow
def test_limits_of_few_and_of_many_local_steps(points):
    """With normal clients that are all alike nothing is random.

    The text's slope, at which the last client's curvature at its optimum is 0.018: 6,000 steps of
    0.2 leave exp(-21) of the way.  One step a round contracts by 0.98: 1e-8 after 1,000.
    """
    text = problem.MODELS["text"]
    train, test = (problem.projected(part, text) for part in points[0])
    alike = Points(*(np.concatenate([np.repeat(a[:1], 19, 0), a[-1:]]) for a in train))
    known = bounds.constants(alike, test, text.start)

    def after(case, participation):
        clients = problem.cohorts(participation, case.rounds, 0)[None]
        return problem.paths(case, clients, text.start, [alike], case.tau)[0][0, -1]

    few = after(Case(1, 1000), "pair")
    assert few == pytest.approx(known.pair_optimum, abs=1e-7)
    assert after(Case(1, 1000), "full") == pytest.approx(known.optimum, abs=1e-7)
    pair, full = after(Case(6000, 1), "pair"), after(Case(6000, 1), "full")
    assert pair == pytest.approx(known.optima[[0, -1]].mean(), abs=1e-7)
    assert full == pytest.approx(known.optima.mean(), abs=1e-7)
    gaps = [bounds.loss(alike.pooled, b) for b in (few, pair, full)]
    gaps -= bounds.loss(alike.pooled, known.optimum)
    np.testing.assert_allclose(bounds.ends(alike, known), gaps, atol=1e-7)


def test_shadow_gap_and_its_bound(points):
    """The left side of Equation 1 by the loops above, and below its right side."""
    train, test = points[0]
    case = Case(5, 6)
    server, _, shadow = numpy_run(train, case, problem.cohorts("full", 6, 0))
    seen = project(train)
    known = bounds.constants(seen, project(test), MODEL.start)
    expected = bounds.loss(seen.pooled, shadow).mean() - bounds.loss(seen.pooled, known.optimum)
    found = bounds.shadow_gap(seen, server, MODEL.start, 5)
    assert found == pytest.approx(expected, rel=1e-10)
    assert found <= bounds.bound(known.client_L, known.zeta, known.B, 5, 6)


@given(st.floats(-10, 10))
def test_slope_is_the_derivative_of_the_loss(b):
    """Central differences over 1e-4: an error of 1e-9 and the loss's rounding over 1e-4."""
    part = Points(np.array([-3.0, 0.5, 8.0]), np.array([0.0, 1.0, 1.0]))
    difference = bounds.loss(part, b + 1e-4) - bounds.loss(part, b - 1e-4)
    assert bounds.slope(part, b) == pytest.approx(difference / 2e-4, abs=1e-9)


def test_points_follow_the_law(points):
    """1,900 normal points a class: the mean of a coordinate is within 5 standard errors."""
    (train, test), (other, _) = points
    assert train.x.shape == (20, 100, 2)
    assert test.x.shape == (20, 20, 2)
    assert (train.y.sum(1) == 50).all()
    assert not np.allclose(train.x, other.x)
    for label, centre in ((0, 0.0), (1, 1.0)):
        own = train.x[:-1][train.y[:-1] == label]
        np.testing.assert_allclose(own.mean(0), centre, atol=5 * 0.25 / 950**0.5)
        np.testing.assert_allclose(own.std(0), 0.25, rtol=0.1)
    outlier = train.x[-1][train.y[-1] == 1]
    np.testing.assert_allclose(outlier.mean(0), 4.0, atol=5 * 0.25 / 50**0.5)
    dealt = problem.dealt(train, 3)
    assert dealt.x.shape == train.x.shape
    np.testing.assert_array_equal(np.sort(dealt.x, None), np.sort(train.x, None))
    assert (dealt.x[-1].max(1) > 3).sum() < 20  # the outlier's points are spread


def test_pairs_are_a_normal_client_and_the_last_one():
    pairs = problem.cohorts("pair", 400, 0)
    assert (pairs[:, 1] == 19).all()
    assert sorted(set(pairs[:, 0])) == list(range(19))
    assert (pairs[:20] == problem.cohorts("pair", 20, 0)).all()
    with pytest.raises(ValueError, match="participation is 'all'; expected"):
        problem.cohorts("all", 1, 0)


def test_reads_the_authors_files(tmp_path, points):
    for name, part in zip(("train", "test"), points[0], strict=True):
        (tmp_path / name).mkdir()
        data = {str(m): {"x": part.x[m].tolist(), "y": part.y[m].tolist()} for m in range(20)}
        (tmp_path / name / f"{name}.json").write_text(json.dumps({"user_data": data}))
    for found, expected in zip(problem.authors(tmp_path), points[0], strict=True):
        np.testing.assert_array_equal(found.x, expected.x)
        np.testing.assert_array_equal(found.y, expected.y)
    assert perceptron.Options(data=tmp_path).data == tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("participation", ["pair", "full"])
def test_exact_visits_are_the_limit_of_many_local_steps(points, participation):
    """1,500 steps of 0.2 with mu = 0.1 leave 0.98^1500 = 7e-14 of the way; gradients of 1e-10.

    The last client's local b is its minimiser of the proximal problem, too.
    """
    trains = [project(train) for train, _ in points]
    clients = np.stack([problem.cohorts(participation, 3, seed) for seed in range(2)])

    def paths(case):
        return problem.paths(case, clients, MODEL.start, trains, case.tau)

    many, exact = paths(Case(1500, 3, 0.1)), paths(Case(1, 3, 0.1, exact=True))
    for found, expected in zip(exact, many, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-8)
    server = np.concatenate([np.full((2, 1), MODEL.start), exact[0][:, :-1]], axis=1)
    for seed, train in enumerate(trains):
        last = Points(train.x[-1], train.y[-1])
        gradient = bounds.slope(last, exact[1][seed]) + 0.1 * (exact[1][seed] - server[seed])
        np.testing.assert_allclose(gradient, 0, atol=2 * problem.TOLERANCE)


def test_means_over_seeds():
    rows = [
        ("text", "pair", "a", seed, done, seed + done / 10, 0.0, float(seed), 2.0)
        for seed in (0, 2)
        for done in range(1, 51)
    ]
    names = ["model", "participation", "case", "seed", "round"]
    names += ["test gap", "train gap", "heterogeneity", "b"]
    history = pd.DataFrame(rows, columns=pd.Index(names))
    means = tables.averaged(history)
    assert means["round"].iloc[[0, -1]].tolist() == [1, 50]
    assert len(means) <= 20
    np.testing.assert_allclose(means["test gap"], 1 + means["round"] / 10)
    summary = tables.summarised(tables.per_seed(history)).iloc[0]
    assert summary["heterogeneity"] == 1
    assert summary["heterogeneity std"] == pytest.approx(2**0.5)


def test_claims_of_the_kept_results():
    folder = pathlib.Path("experiments/results/heterogeneity/perceptron")
    kept = read_tables(folder, "perceptron")
    found = claims("text", kept, perceptron.CASES, 10)
    assert all(claim.holds for claim in found)
    numbers = {claim.text.partition(": ")[2]: claim.found for claim in found}
    steps = {"tau 10": 8.131, "tau 50": 1.942, "tau 300": 0.9427, "tau 1000": 0.9038}
    assert numbers["more local steps, fewer rounds"] == pytest.approx(steps, rel=1e-3)
    proximal = {"FedAvg": 0.9029, "FedProx": 3.127}  # four digits of the report
    assert numbers["FedProx takes more rounds"] == pytest.approx(proximal, rel=1e-3)
    turned = kept | {"summary": kept["summary"].assign(heterogeneity=1.0)}
    holds = [claim.holds for claim in claims("text", turned, perceptron.CASES, 10)]
    assert holds == [True, True, False, True, True, True]


@pytest.mark.parametrize(
    ("b", "rounds"),
    [
        ([0.0, 0.0], 0.9),  # nine tenths of the only step
        ([2.0, 1.0, 0.5, 0.1, -0.1], 3.25),  # 0.4 is left, a quarter of the way from 0.5 to 0.1
        ([2.0, -1.0, 0.5, -0.5], 1 + 1.6 / 3),  # past the end counts as arrived
        ([4.0, 4.0], 0.0),  # the start is the end
    ],
)
def test_rounds_to_settle(b, rounds):
    assert problem.rounds_to_settle(b, 4.0, 2) == pytest.approx(rounds, rel=1e-14)


@pytest.mark.slow
def test_perceptron_files(tmp_path, monkeypatch):
    """All of the experiment but with few rounds and local steps."""
    few = Case(1, 3), Case(3, 3)
    proximal = (Case(5, 3), Case(5, 3, 0.1), Case(1, 3, 0.1, exact=True))
    cases = Cases(few, Case(4, 3, iid=True), proximal)
    perceptron.main(perceptron.Options(seeds=2, models=("text",), output=tmp_path), cases)
    folder = tmp_path / "perceptron"
    table = pd.read_csv(folder / "perceptron.csv")
    assert len(table) == 2 * (3 + 3) * 3
    assert json.loads((folder / "perceptron.json").read_text())["command"]
    figure, text = folder / "perceptron_text.png", (folder / "perceptron.md").read_text()
    assert "| FedProx 0.1, tau 5 |" in text
    assert "| FedProx 0.1, exact |" in text
    assert figure.stat().st_size > 2_000
    figure.unlink()
    monkeypatch.setattr(perceptron, "CASES", cases)
    redraw(tmp_path)
    assert (folder / "perceptron.md").read_text() == text
    assert figure.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: perceptron.Options(seeds=0), "seeds is 0; expected at least 1"),
        (lambda: perceptron.Options(std=0.0), "std is 0.0; expected a positive number"),
        (
            lambda: perceptron.Options(models=("tex",)),
            "expected some of text",
        ),
        (lambda: perceptron.Options(data=pathlib.Path("nowhere")), "data is nowhere; expected a"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        options()
