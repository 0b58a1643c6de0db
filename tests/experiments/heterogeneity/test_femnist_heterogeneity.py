"""The heterogeneity report's experiments: the perceptron by NumPy loops, FEMNIST's machinery."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from experiments import femnist_heterogeneity as femnist
from experiments import perceptron_heterogeneity as report
from experiments import perceptron_problem as problem
from experiments.perceptron_problem import Case, Points
from fedjax_sim import datasets, models

MODEL = problem.MODELS["code"]  # a slope whose entries differ


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def numpy_slope(x, y, b):
    """Of one client's mean loss in b, from its two-dimensional points."""
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


def test_measured_rows(points):
    """Gaps and heterogeneity by their definitions, for dealt points too; 1e-12 as above."""
    train, test = points[0]
    seen = (project(train), project(test))
    known = problem.constants(*seen, MODEL.start)
    cases = [Case(3, 4), Case(2, 4, iid=True)]
    history = report.measured("code", cases, [seen], [known])
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
    known = problem.constants(train, test, MODEL.start)

    def least(*parts):
        found = minimize_scalar(
            lambda b: sum(float(problem.loss(part, b)) for part in parts),
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
    slopes = np.array([problem.slope(Points(x, y), b) for x, y in zip(*train, strict=True)])
    assert known.zeta == pytest.approx(abs(slopes - slopes.mean(0)).max(), abs=1e-5)
    step = b[1] - b[0]
    # Central differences over 0.01 err by F'''' step^2 / 6, about 1e-5.
    second = np.diff(slopes) / step
    found = [known.L, known.client_L]
    np.testing.assert_allclose(found, [second.mean(0).max(), second.max()], atol=1e-4)
    assert known.L < known.client_L < 0.25


def test_limits_of_few_and_of_many_local_steps(points):
    """With normal clients that are all alike nothing is random.

    The text's slope, at which the last client's curvature at its optimum is 0.018: 6,000 steps of
    0.2 leave exp(-21) of the way.  One step a round contracts by 0.98: 1e-8 after 1,000.
    """
    text = problem.MODELS["text"]
    train, test = (problem.projected(part, text) for part in points[0])
    alike = Points(*(np.concatenate([np.repeat(a[:1], 19, 0), a[-1:]]) for a in train))
    known = problem.constants(alike, test, text.start)

    def after(case, participation):
        clients = problem.cohorts(participation, case.rounds, 0)[None]
        return problem.paths(case, clients, text.start, [alike], case.tau)[0][0, -1]

    few = after(Case(1, 1000), "pair")
    assert few == pytest.approx(known.pair_optimum, abs=1e-7)
    assert after(Case(1, 1000), "full") == pytest.approx(known.optimum, abs=1e-7)
    pair, full = after(Case(6000, 1), "pair"), after(Case(6000, 1), "full")
    assert pair == pytest.approx(known.optima[[0, -1]].mean(), abs=1e-7)
    assert full == pytest.approx(known.optima.mean(), abs=1e-7)
    gaps = [problem.loss(alike.pooled, b) for b in (few, pair, full)]
    gaps -= problem.loss(alike.pooled, known.optimum)
    np.testing.assert_allclose(problem.ends(alike, known), gaps, atol=1e-7)


def test_shadow_gap_and_its_bound(points):
    """The left side of Equation 1 by the loops above, and below its right side."""
    train, test = points[0]
    case = Case(5, 6)
    server, _, shadow = numpy_run(train, case, problem.cohorts("full", 6, 0))
    seen = project(train)
    known = problem.constants(seen, project(test), MODEL.start)
    expected = problem.loss(seen.pooled, shadow).mean() - problem.loss(seen.pooled, known.optimum)
    found = problem.shadow_gap(seen, server, MODEL.start, 5)
    assert found == pytest.approx(expected, rel=1e-10)
    assert found <= problem.bound(known, known.client_L, 5, 6)


@given(st.floats(-10, 10))
def test_slope_is_the_derivative_of_the_loss(b):
    """Central differences over 1e-4: an error of 1e-9 and the loss's rounding over 1e-4."""
    part = Points(np.array([-3.0, 0.5, 8.0]), np.array([0.0, 1.0, 1.0]))
    difference = problem.loss(part, b + 1e-4) - problem.loss(part, b - 1e-4)
    assert problem.slope(part, b) == pytest.approx(difference / 2e-4, abs=1e-9)


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
    assert report.Options(data=tmp_path).data == tmp_path


@pytest.mark.slow
def test_perceptron_files(tmp_path, monkeypatch):
    """All of the experiment but with few rounds and local steps."""
    few, proximal = tuple(Case(tau, 3) for tau in (1, 2, 3, 4)), (Case(5, 2), Case(5, 2, 0.1))
    monkeypatch.setattr(report, "LOCAL_STEPS", few)
    monkeypatch.setattr(report, "PROXIMAL", proximal)
    monkeypatch.setattr(report, "CASES", (*few, Case(4, 3, iid=True), *proximal))
    report.main(report.Options(seeds=2, models=("text",), output=tmp_path))
    folder = tmp_path / "perceptron_heterogeneity"
    table = pd.read_csv(folder / "perceptron_heterogeneity.csv")
    assert len(table) == 2 * (5 * 3 + 2 * 2)
    assert json.loads((folder / "perceptron_heterogeneity.json").read_text())["command"]
    assert "| FedProx 0.1, tau 5 |" in (folder / "perceptron_heterogeneity.md").read_text()
    assert (folder / "perceptron_heterogeneity_text.png").stat().st_size > 10_000


def handwriting(num_writers=30):
    """The digits of scikit-learn, as if each person had written digits of one or two classes."""
    digits = datasets.load("digits")
    groups = [
        np.minimum(part["y"] * 3 + np.arange(len(part["y"])) % 4, num_writers - 1).astype(np.int32)
        for part in (digits.train, digits.test)
    ]
    return digits._replace(
        train_groups=groups[0],
        test_groups=groups[1],
        group_names=tuple(str(i) for i in range(num_writers)),
    )


def test_matched_iid_keeps_the_sizes():
    data = handwriting()
    writers = femnist.assignment(data, "by writer", "matched", 0)
    iid = femnist.assignment(data, "iid", "matched", 0)
    assert [len(rows) for rows in iid] == [len(rows) for rows in writers]
    assert len({len(rows) for rows in writers}) > 1
    for rows in (iid, writers):
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(1438))
    kinds = [np.mean([len(set(data.train["y"][r])) for r in rows]) for rows in (writers, iid)]
    assert kinds[0] < 3 < 7 < kinds[1]  # classes a client has
    assert (iid[0] != femnist.assignment(data, "iid", "matched", 1)[0]).any()


