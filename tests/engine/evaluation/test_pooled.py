"""Scores of all examples together: values, clients, runs, sweeps, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.engine.evaluation import merge_evaluators, pooled_evaluator, scored, scores
from fedjax_sim.engine.evaluation.names import direction, headline
from fedjax_sim.runs import Options

RNG = np.random.default_rng(3)
X = RNG.normal(size=(50, 4)).astype(np.float32)
W = RNG.normal(size=4).astype(np.float32)
Y = (X @ W + RNG.normal(size=50) > 0).astype(np.int32)
Y[:12] = 1  # the first two clients have one class
DATA = fs.FederatedData({"x": X, "y": Y}, np.array([0, 5, 12, 12, 30, 50]))  # one has no examples
BINARY = np.round(RNG.normal(size=30), 1)  # with ties
TWO = RNG.integers(2, size=30)
LOGITS, THREE = RNG.normal(size=(40, 3)), RNG.integers(3, size=40)


def apply(w, x):
    return x @ w


def pairs_auc(y, z):
    """P(z_i > z_j) over pairs of a positive and a negative example, ties as a half."""
    pairs = [(a > b) + (a == b) / 2 for a in z[y == 1] for b in z[y == 0]]
    return np.mean(pairs) if pairs else np.nan


def softmax(z):
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


def counts_of(y, predicted, c):
    """True positives, false positives, false negatives of a class."""
    hit = (y == c) & (predicted == c)
    return hit.sum(), ((predicted == c) & ~hit).sum(), ((y == c) & ~hit).sum()


def calibration(y, z):
    p, total = softmax(z), 0.0
    for b in range(15):
        rows = [n for n in range(len(y)) if b / 15 < p[n].max() <= (b + 1) / 15]
        if rows:
            accuracy = np.mean([p[n].argmax() == y[n] for n in rows])
            total += len(rows) / len(y) * abs(accuracy - np.mean([p[n].max() for n in rows]))
    return total


def test_scores_of_two_classes_are_those_of_counting():
    predicted = (BINARY > 0).astype(int)
    hits, wrong, missed = counts_of(TWO, predicted, 1)
    expected = {
        scores.auc: pairs_auc(TWO, BINARY),
        scores.precision: hits / (hits + wrong),
        scores.recall: hits / (hits + missed),
        scores.f1: 2 * hits / (2 * hits + wrong + missed),
        scores.perplexity: np.exp(np.mean(np.logaddexp(0, BINARY) - TWO * BINARY)),
    }
    for score, value in expected.items():  # float64 rounding
        np.testing.assert_allclose(score(TWO, BINARY), value, rtol=1e-12)
        np.testing.assert_allclose(score(TWO, BINARY[:, None]), value, rtol=1e-12)


def test_scores_of_three_classes_are_means_over_classes():
    p, predicted = softmax(LOGITS), LOGITS.argmax(1)
    each = np.array([counts_of(THREE, predicted, c) for c in range(3)], float)
    hits, wrong, missed = each.T
    table = [[((c == THREE) & (predicted == k)).sum() for k in range(3)] for c in range(3)]
    expected = {
        scores.auc: np.mean([pairs_auc((c == THREE).astype(int), p[:, c]) for c in range(3)]),
        scores.precision: (hits / (hits + wrong)).mean(),
        scores.recall: (hits / (hits + missed)).mean(),
        scores.f1: (2 * hits / (2 * hits + wrong + missed)).mean(),
        scores.perplexity: np.exp(-np.log(p[np.arange(40), THREE]).mean()),
        scores.calibration_error: calibration(THREE, LOGITS),
        scores.confusion: table,
    }
    for score, value in expected.items():  # float64 rounding
        np.testing.assert_allclose(score(THREE, LOGITS), value, rtol=1e-12)


def test_scores_of_a_regression():
    y, z = RNG.normal(size=(2, 20))
    squares = (y - z) ** 2
    np.testing.assert_allclose(scores.rmse(y, z[:, None]), np.sqrt(squares.mean()), rtol=1e-12)
    expected = 1 - squares.sum() / ((y - y.mean()) ** 2).sum()
    np.testing.assert_allclose(scores.r2(y, z), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("score", "y"), [(scores.auc, [1, 1]), (scores.recall, [0, 0]), (scores.r2, [2, 2])]
)
def test_a_score_that_the_examples_do_not_define_is_nan(score, y):
    assert np.isnan(score(np.array(y), np.array([-0.3, 0.3])))


def test_classes_that_no_example_has_are_left_out():
    y, z = np.array([0, 0, 1, 1]), LOGITS[:4]
    p = softmax(z)
    expected = np.mean([pairs_auc((y == c).astype(int), p[:, c]) for c in (0, 1)])
    np.testing.assert_allclose(scores.auc(y, z), expected, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 7, 50])
def test_outputs_are_those_of_all_examples(batch_size):
    evaluate = pooled_evaluator(apply, DATA.examples, {"auc": scores.auc}, batch_size)
    outputs = jax.jit(lambda part, w: part(w))(evaluate, W)
    assert list(outputs) == ["pooled/outputs"]
    # Products of other batch sizes: float32 rounding.
    np.testing.assert_allclose(outputs["pooled/outputs"], X @ W, rtol=1e-5, atol=1e-6)
    assert scored(evaluate, outputs) == {"auc": pairs_auc(Y, np.asarray(outputs["pooled/outputs"]))}


def test_pixels_are_scaled_as_in_other_evaluations():
    pixels = RNG.integers(256, size=(50, 4)).astype(np.uint8)
    evaluate = pooled_evaluator(apply, {"x": pixels, "y": Y}, {"auc": scores.auc})
    outputs = evaluate(jnp.asarray(W))["pooled/outputs"]
    np.testing.assert_allclose(outputs, pixels / np.float32(255) @ W, rtol=1e-5, atol=1e-6)


def test_clients_without_a_score_are_left_out_and_counted():
    result = scored(
        evaluate := pooled_evaluator(apply, DATA, {"auc": scores.auc, "table": scores.confusion}),
        evaluate(W),
    )
    outputs = np.asarray(evaluate(W)["pooled/outputs"])
    bounds = list(zip(DATA.offsets[:-1], DATA.offsets[1:], strict=True))
    clients = np.array([pairs_auc(Y[a:b], outputs[a:b]) for a, b in bounds])
    assert np.isnan(clients).tolist() == [True, True, True, False, False]
    assert result["auc/clients"] == 2
    np.testing.assert_allclose(result["auc"], pairs_auc(Y, outputs), rtol=1e-12)
    # Statistics are computed in float32.
    np.testing.assert_allclose(result["auc/mean"], np.nanmean(clients), rtol=1e-6)
    np.testing.assert_allclose(result["auc/worst_decile"], np.nanmin(clients), rtol=1e-6)
    assert result["table"].sum() == 50
    assert not [name for name in result if name.startswith("table/")]


def error(y, z):
    return {"share": np.mean((z > 0) != y), "count": np.sum((z > 0) != y)}


def plain(w):
    return {"share": jnp.mean((jnp.asarray(X) @ w > 0) != (Y > 0))}


def setup_of(num_seeds, eval_fn):
    task = fs.empirical_task(
        fs.objectives.binary_cross_entropy(apply), DATA, fs.epochs(1, batch_size=5)
    )
    timeline = fs.timelines.full(6, 5, task.num_steps)
    params = np.stack([-W] * num_seeds)  # worse than chance
    return fs.Setup(task, timeline, params, eval_fn=eval_fn, eval_every=2)


EVALUATE = merge_evaluators(plain=plain, test=pooled_evaluator(apply, DATA.examples, {"e": error}))
KEYS = jax.random.split(jax.random.key(0), 2)


def check_equal(metrics):
    """A score is the metric that a program computes, in every evaluation."""
    assert "test/pooled/outputs" not in metrics
    assert np.asarray(metrics["plain/share"]).std() > 0
    # Shares of 50 examples in float32 and float64.
    np.testing.assert_allclose(metrics["test/e/share"], metrics["plain/share"], rtol=1e-6)
    np.testing.assert_array_equal(metrics["test/e/count"], np.round(50 * metrics["plain/share"]))


def test_histories_of_runs_have_scores(tmp_path):
    result = fs.simulate(
        fs.fedavg(0.5), setup_of(2, EVALUATE), KEYS, storage=tmp_path,
        options=Options(eval_initial=True),
    )  # fmt: skip
    check_equal(result.history.metrics)
    assert result.history.metrics["test/e/count"].shape == (2, 4)
    text = (tmp_path / "history.csv").read_text()
    assert "test/e/share" in text
    assert "outputs" not in text


def test_a_resumed_run_has_the_same_scores(tmp_path):
    whole = setup_of(2, EVALUATE)
    first = dataclasses.replace(whole, timeline=whole.timeline[:4])
    fs.simulate(fs.fedavg(0.5), first, KEYS, storage=tmp_path / "parts")
    fs.simulate(fs.fedavg(0.5), whole, KEYS, storage=tmp_path / "parts")
    fs.simulate(fs.fedavg(0.5), whole, KEYS, storage=tmp_path / "whole")
    parts, together = (tmp_path / name / "history.csv" for name in ("parts", "whole"))
    assert parts.read_bytes() == together.read_bytes()


def test_comparisons_have_scores():
    result = fs.compare({"a": fs.fedavg(0.5), "b": fs.fedavg(2.0)}, setup_of(2, EVALUATE), KEYS)
    for (run,) in result.simulations.values():
        check_equal(run.history.metrics)


def test_forks_have_scores():
    whole = setup_of(2, EVALUATE)
    begun = fs.simulate(
        fs.fedavg(0.5), dataclasses.replace(whole, timeline=whole.timeline[:2]), KEYS
    )
    forks = fs.fork(begun, {"same": fs.fedavg(0.5), "b": fs.fedavg(1.0)}, whole, KEYS)
    for history in forks.histories.values():
        check_equal(history.metrics)


def test_the_option_scores_the_test_examples():
    """Logits of the initial model, which are computed here, too."""
    setup = fs.presets.quickstart(rounds=1, seeds=1, scores=("auc", "confusion"))
    history = fs.simulate(
        fs.fedavg(0.0), setup, fs.presets.keys(1), options=Options(eval_initial=True)
    ).history
    assert history.metrics["test/confusion"].shape[-2:] == (10, 10)
    share = np.trace(history.metrics["test/confusion"][0, 0])
    count = history.metrics["test/confusion"][0, 0].sum()
    np.testing.assert_allclose(share / count, history.metrics["test/accuracy"][0, 0], rtol=1e-6)
    assert 0.3 < history.metrics["test/auc"][0, 0] < 0.8  # not trained


@pytest.mark.parametrize("large", [False, True])
def test_sweeps_have_the_scores_of_runs(large, monkeypatch):
    if large:  # one evaluation per segment
        monkeypatch.setattr("fedjax_sim.engine.evaluation.pooled._MOST_BYTES", 1)
    result = fs.sweep(fs.fedavg, setup_of(2, EVALUATE), {"lr": [0.5, 2.0]}, KEYS)
    for run in result.runs:
        check_equal(run.history.metrics)
    alone = fs.simulate(fs.fedavg(0.5), setup_of(2, EVALUATE), KEYS).history.metrics
    swept = np.stack([run.history.metrics["test/e/count"] for run in result.runs[:2]])
    np.testing.assert_array_equal(swept, alone["test/e/count"])


def test_scores_that_are_not_due_are_left_out_of_files(tmp_path):
    slow = fs.evaluation.at_rounds(pooled_evaluator(apply, DATA.examples, {"e": error}), 4)
    setup = setup_of(2, merge_evaluators(plain=plain, slow=slow))
    metrics = fs.simulate(fs.fedavg(0.5), setup, KEYS, storage=tmp_path).history.metrics
    assert metrics["slow/evaluated"][0].tolist() == [False, True, False]
    np.testing.assert_allclose(  # float32 and float64
        metrics["slow/e/share"][:, 1], metrics["plain/share"][:, 1], rtol=1e-6
    )
    lines = (tmp_path / "history.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines if "slow/e/share" in line] == ["4", "4"]


def broken(y, z):
    return y @ z.T[:, :3]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"scores": {}}, r"scores is empty; expected functions"),
        ({"scores": {"e": 0.5}}, r"scores has 'e': 0.5; expected a function"),
        ({"examples": {"x": X}}, r"examples has \['x'\]; expected a dict with 'x' and 'y'"),
        ({"examples": X}, r"examples has ndarray; expected a dict with 'x' and 'y'"),
        ({"batch_size": 0}, r"batch_size is 0"),
    ],
)
def test_bad_arguments_are_refused(made, message):
    good = {"examples": DATA.examples, "scores": {"e": error}}
    with pytest.raises(ValueError, match=message):
        pooled_evaluator(apply, **(good | made))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (broken, r"scores\['e'\] fails on labels int32\[50\] and outputs float32\[50\]"),
        (lambda y, z: "good", r"scores returns 'good' for 'e'; expected real numbers"),
        (lambda y, z: 1j, r"scores returns 'e', which is complex"),
    ],
)
def test_scores_that_fail_are_refused_before_the_run(score, message):
    setup = setup_of(2, pooled_evaluator(apply, DATA.examples, {"e": score}))
    with pytest.raises(ValueError, match=f"eval_fn: {message}"):
        fs.simulate(fs.fedavg(0.5), setup, KEYS)


def test_a_score_and_a_metric_of_one_name_are_refused():
    both = merge_evaluators(
        lambda w: {"e": w.sum()}, pooled_evaluator(apply, DATA, {"e": scores.f1})
    )
    with pytest.raises(
        ValueError, match="has 'e' twice, as a score and as another score or metric"
    ):
        scored(both, both(W))


@pytest.mark.parametrize(
    "named", [{"auc": scores.auc, "auc/mean": scores.f1}, {"e/share": scores.f1, "e": error}]
)
def test_scores_of_one_name_are_refused(named):
    """One of them would replace the other."""
    evaluate = pooled_evaluator(apply, DATA, named)
    with pytest.raises(ValueError, match=f"has '{sorted(named)[1]}' twice"):
        scored(evaluate, evaluate(W))


def test_scores_of_several_evaluations_need_their_shape():
    """Labels [50] and outputs [3, 50] broadcast, so that functions would return a number."""
    setup = dataclasses.replace(setup_of(1, EVALUATE), params=-W)
    _, history = fs.run(fs.fedavg(0.5), setup, KEYS[0])
    check_equal(scored(EVALUATE, history.metrics, history.round.shape))
    with pytest.raises(ValueError, match=r"has outputs \[3, 50\]; expected \[50, ...\]"):
        scored(EVALUATE, history.metrics)


# Softmax probabilities of these logits round to 0 or 1.
CONFIDENT = np.array([40.0, 50.0, 60.0, -800.0, -790.0])


def test_scores_of_confident_models_are_exact():
    y = np.array([0, 1, 0, 0, 1])
    for logits in (CONFIDENT, CONFIDENT[:, None], np.stack([0 * CONFIDENT, CONFIDENT], 1)):
        assert scores.auc(y, logits) == pairs_auc(y, CONFIDENT)
    of_three = np.stack([CONFIDENT, 0 * CONFIDENT, -1e3 * np.ones(5)], 1)
    orders = [pairs_auc(y == 0, CONFIDENT), pairs_auc(y == 1, -CONFIDENT)]
    assert scores.auc(y, of_three) == np.mean(orders)
    # The mean of -log p is (100 + 0) / 2 up to exp(-100).
    np.testing.assert_allclose(
        scores.perplexity(np.array([0, 1]), np.full(2, 100.0)), np.exp(50), rtol=1e-12
    )


@pytest.mark.parametrize("seed", range(5))
def test_equal_odds_are_ties(seed):
    """Rows are one row with logits 1 .. 7 in other orders, and shifted, which changes rounding.

    Class 0 has the same odds in all rows, so its area is 1/2.  Class 3 has the other examples.
    """
    rng = np.random.default_rng(seed)
    row = rng.integers(-64, 64, 8) / 16  # sums with shifts are exact
    z = np.stack([row[[0, *(1 + rng.permutation(7))]] for _ in range(20)])
    shifted = z + rng.integers(-100, 100, (20, 1))
    y = np.where(np.arange(20) % 2, 0, 3)
    expected = (1 / 2 + pairs_auc((y == 3).astype(int), softmax(z)[:, 3].round(12))) / 2
    assert scores.auc(y, shifted) == pytest.approx(expected, rel=1e-12)


CLASSIFIER = ["auc", "f1", "precision", "recall", "confusion", "calibration_error", "perplexity"]


@pytest.mark.parametrize("name", CLASSIFIER)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_of_a_diverged_model_are_nan(name, value):
    """The largest of NaN would be class 0."""
    logits = LOGITS.copy()
    logits[7] = value
    assert np.isnan(getattr(scores, name)(THREE, logits)).all()
    assert np.isnan(getattr(scores, name)(TWO[:2], np.array([0.0, value]))).all()


def test_errors_of_infinite_predictions_are_infinite():
    y, z = np.array([0.0, 1.0]), np.array([np.inf, 1.0])
    assert (scores.rmse(y, z), scores.r2(y, z)) == (np.inf, -np.inf)
    assert np.isnan(scores.rmse(y, z * np.nan))


@pytest.mark.parametrize("name", CLASSIFIER)
def test_labels_that_no_output_has_are_refused(name):
    with pytest.raises(
        ValueError, match=r"labels 0 \.\. 3; expected \[N\], whole numbers in 0 \.\. 2"
    ):
        getattr(scores, name)(np.array([0, 1, 3]), LOGITS[:3])


@pytest.mark.parametrize("shape", [(1, 4), (4, 2)])
def test_predictions_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="expected \\(4,\\), that of the targets"):
        scores.rmse(np.zeros(4), np.zeros(shape))


def refuses_nan(y, z):
    if np.isnan(z).any():
        raise ValueError("Input contains NaN.")  # as functions of scikit-learn
    return np.mean(z > 0)


def test_models_with_several_inputs_are_scored():
    examples = {"x": {"first": X, "second": X[:, :2]}, "y": Y}

    def two_inputs(w, x):
        return x["first"] @ w + x["second"] @ w[:2]

    evaluate = pooled_evaluator(two_inputs, examples, {"mean": lambda y, z: z.mean()}, 7)
    expected = (X @ W + X[:, :2] @ W[:2]).mean()
    assert scored(evaluate, evaluate(W))["mean"] == pytest.approx(expected, rel=1e-5)


def test_runs_beside_one_that_diverges_have_their_scores(allow_nans):
    evaluate = pooled_evaluator(apply, DATA, {"e": refuses_nan, "f1": scores.f1})
    alone, (first, _, diverged, _) = (
        fs.sweep(fs.fedavg, setup_of(2, evaluate), {"lr": lrs}, KEYS).runs
        for lrs in ([0.5], [0.5, 3e38])
    )
    for name, values in diverged.history.metrics.items():
        np.testing.assert_array_equal(
            first.history.metrics[name], alone[0].history.metrics[name], err_msg=name
        )
        if name.startswith(("e", "f1")):
            assert np.isnan(values[-1]) or name.endswith("/clients"), name


@pytest.mark.parametrize("name", ["test/auc/clients", "test/perplexity/clients", "train/examples"])
def test_numbers_of_clients_are_no_scores(name):
    """They are no shares in [0, 1], and more of them are not better."""
    assert not fs.engine.is_fraction(name)
    assert direction(name) is None
    assert headline(["test/auc", name]) == ["test/auc"]


def test_own_metrics_stand_before_those_of_training_examples():
    """Tables have room for few metrics, and one of the user's own is there to be read."""
    names = ["balanced", "test/accuracy", "test/loss", "train/accuracy", "train/loss", "valid/loss"]
    first = ["test/accuracy", "test/loss", "train/loss", "balanced"]
    assert headline([*names, "client/test/loss"]) == [
        *first, "train/accuracy", "valid/loss", "client/test/loss",
    ]  # fmt: skip
