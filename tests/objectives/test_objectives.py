"""Objectives and metrics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from fedjax_sim import models, objectives

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 3)).astype(np.float32)
W = RNG.standard_normal((3, 4)).astype(np.float32)
LABELS = np.array([0, 3, 2, 2, 1, 0])


def linear(params, x):
    return x @ params


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_cross_entropy(dtype):
    examples = {"x": jnp.asarray(X), "y": jnp.asarray(LABELS, dtype)}
    losses = objectives.cross_entropy(linear)(jnp.asarray(W), examples, None)
    expected = -log_softmax(X @ W)[np.arange(6), LABELS]
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses, expected, rtol=1e-5)  # float32 of numbers near 1
    metrics = objectives.classification_metrics(linear)(jnp.asarray(W), examples)
    np.testing.assert_array_equal(metrics["loss"], losses)
    np.testing.assert_array_equal(metrics["accuracy"], (X @ W).argmax(1) == LABELS)


def test_classification_metrics_in_double_precision(x64):
    """The position of the largest logit is then a 64-bit integer, but labels are not."""
    examples = {"x": jnp.asarray(X), "y": jnp.asarray(LABELS, np.int32)}
    accuracy = objectives.classification_metrics(linear)(jnp.asarray(W), examples)["accuracy"]
    np.testing.assert_array_equal(accuracy, (X @ W).argmax(1) == LABELS)


def test_cross_entropy_of_sequences_is_the_mean_over_positions():
    x = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    y = RNG.integers(0, 4, (2, 5))
    examples = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    metrics = objectives.classification_metrics(linear)(jnp.asarray(W), examples)
    expected = -np.take_along_axis(log_softmax(x @ W), y[..., None], -1)[..., 0].mean(1)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], ((x @ W).argmax(-1) == y).mean(1), rtol=1e-6)


@pytest.mark.slow
def test_cross_entropy_of_large_logits_is_finite():
    examples = {"x": jnp.eye(2) * 1e4, "y": jnp.array([0, 0])}
    objective = objectives.cross_entropy(linear)
    np.testing.assert_array_equal(objective(jnp.eye(2), examples, None), [0.0, 1e4])
    gradient = jax.grad(lambda w: objective(w, examples, None).sum())(jnp.eye(2))
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float32])
def test_binary_cross_entropy(dtype):
    y = LABELS % 2
    examples = {"x": jnp.asarray(X), "y": jnp.asarray(y, dtype)}
    w = jnp.asarray(W[:, 0])
    probability = 1 / (1 + np.exp(-(X.astype(np.float64) @ W[:, 0])))
    expected = -np.where(y == 1, np.log(probability), np.log1p(-probability))
    losses = objectives.binary_cross_entropy(linear)(w, examples, None)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    metrics = objectives.binary_classification_metrics(linear)(w, examples)
    np.testing.assert_array_equal(metrics["loss"], losses)
    np.testing.assert_array_equal(metrics["accuracy"], (probability > 0.5) == (y == 1))


def test_binary_cross_entropy_far_from_zero():
    examples = {"x": jnp.array([[1e4], [-1e4], [1e4]]), "y": jnp.array([0, 0, 1])}

    def losses(w):
        return objectives.binary_cross_entropy(linear)(w, examples, None)

    np.testing.assert_array_equal(losses(jnp.ones(1)), [1e4, 0.0, 0.0])
    # d/dw = (sigmoid(z) - y) x
    np.testing.assert_array_equal(jax.jacobian(losses)(jnp.ones(1))[:, 0], [1e4, 0.0, 0.0])


def test_squared_error():
    y = RNG.standard_normal((6, 4)).astype(np.float32)
    examples = {"x": jnp.asarray(X), "y": jnp.asarray(y)}
    losses = objectives.squared_error(linear)(jnp.asarray(W), examples, None)
    np.testing.assert_allclose(losses, ((X @ W - y) ** 2).sum(1), rtol=1e-5)


@pytest.mark.slow
def test_with_l2():
    params = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(2.0)}
    base = lambda params, examples, key: params["b"] * examples["x"]  # noqa: E731
    examples = {"x": jnp.array([0.0, 1.0])}

    def losses(weight):
        return objectives.with_l2(base, weight)(params, examples, None)

    # weight / 2 * (1 + 4 + 4); exact in binary.
    np.testing.assert_array_equal(losses(0.5), [2.25, 4.25])
    swept = jax.vmap(losses)(jnp.array([0.0, 0.5]))
    np.testing.assert_array_equal(swept, [[0.0, 2.0], [2.25, 4.25]])
    gradient = jax.grad(lambda p: objectives.with_l2(base, 0.5)(p, examples, None).mean())(params)
    np.testing.assert_array_equal(gradient["w"], 0.5 * params["w"])
    np.testing.assert_array_equal(gradient["b"], 0.5 * params["b"] + 0.5)


def test_with_l2_of_frozen_leaves_in_half_precision():
    """The squares' sum is 90,000 + 1; in float16 it is infinite."""
    params = {"frozen": jnp.array(300.0, jnp.float16), "w": jnp.array(1.0)}
    objective = objectives.with_l2(lambda params, examples, key: params["w"] * jnp.ones(1), 2.0)
    np.testing.assert_array_equal(objective(params, {}, None), [90_002.0])


