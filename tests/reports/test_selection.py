"""Selection and comparisons against plain loops, closed forms, SciPy and published numbers."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_sim.reports import frames, intervals, selection, statistics, tables

NAN = math.nan
COLUMNS = ["algorithm", "lr", "server_lr", "seed", "round", "metric", "value", "diverged_at"]
# Rounding: scores are sums of a few doubles.
RTOL = 1e-12


def sweep(seed=0):
    """Two algorithms, one without server_lr; 5 or 8 evaluations; one run diverges in round 3."""
    rng = np.random.default_rng(seed)
    rows = []
    for algorithm, lr, replica in itertools.product(("fedavg", "fedadam"), (0.1, 1.0), (7, 8, 9)):
        for server_lr in (NAN,) if algorithm == "fedavg" else (0.01, 0.1):
            diverges = (algorithm, lr, replica) == ("fedavg", 1.0, 8)
            for t in range(5 if algorithm == "fedavg" else 8):
                for metric in ("loss", "accuracy"):
                    # Finite also after round 3: a metric may saturate when the model is gone.
                    row = (algorithm, lr, server_lr, replica, 2 * t, metric, rng.normal())
                    rows.append((*row, 3 if diverges else 0))
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.sample(frac=1, random_state=seed)  # rows in any order


def run_of(frame, row, metric):
    """The values of one run in order of rounds, by a plain loop."""
    points = []
    for r in frame.itertuples():
        same_server = r.server_lr == row.server_lr or (
            math.isnan(r.server_lr) and math.isnan(row.server_lr)
        )
        same = (r.algorithm, r.lr, r.seed) == (row.algorithm, row.lr, row.seed)
        if same and same_server and r.metric == metric:
            points.append((r.round, r.value))
    return np.array([value for _, value in sorted(points)])


@pytest.mark.parametrize(
    ("kwargs", "reference"),
    [
        ({}, lambda v: v[-1]),
        ({"last": 3}, lambda v: sum(v[-3:]) / 3),
        ({"reduce": "best"}, min),
        ({"reduce": "best", "mode": "max"}, max),
    ],
)
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_scores_are_those_of_a_plain_loop(kwargs, reference, metric):
    frame = sweep()
    scored = selection.scores(frame, metric, **kwargs)
    assert list(scored.columns) == ["algorithm", "lr", "server_lr", "seed", "score", "diverged_at"]
    assert len(scored) == 2 * 3 + 4 * 3
    for row in scored.itertuples():
        if row.diverged_at:
            assert (row.algorithm, row.lr, row.seed) == ("fedavg", 1.0, 8)
            assert math.isnan(row.score)
        else:
            expected = reference(run_of(frame, row, metric))
            np.testing.assert_allclose(row.score, expected, rtol=RTOL)
    assert scored["diverged_at"].tolist().count(3) == 1


def test_scores_come_in_grid_order():
    scored = selection.scores(sweep(), "loss")
    keys = [(a, lr, 9.0 if math.isnan(s) else s, r) for a, lr, s, r, *_ in scored.values.tolist()]
    assert keys == sorted(keys)
    mixed = pd.DataFrame({"batch": ["full", 8, 1, NAN], "seed": 0, "score": 1.0})
    assert frames.grid_values(mixed, "batch")[:3] == [1, 8, "full"]
    assert math.isnan(frames.grid_values(mixed, "batch")[3])


def one_run(values, diverged_at=0, **columns):
    rounds = np.arange(len(values))
    base = {"seed": 0, "round": rounds, "metric": "loss", "value": values}
    return pd.DataFrame({**columns, **base, "diverged_at": diverged_at})


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_values_that_are_not_finite_fail_the_run_where_they_are_used(bad):
    frame = one_run([3.0, bad, 2.0, 1.0], lr=0.1)
    assert selection.scores(frame, "loss", last=2)["score"].tolist() == [1.5]
    assert math.isnan(selection.scores(frame, "loss", last=3)["score"][0])
    assert math.isnan(selection.scores(frame, "loss", reduce="best")["score"][0])
    assert math.isnan(selection.rounds_to_target(frame, "loss", 1.5)["score"][0])


def test_a_diverged_run_has_no_best_and_needs_no_evaluations():
    frame = pd.concat(
        [one_run([0.1, 0.2], diverged_at=2, lr=1.0), one_run([0.4, 0.3, 0.2], lr=0.1)]
    )
    for kwargs in ({"reduce": "best"}, {"last": 3}):
        scored = selection.scores(frame, "loss", **kwargs)
        assert scored["lr"].tolist() == [0.1, 1.0]
        assert np.isnan(scored["score"]).tolist() == [False, True]


def test_only_the_named_hyper_parameters_make_a_configuration():
    frame = one_run([1.0, 0.5], lr=0.1, seconds=[3.2, 3.3])  # a column of measurements
    assert selection.scores(frame, "loss", ["lr"])["score"].tolist() == [0.5]
    named = selection.scores(one_run([1.0, 0.5], lr=0.1).assign(seed="a"), "loss")
    assert selection.best(named, mode="min")["lr"].tolist() == [0.1]
    bare = selection.scores(one_run([1.0, 0.5]), "loss")  # nothing is tuned
    assert selection.best(bare, mode="min")["mean"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: selection.scores(f, "error"), r"metric is 'error'; expected one of \["),
        (lambda f: selection.scores(f, "loss", ["lr"]), "two values for .*'round': 0.*another col"),
        (lambda f: selection.scores(f, "loss", ["eta"]), r"lacks the columns \['eta'\]"),
        (lambda f: selection.scores(f.drop(columns="seed"), "loss"), r"columns \['seed'\]"),
        (lambda f: selection.scores(f, "loss", last=0), "last is 0"),
        (lambda f: selection.scores(f, "loss", last=2, reduce="best"), "last is 2"),
        (
            lambda f: selection.scores(f, "loss", last=6),
            "last is 6; expected at most 5, .*'fedavg'",
        ),
        (
            lambda f: selection.scores(f[(f["metric"] == "loss") | (f["seed"] > 7)], "accuracy"),
            "metric is 'accuracy'; expected one that .*'seed': 7.* has, too",
        ),
        (lambda f: selection.scores(f, "loss", reduce="median"), "reduce is 'median'"),
        (lambda f: selection.scores(f, "loss", mode="least"), "mode is 'least'"),
        (
            lambda f: selection.scores(f.assign(diverged_at=f["round"]), "loss"),
            "diverged_at differs within a run",
        ),
        (lambda f: selection.scores(f.assign(diverged_at=NAN), "loss"), "diverged_at differs"),
        (lambda f: selection.rounds_to_target(f, "loss", NAN), "target is nan"),
        (lambda f: selection.rounds_to_target(f, "loss", 0.0, count="all"), "count is 'all'"),
    ],
)
def test_bad_frames_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(sweep())


@pytest.mark.parametrize(("mode", "target"), [("min", -0.8), ("max", 0.8)])
@pytest.mark.parametrize("count", ["first", "run"])
def test_rounds_to_target_are_those_of_a_plain_loop(mode, target, count):
    frame = sweep()
    found = selection.rounds_to_target(frame, "loss", target, count=count, mode=mode)
    seen = set()
    for row in found.itertuples():
        if row.diverged_at:
            assert math.isnan(row.score)
            continue
        expected = math.inf
        values = run_of(frame, row, "loss")
        for t, value in reversed(list(enumerate(values))):
            if value <= target if mode == "min" else value >= target:
                expected = 2 * t if count == "first" else 2 * (len(values) - 1)
        assert row.score == expected
        seen.add(expected == math.inf)
    assert seen == {True, False}


# Yuan and Ma (2020), a9a with l2 = 1e-3, 8192 clients: suboptimality by K, from the authors' files.
PUBLISHED = {
    "fedavg": {1: 2.40e-05, 2: 1.21e-03, 4: 4.47e-03, 8: 4.89e-03, 16: 5.52e-03, 32: 6.21e-03},
    "fedac": {16: 5.40e-05, 32: 9.54e-05, 64: 3.13e-04, 128: 1.04e-03, 256: 2.02e-03},
    "mb_sgd": {1: 2.40e-05, 2: 2.49e-05, 4: 2.94e-04, 8: 2.65e-03, 16: 9.04e-03, 32: 2.05e-02},
    "mb_ac_sgd": {8: 1.42e-05, 16: 1.28e-05, 32: 1.13e-04, 64: 4.81e-03, 128: 1.43e-02},
}


@pytest.mark.parametrize(
    ("target", "rounds"),
    [
        (1e-3, {"fedavg": 4096, "fedac": 64, "mb_sgd": 1024, "mb_ac_sgd": 128}),
        (1e-4, {"fedavg": 4096, "fedac": 128, "mb_sgd": 2048, "mb_ac_sgd": 256}),
    ],
)
def test_rounds_are_counted_as_the_paper_counts_them(target, rounds):
    frame = pd.concat(
        one_run([0.1, value, value], algorithm=name, local_steps=k).assign(
            round=[0, 2048 // k, 4096 // k]
        )
        for name, by_steps in PUBLISHED.items()
        for k, value in by_steps.items()
    )
    scored = selection.rounds_to_target(frame, "loss", target, count="run")
    found = selection.best(scored, per="algorithm", mode="min")
    assert dict(zip(found["algorithm"], found["mean"], strict=True)) == rounds


FINITE = st.floats(-1e3, 1e3)


@given(st.lists(FINITE, min_size=2, max_size=8), st.sampled_from([0.5, 0.9, 0.95]))
def test_mean_interval_is_students(values, level):
    mean, low, high = intervals.mean_interval(values, level)
    scale = stats.sem(values)
    expected = (
        stats.t.interval(level, len(values) - 1, np.mean(values), scale)
        if scale > 0
        else (np.mean(values),) * 2
    )
    # Values up to 1e3 and quantiles up to 13 leave absolute errors of 1e3 * 13 * 2e-16.
    np.testing.assert_allclose((low, high), expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(mean, sum(values) / len(values), rtol=1e-9, atol=1e-12)


def test_mean_interval_of_columns_of_one_seed_and_of_failed_seeds():
    values = np.random.default_rng(0).normal(size=(4, 3))
    together = np.array(intervals.mean_interval(values))
    for i in range(3):
        np.testing.assert_array_equal(together[:, i], intervals.mean_interval(values[:, i]))
    mean, low, high = intervals.mean_interval([2.0])
    assert (mean, math.isnan(low), math.isnan(high)) == (2.0, True, True)
    mean, low, high = intervals.shown_interval([1.0, 3.0])  # of two values it says nothing
    assert (mean, math.isnan(low), math.isnan(high)) == (2.0, True, True)
    np.testing.assert_array_equal(intervals.shown_interval(values), together)
    assert np.isnan(intervals.mean_interval([2.0, NAN])).all()
    mean, low, high = intervals.mean_interval([2.0, math.inf])  # a seed that misses its target
    assert (mean, math.isnan(low), math.isnan(high)) == (math.inf, True, True)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"values": []}, r"values has shape \(0,\)"),
        ({"values": 1.0}, r"values has shape \(\)"),
        ({"values": [1.0], "level": 95}, "level is 95"),
    ],
)
def test_bad_intervals_are_named(kwargs, match):
    with pytest.raises(ValueError, match=match):
        intervals.mean_interval(**kwargs)


LRS, STEPS = (0.01, 0.1, 1.0), (1, 8)


@st.composite
def scored_frames(draw):
    """Scores of a grid lr x local_steps, three seeds; few distinct values, so there are ties."""
    value = st.sampled_from([0.0, 0.5, 1.0, 2.0, NAN])
    rows = [
        (lr, steps, seed, draw(value))
        for lr, steps, seed in itertools.product(LRS, STEPS, range(3))
    ]
    order = draw(st.permutations(range(len(rows))))
    return pd.DataFrame([rows[i] for i in order], columns=["lr", "local_steps", "seed", "score"])


@pytest.mark.slow
@given(scored_frames(), st.sampled_from(["min", "max"]))
def test_best_is_what_a_plain_search_finds(frame, mode):
    found = selection.best(frame, per="local_steps", mode=mode)
    assert found["local_steps"].tolist() == list(STEPS)
    table = {(r.lr, r.local_steps, r.seed): r.score for r in frame.itertuples()}
    for row in found.itertuples():
        ranked = []
        for lr in LRS:
            values = [table[lr, row.local_steps, seed] for seed in range(3)]
            good = [v for v in values if v == v]
            mean = sum(good) / len(good) if good else 0.0
            ranked.append((3 - len(good), mean if mode == "min" else -mean, lr))
        failed, mean, lr = min(ranked)  # the smaller lr wins a tie
        assert (row.lr, row.num_failed, row.num_seeds) == (lr, failed, 3)
        # Sums of three of these values are exact; dividing rounds once.
        expected = NAN if failed else mean if mode == "min" else -mean
        np.testing.assert_equal(row.mean, expected)
        assert row.lr_at_edge == (lr != 0.1)
        if any(f == 0 for f, _, _ in ranked):
            assert not row.num_failed
            assert math.isfinite(row.mean)


@pytest.mark.slow
@settings(max_examples=30)
@given(scored_frames(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(frame, random):
    rows = list(range(len(frame)))
    random.shuffle(rows)
    for per in ((), "lr", ("local_steps", "lr")):
        pd.testing.assert_frame_equal(
            selection.best(frame, per=per, mode="min"),
            selection.best(frame.iloc[rows], per=per, mode="min"),
        )


def test_best_reports_the_interval_and_keeps_cells_where_all_failed():
    rows = [("a", 0.1, s, v) for s, v in enumerate((1.0, 2.0, 4.0))]
    rows += [("a", 1.0, s, v) for s, v in enumerate((0.0, 0.0, NAN))]  # better, but fails once
    rows += [("b", 0.1, s, NAN) for s in range(3)]
    rows += [("b", 1.0, s, v) for s, v in enumerate((9.0, NAN, 9.0))]
    frame = pd.DataFrame(rows, columns=["algorithm", "lr", "seed", "score"])
    found = selection.best(frame, per=["algorithm"], mode="min", level=0.9)
    assert list(found.columns) == [
        *("algorithm", "lr", "mean", "low", "high", "num_seeds", "num_failed", "lr_at_edge")
    ]
    assert found["lr"].tolist() == [0.1, 1.0]
    assert found["num_failed"].tolist() == [0, 1]
    interval = stats.t.interval(0.9, 2, 7 / 3, stats.sem([1.0, 2.0, 4.0]))
    np.testing.assert_allclose(found.loc[0, ["low", "high"]].astype(float), interval, rtol=RTOL)
    assert found.loc[1, ["mean", "low", "high"]].isna().all()
    everything = selection.best(frame.loc[frame["algorithm"] == "b"].iloc[:3], mode="min")
    assert everything["num_failed"].tolist() == [3]


def test_edges_are_those_of_the_grid_that_the_algorithm_tried():
    rows = [("a", lr, NAN, "sgd", 8) for lr in (0.1, 1.0, 10.0)]
    rows += [("b", lr, s, o, 8) for lr in (1.0, 10.0) for s in (1, 2, 3) for o in ("adam", "sgd")]
    frame = pd.DataFrame(rows, columns=["algorithm", "lr", "server_lr", "optimizer", "batch"])
    frame = frame.assign(seed=0, score=1.0)
    names = ["lr_at_edge", "server_lr_at_edge", "optimizer_at_edge", "batch_at_edge"]

    def edges(algorithm, **chosen):
        wanted = np.logical_and.reduce([frame[k] == v for k, v in chosen.items()])
        wanted &= frame["algorithm"] == algorithm
        found = selection.best(frame.assign(score=np.where(wanted, 0.0, 1.0)), mode="min")
        assert found["algorithm"].tolist() == [algorithm]
        return found[names].values.tolist()[0]

    assert edges("a", lr=1.0) == [False, False, False, False]  # 1.0 is at the edge for b only
    assert edges("b", lr=1.0, server_lr=2) == [True, False, False, False]
    assert edges("b", lr=10.0, server_lr=3, optimizer="sgd") == [True, True, False, False]
    assert edges("a", lr=0.1) == [True, False, False, False]


def small_scores():
    rows = [(name, lr, s, lr + s) for name in "ab" for lr in (0.1, 1.0) for s in (0, 1)]
    return pd.DataFrame(rows, columns=["algorithm", "lr", "seed", "score"])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: selection.best(f, per="M", mode="min"), r"lacks the columns \['M'\]"),
        (lambda f: selection.best(f, mode="low"), "mode is 'low'"),
        (lambda f: selection.best(f.iloc[1:], per="algorithm", mode="min"), "different seeds.*'a'"),
        (lambda f: selection.best(f.iloc[[0, 3]], mode="min"), "different seeds"),
        (lambda f: selection.best(pd.concat([f, f]), mode="min"), "two rows for .*'seed': 0"),
        (lambda f: selection.best(f.iloc[:0], mode="min"), "no rows"),
        (lambda f: selection.best(f.drop(columns="score"), mode="min"), r"columns \['score'\]"),
        (lambda f: selection.best(f, mode="min", level=1.0), "level is 1.0"),
        (
            lambda f: tables.table(selection.best(f, per=["lr"], mode="min"), "lr", "M"),
            r"lacks the columns \['M'\]",
        ),
        (
            lambda f: tables.table(
                selection.best(f, per=["algorithm", "lr"], mode="min").assign(M=1), "lr", "M"
            ),
            "two rows for .*'lr': 0.1",
        ),
        (lambda f: tables.table(f, "lr", "algorithm", digits=0), "digits is 0"),
        (
            lambda f: statistics.paired_difference(f, "algorithm", "a", "c", mode="min"),
            "no row with {'algorithm': 'c'}",
        ),
        (
            lambda f: statistics.paired_difference(
                f, "algorithm", "a", "b", mode="min", at={"a": {"lr": 0.5}}
            ),
            "no row with {'algorithm': 'a', 'lr': 0.5}",
        ),
        (
            lambda f: statistics.paired_difference(
                f.assign(seed=f["seed"] + (f["algorithm"] == "b")),
                "algorithm",
                "a",
                "b",
                mode="min",
            ),
            r"seeds \[0, 1\] and \[1, 2\]",
        ),
        (
            lambda f: statistics.paired_differences(f.iloc[:4], mode="min"),
            r"algorithm = \['a'\]; expected at least two",
        ),
        (lambda f: statistics.speed_up(f, "M"), r"lacks the columns \['M'\]"),
        (lambda f: statistics.speed_up(f, "algorithm"), "expected positive numbers"),
        (
            lambda f: statistics.speed_up(f.assign(M=[0, 1] * 4), "M"),
            r"M = \[0, 1\]; expected pos",
        ),
        (lambda f: statistics.speed_up(f, "lr", reference=2.0), "reference is 2.0.*-1.4"),
        (
            lambda f: statistics.speed_up(f.iloc[:4].assign(seed=[0, 1, 1, 2]), "lr"),
            r"seeds \[0, 1\] and \[1, 2\]",
        ),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(small_scores())


def test_table_and_markdown():
    rows = [
        ("fedavg", 1, 0.8123, 0.78, 0.8446, 3, 0),
        ("fedavg", 16, 3.71e-6, 3.5e-6, 3.92e-6, 3, 0),
    ]
    rows += [("a|b", 1, NAN, NAN, NAN, 3, 2), ("a|b", 4, 12345.6, NAN, NAN, 1, 0)]
    rows += [("none", 1, math.inf, NAN, NAN, 2, 0), ("none", 4, -0.0416, NAN, NAN, 1, 0)]
    names = ["algorithm", "K", "mean", "low", "high", "num_seeds", "num_failed"]
    made = tables.table(pd.DataFrame(rows, columns=names), "algorithm", "K")
    assert tables.render(made).splitlines() == [
        "| algorithm | K = 1 | K = 4 | K = 16 |",
        "|---|---|---|---|",
        r"| a\|b | 2/3 failed | 12346 |  |",
        "| fedavg | 0.812 ± 0.032 |  | 3.71e-06 ± 0.21e-06 |",
        "| none | inf | -0.0416 |  |",
    ]
    wide = tables.table(pd.DataFrame(rows, columns=names), ["algorithm", "num_seeds"], "K")
    assert (
        tables.render(wide).splitlines()[0] == "| algorithm | num_seeds | K = 1 | K = 4 | K = 16 |"
    )
    tiny = pd.DataFrame([("x", 1, 2e-9, NAN, NAN, 1, 0)], columns=names)
    assert tables.table(tiny, "algorithm", "K", digits=2).iloc[0, 0] == "2.0e-09"


def two(a, b, name="algorithm"):
    rows = [(n, s, v) for n, values in (("a", a), ("b", b)) for s, v in enumerate(values)]
    return pd.DataFrame(rows, columns=[name, "seed", "score"])


@pytest.mark.slow
@given(
    st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=8).filter(
        lambda pairs: np.std([a - b for a, b in pairs]) > 1e-3  # SciPy warns where t overflows
    ),
    st.sampled_from([0.8, 0.95]),
)
def test_paired_difference_is_scipys_paired_test(pairs, level):
    a, b = np.array(pairs).T
    found = statistics.paired_difference(two(a, b), "algorithm", "a", "b", mode="min", level=level)
    expected = stats.ttest_rel(a, b)
    # A spread of 1e-3 among values of 1e3 leaves a relative error of 1e6 * 2e-16 per rounding.
    np.testing.assert_allclose(found.p_value, expected.pvalue, rtol=1e-7)
    low, high = expected.confidence_interval(level)
    np.testing.assert_allclose((found.low, found.high), (low, high), rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(found.differences, a - b)
    assert (found.num_seeds, found.failed) == (len(a), ())


def test_paired_difference_compares_best_or_given_configurations():
    rng = np.random.default_rng(1)
    rows = [
        (name, lr, seed, base + rng.normal())
        for name, lr, base in (("a", 0.1, 5), ("a", 1.0, 0), ("b", 0.1, 3), ("b", 1.0, 9))
        for seed in ("10", "3", "5", "8")
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "lr", "seed", "score"])
    value = {
        (name, lr): group["score"].to_numpy()
        for (name, lr), group in frame.groupby(["algorithm", "lr"])
    }
    shuffled = frame.sample(frac=1, random_state=0)
    found = statistics.paired_difference(shuffled, "algorithm", "a", "b", mode="min")
    assert (found.setting_a["lr"], found.setting_b["lr"]) == (1.0, 0.1)
    np.testing.assert_array_equal(found.differences.index, ["10", "3", "5", "8"])
    np.testing.assert_array_equal(found.differences, value["a", 1.0] - value["b", 0.1])
    held = statistics.paired_difference(
        shuffled, "algorithm", "a", "b", mode="min", at={"b": {"lr": 1.0}}
    )
    np.testing.assert_array_equal(held.differences, value["a", 1.0] - value["b", 1.0])
    steps = statistics.paired_difference(
        frame.loc[frame["algorithm"] == "a"], "lr", 0.1, 1.0, mode="max"
    )
    np.testing.assert_array_equal(steps.differences, value["a", 0.1] - value["a", 1.0])


def test_seeds_that_failed_are_reported():
    frame = two([1.0, NAN, 3.0, 5.0, math.inf, 1], [0.0, 1.0, 2.5, NAN, math.inf, math.inf])
    found = statistics.paired_difference(frame, "algorithm", "a", "b", mode="min")
    assert (found.failed, found.num_seeds, found.mean) == ((1, 3, 4, 5), 2, 0.75)
    np.testing.assert_array_equal(found.differences, [1.0, NAN, 0.5, NAN, NAN, NAN])
    np.testing.assert_allclose(found.p_value, stats.ttest_rel([1, 3], [0, 2.5]).pvalue, rtol=1e-9)
    none = statistics.paired_difference(two([NAN], [1.0]), "algorithm", "a", "b", mode="min")
    assert (none.num_seeds, none.failed) == (0, (0,))
    assert np.isnan([none.mean, none.low, none.p_value]).all()


def test_paired_difference_at_the_ends():
    def found(a, b):
        return statistics.paired_difference(two(a, b), "algorithm", "a", "b", mode="min")

    assert found([2.0], [1.0]).mean == 1.0
    assert np.isnan([found([2.0], [1.0]).p_value, found([2.0], [1.0]).low]).all()
    assert found([2.0, 3.0], [1.0, 2.0]).p_value == 0.0  # the same difference twice
    assert math.isnan(found([2.0, 3.0], [2.0, 3.0]).p_value)  # the same scores: 0 / 0


def test_all_pairs_and_holms_adjustment():
    rng = np.random.default_rng(2)
    noise = rng.normal(size=5)
    values = {
        n: m + noise + 0.3 * rng.normal(size=5) for n, m in zip("dcba", (0, 0, 1, 3), strict=True)
    }
    values["a"][2] = NAN
    rows = [(name, s, v) for name, vs in values.items() for s, v in enumerate(vs)]
    frame = pd.DataFrame(rows, columns=["method", "seed", "score"])
    found = statistics.paired_differences(frame, "method", mode="min")
    pairs = list(itertools.combinations("abcd", 2))
    assert list(zip(found["a"], found["b"], strict=True)) == pairs
    assert found["num_failed"].tolist() == [1, 1, 1, 0, 0, 0]
    p = []
    for a, b in pairs:
        both = np.isfinite(values[a] - values[b])
        p.append(stats.ttest_rel(values[a][both], values[b][both]).pvalue)
    np.testing.assert_allclose(found["p_value"], p, rtol=1e-9)
    adjusted, running = {}, 0.0
    for k, i in enumerate(sorted(range(6), key=lambda i: p[i])):
        running = max(running, (6 - k) * p[i])
        adjusted[i] = min(1.0, running)
    np.testing.assert_allclose(found["p_holm"], [adjusted[i] for i in range(6)], rtol=1e-9)
    assert len(set(found["p_holm"] / found["p_value"])) > 2


def speed_up_scores(seed=0, num_seeds=5, noise=0.1, sizes=(3, 4, 16)):
    """Error 2 / M, with noise that the sizes share and some of their own."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=num_seeds)
    return {m: 2 / m * (1 + noise * (shared + 0.3 * rng.normal(size=num_seeds))) for m in sizes}