@pytest.mark.parametrize(("writers", "clients"), [(30, 1), (105, 1), (260, 3), (3597, 36)])
def test_leaf_deals_to_a_hundredth_of_the_writers(writers, clients):
    groups = np.arange(8000) % writers
    data = handwriting()._replace(train_groups=groups)
    iid = femnist.assignment(data, "iid", "leaf_default", 0)
    sizes = [len(rows) for rows in iid]
    assert len(sizes) == clients
    assert sum(sizes) == 8000
    assert max(sizes) - min(sizes) <= 1


def test_weights_are_what_a_visit_sees():
    sizes = [1, 4, 165, 480, 499, 500, 501, 14708]
    expected = [20 * 25 if n // 20 >= 25 else n for n in sizes]  # as the authors' program has it
    work = femnist.fs.Work(*[None] * 3, jnp.array(sizes), None, None, 25)
    assert femnist.seen_examples(work).tolist() == expected


_draw = jax.jit(
    lambda key, size: jax.vmap(femnist.repeated_pass(4, 5).draw(key, size, 30, 5))(jnp.arange(5))
)


@given(st.integers(1, 30), st.integers(0, 2**31 - 1))
def test_repeated_pass(size, seed):
    """20 rows: every example at most as often as it was copied, all of them where these fit."""
    rows, weights = _draw(jax.random.key(seed), jnp.array(size))
    counts = np.bincount(np.asarray(rows).ravel(), minlength=size)
    assert rows.shape == (5, 4)
    assert bool(weights.all())
    assert len(counts) == size
    copies = -(-20 // size)
    assert counts.max() <= copies
    if copies * size == 20:
        assert (counts == copies).all()


def test_repeated_pass_is_random_and_refuses_nobody():
    """Clients without examples have no steps and weight 0."""
    rows, other = (_draw(jax.random.key(seed), jnp.array(30))[0] for seed in range(2))
    assert (rows != other).any()
    assert not _draw(jax.random.key(0), jnp.array(0))[1].any()
    assert femnist.repeated_pass(4, 5).num_steps(np.array([0, 3])).tolist() == [0, 5]


def test_test_images_of_the_writers_that_train():
    data = handwriting()
    assert len(femnist.pooled_test(data)["y"]) == 359
    strangers = data._replace(test_groups=data.test_groups + 25)
    kept = (strangers.test_groups < 30).sum()
    assert 0 < kept < 359
    assert len(femnist.pooled_test(strangers)["y"]) == kept
    nobody = data._replace(test_groups=data.test_groups + 1000)
    assert len(femnist.pooled_test(nobody)["y"]) == 359


def made_up(curves):
    """Twenty evaluations of accuracies that rise linearly and stop at a level."""
    rows = []
    for name, (slope, level) in curves.items():
        for done in range(3, 63, 3):
            value = min(slope * done, level)
            both = ("test/accuracy", "test/loss")
            rows.extend((name, 0, 0, done, metric, value) for metric in both)
    columns = ["partition", "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_comparison():
    found = femnist.compared(made_up({"iid": (0.04, 0.9), "by writer": (0.02, 0.8)}), 0)
    assert found.final == pytest.approx({"iid": 0.9, "by writer": 0.8})
    assert found.level == pytest.approx(0.8)
    assert found.reached == {"iid": 21, "by writer": 42}  # 0.79 / 0.04 = 19.75, 0.79 / 0.02 = 39.5
    assert found.rounds == {"iid": 21, "by writer": 42}
    assert found.slow_down == 2
    short = femnist.compared(made_up({"iid": (0.04, 0.5), "by writer": (0.005, 0.6)}), 0)
    assert short.level == pytest.approx((0.285 + 0.3) / 2)  # rounds 57 and 60
    assert short.reached == {"iid": np.inf, "by writer": np.inf}
    assert short.rounds == {"iid": 9, "by writer": 60}
    table = femnist.table([short])
    assert table["rounds to 79 %"].tolist() == ["not reached"] * 2
    assert table["rounds to it"].tolist() == ["9", "60"]


def linear_model(monkeypatch):
    data = handwriting()
    monkeypatch.setattr(femnist.datasets, "load", lambda *name: data)
    monkeypatch.setattr(
        femnist, "build_model", lambda dataset: models.softmax_regression((8, 8, 1), 10)
    )


@pytest.mark.slow
def test_femnist_files_and_continuing(tmp_path, monkeypatch, capsys):
    """Both partitions have one schedule, model and key; a second call trains nothing."""
    linear_model(monkeypatch)
    options = femnist.Options(rounds=4, seeds=2, work=tmp_path / "work", output=tmp_path / "out")
    femnist.main(options)
    assert "s a round" in capsys.readouterr().out
    folder = tmp_path / "out" / "femnist_heterogeneity"
    history = (folder / "femnist-matched.csv").read_bytes()
    assert "30 clients by writer, 30 when dealt" in (folder / "femnist-matched.md").read_text()
    assert json.loads((folder / "femnist-matched.json").read_text())["options"]["seeds"] == 2
    assert (folder / "femnist-matched.png").stat().st_size > 10_000
    runs = tmp_path / "work" / "femnist-seen-4"
    for seed in range(2):
        first, second = (
            json.loads((runs / f"{kind}-seed{seed}" / "run.json").read_text())
            for kind in ("iid_matched", "by_writer")
        )
        assert first == second
    femnist.main(options)
    assert "s a round" not in capsys.readouterr().out
    assert (folder / "femnist-matched.csv").read_bytes() == history


@pytest.mark.slow
def test_uniform_weights_and_leafs_sizes_change_the_run(tmp_path, monkeypatch):
    data = handwriting()
    linear_model(monkeypatch)

    def losses(**options):
        given = femnist.Options(rounds=2, work=tmp_path / "work", **options)
        return femnist.trained(data, "iid", 0, given)["value"].to_numpy()

    usual, uniform = losses(), losses(weighting="uniform")
    leaf = losses(iid="leaf_default")
    assert (usual != uniform).any()
    assert (usual != leaf).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["femnist", "mnist"])
def test_a_round_on_real_data(tmp_path, monkeypatch, name):
    root = os.environ.get("FEDJAX_SIM_DATA")
    if root is None or not (pathlib.Path(root) / name).is_dir():
        pytest.skip(f"FEDJAX_SIM_DATA names no folder with {name}")
    dataset = datasets.load(name)
    assert dataset.train_groups is not None
    clients, test = len(set(dataset.train_groups)), len(femnist.pooled_test(dataset)["y"])
    assert clients > 1
    if name == "mnist":  # a fixed data set; FEMNIST is as LEAF sampled it
        assert (clients, test) == (539, 10_000)
    monkeypatch.setattr(femnist, "NUM_STEPS", 1)
    options = femnist.Options(dataset=name, rounds=1, work=tmp_path / "work", output=tmp_path)
    femnist.main(options)
    text = (tmp_path / "femnist_heterogeneity" / f"{name}-matched.md").read_text()
    assert f"{clients} clients by writer" in text
    assert f"{test} test" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: report.Options(seeds=0), "seeds is 0; expected at least 1"),
        (lambda: report.Options(std=0.0), "std is 0.0; expected a positive number"),
        (lambda: report.Options(models=("tex",)), "models is \\('tex',\\); expected some of text"),
        (lambda: report.Options(data=pathlib.Path("nowhere")), "data is nowhere; expected a"),
        (lambda: femnist.Options(dataset="digits"), "dataset is 'digits'; expected one of"),
        (lambda: femnist.Options(iid="leaf"), "iid is 'leaf'; expected one of"),
        (lambda: femnist.Options(weighting="all"), "weighting is 'all'; expected one of"),
        (lambda: femnist.Options(rounds=0), "rounds is 0; expected at least 1"),
        (lambda: femnist.Options(seeds=0), "seeds is 0; expected at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        options()


def test_data_without_writers_are_refused():
    with pytest.raises(ValueError, match="dataset 'digits' has no writers; expected"):
        femnist.assignment(datasets.load("digits"), "iid", "matched", 0)