def test_uint8_images_and_precision_follow_the_params(x64):
    pixels = jnp.asarray(RNG.integers(0, 256, (6, 3)), jnp.uint8)
    examples = {"x": pixels, "y": jnp.asarray(LABELS)}
    for dtype in (jnp.float32, jnp.float64):
        w = jnp.asarray(W, dtype)
        losses = objectives.cross_entropy(linear)(w, examples, None)
        expected = -log_softmax(np.asarray(pixels) / 255 @ np.asarray(w))[np.arange(6), LABELS]
        assert losses.dtype == dtype
        # A few roundings of numbers near 1.
        np.testing.assert_allclose(losses, expected, rtol=20 * float(jnp.finfo(dtype).eps))


def test_as_float_leaves_token_ids_alone():
    tokens = jnp.array([3, 70000])
    assert objectives.as_float(tokens).dtype == tokens.dtype
    assert objectives.as_float(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32


def test_errors():
    x = jnp.asarray(X)
    with pytest.raises(ValueError, match=r"\['y'\] has shape \(6, 1\); expected \(6,\)"):
        objectives.cross_entropy(linear)(jnp.asarray(W), {"x": x, "y": LABELS[:, None]}, None)
    y = jnp.zeros(6)
    with pytest.raises(ValueError, match=r"\['y'\] has dtype float32; expected integer"):
        objectives.classification_metrics(linear)(jnp.asarray(W), {"x": x, "y": y})
    with pytest.raises(ValueError, match=r"\['y'\] has shape \(6,\); expected \(6, 1\)"):
        objectives.binary_cross_entropy(linear)(jnp.ones((3, 1)), {"x": x, "y": LABELS}, None)
    with pytest.raises(ValueError, match=r"\['y'\] has shape \(6,\); expected \(6, 4\)"):
        objectives.squared_error(linear)(jnp.asarray(W), {"x": x, "y": LABELS}, None)
    with pytest.raises(ValueError, match=r"weight is -1; expected at least 0"):
        objectives.with_l2(objectives.squared_error(linear), -1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: objectives.cross_entropy(linear),
        lambda: objectives.binary_cross_entropy(linear),
        lambda: objectives.squared_error(linear),
        lambda: objectives.keyed(objectives.cross_entropy, linear),
        lambda: objectives.classification_metrics(linear),
        lambda: objectives.binary_classification_metrics(linear),
    ],
)
def test_equal_models_give_equal_objectives(build):
    """So that they do not trigger recompilation."""
    assert build() == build()
    assert hash(build()) == hash(build())


def test_different_objectives_of_one_model_differ():
    built = [
        objectives.cross_entropy(linear),
        objectives.binary_cross_entropy(linear),
        objectives.squared_error(linear),
        objectives.classification_metrics(linear),
        objectives.binary_classification_metrics(linear),
    ]
    assert len(set(built)) == len(built)