def as_frame(errors, reference=0.0, sign=1):
    rows = [(m, s, reference + sign * v) for m, vs in errors.items() for s, v in enumerate(vs)]
    return pd.DataFrame(rows, columns=["num_clients", "seed", "score"])


@pytest.mark.parametrize(("mode", "sign", "reference"), [("min", 1, 0.25), ("max", -1, 1.0)])
def test_speed_up_is_the_ratio_of_mean_errors(mode, sign, reference):
    errors = speed_up_scores()
    frame = as_frame(errors, reference, sign)
    found = statistics.speed_up(frame, mode=mode, reference=reference, level=0.9)
    np.testing.assert_array_equal(found["num_clients"], [3, 4, 16])
    np.testing.assert_array_equal(found["linear"], [1, 4 / 3, 16 / 3])
    t = stats.t.ppf(0.95, 4)
    base = errors[3]
    for row, values in zip(found.itertuples(), errors.values(), strict=True):
        # Subtracting the reference from numbers of its size costs a few digits.
        np.testing.assert_allclose(row.error, values.mean(), rtol=1e-10)
        half = t * values.std(ddof=1) / math.sqrt(5)
        np.testing.assert_allclose(row.error_high - row.error, half, rtol=1e-10)
        ratio = base.mean() / values.mean()
        # var(log ratio) by the delta method, from variances and the covariance of the seeds.
        c = np.cov(base / base.mean(), values / values.mean())
        half = t * math.sqrt(max(c[0, 0] + c[1, 1] - 2 * c[0, 1], 0) / 5)
        np.testing.assert_allclose(row.speed_up, ratio, rtol=1e-10)
        np.testing.assert_allclose(
            (row.speed_up_low, row.speed_up_high),
            (ratio * math.exp(-half), ratio * math.exp(half)),
            rtol=1e-7,  # the square root of the covariances' rounding, where they cancel
        )


