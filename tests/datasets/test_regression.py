"""Regression: targets, losses and metrics; expected numbers by NumPy in double precision."""

import re
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_arrays, read_table
from fedjax_sim.engine.evaluation import client_evaluator, evaluator, personal_evaluator

RNG = np.random.default_rng(0)
X = RNG.normal(size=(37, 3)).astype(np.float32)
# Years: the mean is 400 standard deviations away from 0, so E[y^2] - E[y]^2 in float32 is noise.
Y = (2000 + X @ np.array([3.0, -2.0, 1.0]) + RNG.normal(size=37)).astype(np.float32)
W = np.array([2.0, -1.0, 0.5], np.float32)


def predict(params, x):
    return x @ params + 2000


def one_output(params, x):
    return predict(params, x)[:, None]


def expected(rows=slice(None)):
    """RMSE and R^2 by their definitions."""
    x, y = X[rows].astype(float), Y[rows].astype(float)
    errors = x @ W + 2000 - y
    return {
        "loss": (errors**2).mean(),
        "rmse": np.sqrt((errors**2).mean()),
        "r2": 1 - (errors**2).sum() / ((y - y.mean()) ** 2).sum(),
    }


def assert_close(result, wanted):
    # Errors are differences of float32 numbers near 2000, which have a step of 1e-4.
    for name, value in wanted.items():
        np.testing.assert_allclose(float(result[name]), value, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("apply", [predict, one_output])
@pytest.mark.parametrize("batch_size", [None, 5, 37])
def test_metrics_of_all_examples(apply, batch_size):
    metrics = fs.objectives.regression_metrics(apply)
    result = evaluator(metrics, {"x": X, "y": Y}, batch_size)(jnp.asarray(W))
    assert set(result) == {"loss", "rmse", "r2"}
    assert_close(result, expected())


def test_metrics_of_a_subsample_and_under_vmap():
    metrics = fs.objectives.regression_metrics(predict)
    part = fs.evaluation.subsample({"x": X, "y": Y, "row": np.arange(37)}, 11)
    result = evaluator(metrics, {"x": X, "y": Y}, max_examples=11)(jnp.asarray(W))
    assert_close(result, expected(part["row"]))
    evaluate = evaluator(metrics, {"x": X, "y": Y})
    both = jax.vmap(lambda w: evaluate(w))(jnp.stack([jnp.asarray(W), jnp.zeros(3)]))
    assert_close({name: value[0] for name, value in both.items()}, expected())


@pytest.mark.slow
def test_metrics_of_clients():
    """R^2 of a client is about the mean of its own targets; client 1 has no examples."""
    offsets = np.array([0, 10, 10, 37])
    data = fs.FederatedData({"x": X, "y": Y}, offsets)
    metrics = fs.objectives.regression_metrics(predict)
    first, last = expected(slice(0, 10)), expected(slice(10, 37))
    result = client_evaluator(metrics, data, 4, per_client=True)(jnp.asarray(W))
    for name in first:
        values = np.asarray(result[f"per_client/{name}"])
        np.testing.assert_allclose(values[[0, 2]], [first[name], last[name]], rtol=1e-3)
        mean = (first[name] + last[name]) / 2
        np.testing.assert_allclose(result[f"{name}/mean"], mean, rtol=1e-3)
    worst = min(first["r2"], last["r2"])  # larger is better
    np.testing.assert_allclose(result["r2/worst_decile"], worst, rtol=1e-3)
    own = personal_evaluator(metrics, data, personal=lambda params, state: params)
    state = fs.RunState(
        jnp.array(0), fs.fedavg(0.1).init(jnp.asarray(W)), jnp.zeros(3), (), jnp.array(0)
    )
    personal = fs.evaluation.evaluate(own, state)
    np.testing.assert_allclose(personal["rmse/mean"], result["rmse/mean"], rtol=1e-5)
    np.testing.assert_allclose(personal["rmse/weighted_mean"], expected()["rmse"], rtol=1e-3)
    np.testing.assert_allclose(
        personal["r2/weighted_mean"], (10 * first["r2"] + 27 * last["r2"]) / 37, rtol=1e-3
    )


@pytest.mark.parametrize(
    "y",
    [np.full(4, 2000.0, np.float32), np.full(3, 0.1), np.full((3, 1), 0.1)],
    ids=["float32", "float64", "column"],  # the mean of 0.1, 0.1 and 0.1 is another number
)
def test_equal_targets_have_no_r2(y):
    examples = {"x": X[: len(y)], "y": y}
    metrics = fs.objectives.regression_metrics(lambda w, x: predict(w, x).reshape(y.shape))
    clients = fs.FederatedData(examples, np.array([0, len(y)]))
    with jax.debug_nans(False):
        result = evaluator(metrics, examples)(jnp.asarray(W))
        of_clients = client_evaluator(metrics, clients)(jnp.asarray(W))
    assert np.isnan([result["r2"], of_clients["r2/mean"]]).all()
    assert np.isfinite(result["rmse"])


@pytest.mark.parametrize("delta", [0.5, 1.0, 4.0])
def test_huber(delta):
    """Its two branches, and its derivative, which is the error cut at delta."""
    errors = np.array([-3.0, -0.25, 0.0, 0.75, 5.0])
    wanted = np.where(np.abs(errors) <= delta, errors**2 / 2, delta * (np.abs(errors) - delta / 2))
    loss = fs.objectives.huber(lambda params, x: x + params, delta)
    examples = {"x": jnp.asarray(errors), "y": jnp.zeros(5)}
    zero = jnp.array(0.0)
    np.testing.assert_allclose(loss(zero, examples, None), wanted, rtol=1e-6)
    slopes = jax.jacobian(lambda p: loss(p, examples, None))(zero)
    np.testing.assert_allclose(slopes, np.clip(errors, -delta, delta), rtol=1e-6)
    metrics = fs.objectives.regression_metrics(lambda params, x: x + params, delta)
    np.testing.assert_allclose(metrics(zero, examples)["loss"], wanted, rtol=1e-6)


def test_a_column_that_would_broadcast_is_refused():
    loss = fs.objectives.squared_error(lambda params, x: x @ params)
    with pytest.raises(ValueError, match=r"examples\['y'\] has shape \(37, 1\); expected \(37,\)"):
        loss(jnp.asarray(W), {"x": X, "y": Y[:, None]}, None)
    with pytest.raises(ValueError, match="delta is 0"):
        fs.objectives.huber(predict, 0.0)


def test_kinds_of_targets():
    classes = from_arrays(X, np.arange(37) % 3)
    assert (classes.target, classes.num_classes) == ("classes", 3)
    numbers = from_arrays(X, Y)
    assert (numbers.target, numbers.num_classes, numbers.class_names) == ("numbers", 1, None)
    assert numbers.train["y"].dtype == np.float32
    assert len(numbers.test["y"]) == 7  # a fifth of the rows
    together = np.concatenate([numbers.train["y"], numbers.test["y"]])
    np.testing.assert_array_equal(np.sort(together), np.sort(Y))
    whole = np.arange(37.0)
    with pytest.raises(DataError, match=r"whole floats such as 0\.0; expected target='classes' or"):
        from_arrays(X, whole)
    assert from_arrays(X, whole, target="numbers").num_classes == 1
    assert from_arrays(X, whole % 4, target="classes").class_names == ("0", "1", "2", "3")
    assert from_arrays(X, np.arange(37), target="numbers").train["y"].dtype == np.float32
    for target, y, message in [
        ("numbers", ["a"] * 37, "'a' at .0.; expected numbers"),
        ("classes", Y, "expected integers or text"),
        ("real", Y, "target is 'real'; expected one of classes, numbers"),
    ]:
        with pytest.raises(DataError, match=message):
            from_arrays(X, y, target=target)  # type: ignore


@pytest.mark.parametrize("kind", [float, Decimal])
def test_targets_that_a_table_has_as_objects(kind):
    """Columns of Arrow's decimals, and of floats among other types, have the type object."""
    y = [kind(k) / kind(4) for k in range(10)]
    frame = pd.DataFrame({"a": X[:10, 0], "y": pd.Series(y, dtype=object)})
    numbers = np.arange(10) / 4
    for data in (fs.from_table(frame), from_arrays(X[:10], frame["y"])):
        assert data.target == "numbers"
        both = np.concatenate([data.train["y"], data.test["y"]])
        np.testing.assert_array_equal(np.sort(both), numbers)
    features = fs.from_table(frame.assign(label=[0, 1] * 5), label_column="label")
    np.testing.assert_array_equal(
        np.sort([*features.train["x"][:, 1], *features.test["x"][:, 1]]), numbers
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["2,5", "3,5"], "labels are text such as '2,5', with '2,5' at [0]; expected numbers"),
        (["2.5", "?"], "labels are text such as '2.5', with '?' at [1]; expected numbers"),
        (["1e1", "-.5"], "labels are text such as '-.5'; expected numbers"),
    ],
)
def test_numbers_as_text_are_no_classes(values, message, tmp_path):
    """One "?" makes text of a whole column of prices."""
    with pytest.raises(DataError, match=re.escape(message)):
        from_arrays(X[:10], values * 5)
    assert from_arrays(X[:10], values * 5, target="classes").num_classes == 2
    path = tmp_path / "prices.csv"
    path.write_text("a;y\n" + "".join(f"{k};{values[k % 2]}\n" for k in range(10)))
    if "," in values[0]:
        assert read_table(path, decimal=",").target == "numbers"
    else:
        with pytest.raises(DataError, match="at \\[1\\]; expected numbers, since target='numbers'"):
            from_arrays(X[:10], ["2.5", "?"] * 5, target="numbers")


@pytest.mark.slow
def test_a_table_with_a_number_to_predict(tmp_path):
    path = tmp_path / "houses.csv"
    rows = "".join(f"{x[0]},{y},{k % 4}\n" for k, (x, y) in enumerate(zip(X, Y, strict=True)))
    path.write_text("size,price,town\n" + rows)
    data = read_table(path, label_column="price", client_column="town")
    assert data.target == "numbers"
    assert data.clients().num_clients == 4
    model = fs.models.softmax_regression(1, data.num_classes)  # of one output
    task = fs.empirical_task(fs.objectives.squared_error(model), data.clients(), fs.full_batch(1))
    evaluate = evaluator(fs.objectives.regression_metrics(model), data.test)
    timeline = fs.timelines.full(30, 4, task.num_steps)
    setup = fs.Setup(task, timeline, model.init(jax.random.key(0)), evaluate, 10)
    result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0))
    # The clients' means agree to a unit, so the intercept is found to about one.
    assert result.history is not None
    assert float(result.history.metrics["rmse"][-1]) < 10