PARAMS = r"expected (a function of )?\(params, x\) -> outputs"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: objectives.cross_entropy(linen.Dense(3)), rf"model takes \(inputs\); {PARAMS}"),
        (
            lambda: objectives.squared_error(models.mlp((3,), (), 2).init),
            rf"takes \(key\); {PARAMS}",
        ),
        (lambda: objectives.huber(None), f"model is None; {PARAMS}"),
        (lambda: objectives.classification_metrics((linear, linear)), rf"model is \(.*; {PARAMS}"),
        (lambda: objectives.regression_metrics(lambda params: 0), rf"takes \(params\); {PARAMS}"),
        (
            lambda: objectives.cross_entropy(linear, ignore=0.5),
            "ignore is 0.5; expected an integer",
        ),
        (
            lambda: objectives.with_l2(None, 0.1),
            r"objective is None; expected a function of \(para",
        ),
    ],
)
def test_what_is_no_model_or_objective_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda w, x: (x @ w, x), r"model returns a tuple; expected an array \[B, \.\.\.\]"),
        (lambda w, x: None, "model returns a NoneType; expected an array"),
        (lambda w, x: (x @ w).round().astype(int), "outputs of dtype int32; expected a floating"),
        (
            lambda w, x: jax.lax.complex(x @ w, x @ w),
            "outputs of dtype complex64; expected a floating dtype",
        ),
        (lambda w, x: x @ w["kernel"], r"model fails for parameters \. float32\[3, 4\] and inputs"),
        (
            nnx.Linear(3, 4, rngs=nnx.Rngs(0)),
            r"\(TypeError: .*from_nnx make models of flax modules",
        ),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        objectives.cross_entropy,
        objectives.binary_cross_entropy,
        objectives.squared_error,
        lambda apply: lambda *x: objectives.regression_metrics(apply)(*x[:2]),
    ],
)
def test_outputs_that_are_no_floating_array_are_refused(make, apply, message):
    """Integers had gradients of 0, and complex numbers a raw error or no imaginary part."""
    examples = {"x": jnp.asarray(X), "y": jnp.zeros((6, 4))}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda w: make(apply)(w, examples, None), jnp.asarray(W))


def test_complex_targets_are_refused():
    examples = {"x": jnp.asarray(X), "y": jnp.ones((6, 4), complex)}
    for make in (objectives.squared_error, objectives.binary_cross_entropy):
        with pytest.raises(ValueError, match=r"\['y'\] has dtype complex64; expected real numbers"):
            make(linear)(jnp.asarray(W), examples, None)


def test_what_train_returns():
    model = models.Model(lambda key: W, linear, lambda params, x, key, weights: x @ params)
    examples = {"x": jnp.asarray(X), "y": jnp.asarray(LABELS)}
    with pytest.raises(
        ValueError, match=r"model\.train returns a \w+; expected a pair \(outputs, s"
    ):
        objectives.cross_entropy(model)(jnp.asarray(W), examples, jax.random.key(0))


@pytest.mark.parametrize("outputs", [(2,), (), (2, 3, 4), (4, 3)])
def test_outputs_without_classes_for_every_label_are_refused(outputs):
    examples = {"x": jnp.ones((2, 3)), "y": jnp.array([0, 1])}
    objective = objectives.cross_entropy(lambda params, x: jnp.zeros(outputs))
    with pytest.raises(ValueError, match=r"the outputs \[..., classes\] have shape"):
        objective(W, examples, None)
    with pytest.raises(ValueError, match=r"the outputs \[..., classes\] have shape"):
        objectives.check_labels(objective, W, examples)


def test_examples_without_labels_or_inputs_are_refused():
    model = models.softmax_regression(2, 3)
    params = model.init(jax.random.key(0))
    for examples, name in (({"x": jnp.ones((1, 2))}, "y"), ({"y": jnp.zeros(1, int)}, "x")):
        with pytest.raises(ValueError, match=f"expected a dict with '{name}'"):
            objectives.cross_entropy(model.apply)(params, examples, None)