@pytest.mark.slow
def test_the_interval_of_the_speed_up_covers_the_true_one():
    """All but 20 +- 3 * 4.2 of 200 intervals at 90 % cover; pairing makes them short."""
    covered, widths = 0, []
    for seed in range(200):
        errors = speed_up_scores(seed, sizes=(4, 16))
        row = statistics.speed_up(as_frame(errors), level=0.9).iloc[1]
        covered += row["speed_up_low"] < 4.0 < row["speed_up_high"]
        widths.append(math.log(row["speed_up_high"] / row["speed_up_low"]))
    assert 200 - 20 - 13 <= covered <= 200 - 20 + 13
    # Own noise 0.03 at both sizes: E[s] = 0.94 sigma for 5 seeds; without pairing 0.148 for 0.042.
    expected = 2 * stats.t.ppf(0.95, 4) * 0.94 * 0.03 * math.sqrt(2 / 5)
    np.testing.assert_allclose(np.mean(widths), expected, rtol=0.1)


def test_curves_have_their_own_base_and_their_own_best():
    rows = []
    for steps, sizes in ((1, (2, 4)), (8, (4, 8, 16))):
        for m, lr, seed in itertools.product(sizes, (0.1, 1.0), (0, 1)):
            rows.append((steps, m, lr, seed, (1 if lr == (0.1 if m < 8 else 1.0) else 7) / m))
    frame = pd.DataFrame(rows, columns=["local_steps", "cohort_size", "lr", "seed", "score"])
    found = statistics.speed_up(
        frame.sample(frac=1, random_state=3), "cohort_size", per="local_steps"
    )
    assert found["local_steps"].tolist() == [1, 1, 8, 8, 8]
    assert found["cohort_size"].tolist() == [2, 4, 4, 8, 16]
    assert found["lr"].tolist() == [0.1, 0.1, 0.1, 1.0, 1.0]
    assert found["speed_up"].tolist() == found["linear"].tolist() == [1, 2, 1, 2, 4]


def test_a_speed_up_without_an_error_is_undefined():
    frame = as_frame({2: [1.0, NAN], 4: [0.5, 0.5]})
    found = statistics.speed_up(frame)
    assert found["num_failed"].tolist() == [1, 0]
    assert np.isnan(found["speed_up"]).all()
    # Rounds to a target that two clients do not reach.
    found = statistics.speed_up(as_frame({2: [9.0, math.inf], 4: [6.0, 8.0], 8: [3.0, 4.0]}))
    assert found["error"].tolist() == [math.inf, 7.0, 3.5]
    assert np.isnan(found["speed_up"]).all()
    one = statistics.speed_up(as_frame({2: [9.0], 4: [6.0]}))
    assert one["speed_up"].tolist() == [1.0, 1.5]
    assert np.isnan(one["speed_up_low"]).all()


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (9.9996, 0.1, "10.0 ± 0.1"),
        (0.00099996, 1e-5, "0.00100 ± 0.00001"),
        (9.9996e-7, 1e-8, "1.00e-06 ± 0.01e-06"),
        (999_999.6, 1e4, "1.00e+06 ± 0.01e+06"),
        (-0.05, 0.01, "-0.0500 ± 0.0100"),
    ],
)
def test_means_that_round_up_keep_their_number_of_digits(mean, half, text):
    frame = pd.DataFrame(
        [("a", 1, mean, mean - half, mean + half, 3, 0)],
        columns=["M", "K", "mean", "low", "high", "num_seeds", "num_failed"],
    )
    assert tables.table(frame, "M", "K").iloc[0, 0] == text


def test_settings_of_values_that_are_not_compared_are_refused():
    """Otherwise a misspelt name would be compared at its best configuration."""
    rows = [(name, lr, s, lr + s) for name in "ab" for lr in (0.1, 0.2) for s in (1, 2)]
    frame = pd.DataFrame(rows, columns=["algorithm", "lr", "seed", "score"])

    def difference(at):
        return statistics.paired_difference(frame, "algorithm", "a", "b", mode="min", at=at).mean

    assert difference({"a": {"lr": 0.2}}) == pytest.approx(0.1)
    with pytest.raises(
        ValueError, match=r"at has \['A'\]; expected 'a' or 'b', which are compared"
    ):
        difference({"A": {"lr": 0.2}})
