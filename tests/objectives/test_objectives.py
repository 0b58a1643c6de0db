"""Objectives and metrics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from fedjax_sim import models, objectives
from fedjax_sim.engine import evaluator

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


HALVES = pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])


@HALVES
def test_losses_of_half_precision_are_those_of_their_outputs(dtype):
    """Log-sum-exp minus a logit of its size was 0, and a sum over 8,192 positions infinite."""
    logits = jnp.array([[20.0, 15.0, 10.0]], dtype)
    expected = np.log1p(np.exp(-5.0) + np.exp(-10.0))
    objective = objectives.cross_entropy(linear)
    losses = objective(jnp.eye(3, dtype=dtype), {"x": logits, "y": jnp.array([0])}, None)
    assert losses.dtype == dtype
    rounding = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.float64(losses), [expected], rtol=rounding)
    objective = objectives.binary_cross_entropy(lambda params, x: x * params)
    examples = {"x": jnp.array([6.0, -6.0]), "y": jnp.array([1, 0])}
    losses = objective(jnp.array(1, dtype), examples, None)
    assert losses.dtype == dtype
    np.testing.assert_allclose(np.float64(losses), np.log1p(np.exp(-6.0)), rtol=rounding)
    positions = jnp.broadcast_to(logits, (1, 8192, 3))
    examples = {"x": positions, "y": jnp.arange(8192)[None] % 3 - 1}
    masked = objectives.cross_entropy(linear, ignore=-1)
    losses = masked(20 * jnp.eye(3, dtype=dtype), examples, None)
    np.testing.assert_allclose(np.float64(losses), [50.0], rtol=rounding)  # of labels 0 and 1


@HALVES
def test_accuracy_of_a_sequence_in_half_precision_is_a_ratio_of_counts(dtype):
    examples = {"x": jnp.eye(2, dtype=dtype)[jnp.arange(4097) % 2][None]}
    examples["y"] = jnp.where(jnp.arange(4097) < 4096, jnp.arange(4097) % 2, 1)[None]
    metrics = objectives.classification_metrics(linear, ignore=-1)(
        jnp.eye(2, dtype=dtype), examples
    )
    np.testing.assert_allclose(metrics["accuracy"], 4096 / 4097, rtol=1e-6)


@HALVES
def test_metrics_of_regression_in_half_precision(dtype):
    """The squares of errors above 256 are infinite in float16, and targets had lost digits."""
    x = jnp.linspace(896, 1152, 33)  # exact in bfloat16
    y = x + 300.25 * jnp.where(jnp.arange(33) % 2, 1, -1)
    metrics = objectives.regression_metrics(lambda params, x: x * params)
    result = evaluator(metrics, {"x": x, "y": y})(jnp.array(1, dtype))
    np.testing.assert_allclose(result["rmse"], 300.25, rtol=1e-6)
    expected = 1 - 300.25**2 / np.var(np.asarray(y, np.float64))
    np.testing.assert_allclose(result["r2"], expected, rtol=1e-5)


@pytest.mark.parametrize("largest", [20.0, 1000.0, 1e6])
def test_small_losses_beside_large_logits(largest):
    """The difference of two numbers of the size of the logits had their rounding error."""
    logits = jnp.array([[largest, largest - 2]])
    examples = {"x": logits, "y": jnp.array([0])}
    losses = objectives.cross_entropy(linear)(jnp.eye(2), examples, None)
    np.testing.assert_allclose(losses, [np.log1p(np.exp(-2.0))], rtol=1e-6)
    examples = {"x": jnp.array([[14.0], [-14.0]]), "y": jnp.array([1, 0])}
    losses = objectives.binary_cross_entropy(linear)(jnp.ones(1), examples, None)
    np.testing.assert_allclose(losses, np.log1p(np.exp(-14.0)), rtol=1e-6)


def test_binary_cross_entropy_of_probabilities():
    z, y = (x.ravel() for x in np.meshgrid([-3.0, -0.5, 0.0, 2.0], [0.0, 0.25, 0.5, 0.75, 1.0]))
    examples = {"x": jnp.asarray(z, jnp.float32), "y": jnp.asarray(y, jnp.float32)}

    def losses(w):
        return objectives.binary_cross_entropy(lambda w, x: w * x)(w, examples, None)

    probability = 1 / (1 + np.exp(-z))
    one = jnp.array(1.0)
    np.testing.assert_allclose(losses(one), np.logaddexp(0, z) - y * z, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jacobian(losses)(one), (probability - y) * z, rtol=1e-5, atol=1e-6
    )
    curvature = jax.jacobian(jax.jacobian(losses))(one)
    np.testing.assert_allclose(curvature, probability * (1 - probability) * z**2, rtol=1e-5)


def test_an_ignored_label_is_none_of_the_bytes():
    """The label 255 of unsigned bytes was taken for -1, and its positions were left out."""
    logits = jnp.zeros((1, 3, 256)).at[:, :, 255].set(2.0)
    examples = {"x": logits, "y": jnp.array([[255, 3, 255]], jnp.uint8)}
    losses = objectives.cross_entropy(lambda params, x: x, ignore=-1)(None, examples, None)
    expected = np.log(255 + np.exp(2.0)) - 4 / 3
    np.testing.assert_allclose(losses, [expected], rtol=1e-6)
    metrics = objectives.classification_metrics(lambda params, x: x, ignore=-1)(None, examples)
    np.testing.assert_allclose(metrics["accuracy"], [2 / 3], rtol=1e-6)


def test_binary_cross_entropy_of_infinite_logits():
    """0 times infinity made it NaN."""
    objective = objectives.binary_cross_entropy(lambda params, x: x)
    z = jnp.array([np.inf, -np.inf, np.inf, -np.inf])

    def losses(z):
        return objective(None, {"x": z, "y": jnp.array([1, 0, 0, 1])}, None)

    np.testing.assert_array_equal(losses(z), [0, 0, np.inf, np.inf])
    gradients = jax.vmap(jax.grad(lambda i, z: losses(z)[i], 1), (0, None))(jnp.arange(4), z)
    np.testing.assert_array_equal(gradients, np.diag([0, 0, 1, -1]))


def test_with_l2_of_a_model_in_half_precision():
    """The sum of 100,000 squares is infinite in float16, a part of it by the weight is not."""
    params = {"w": jnp.ones(100_000, jnp.float16)}
    objective = objectives.with_l2(lambda params, examples, key: params["w"][:1], 1e-4)
    np.testing.assert_array_equal(objective(params, {}, None), [6.0])
    gradient = jax.grad(lambda params: objective(params, {}, None).sum())(params)
    np.testing.assert_allclose(np.float64(gradient["w"][1:]), 1e-4, rtol=1e-3)


@pytest.mark.usefixtures("allow_nans")
def test_a_model_of_nan_is_right_nowhere():
    """It was right for all examples of class 0, three of four in some data."""
    w, examples = jnp.full((3, 4), jnp.nan), {"x": jnp.asarray(X), "y": jnp.asarray(LABELS)}
    metrics = objectives.classification_metrics(linear)(w, examples)
    assert not metrics["accuracy"].any()
    metrics = objectives.binary_classification_metrics(linear)(w[:, 0], examples)
    assert not metrics["accuracy"].any()


def test_labels_of_nan_are_refused():
    examples = {"x": X, "y": np.array([np.nan, 1, 0, 0, 1, 1], np.float32)}
    objective = objectives.binary_cross_entropy(linear)
    with pytest.raises(ValueError, match=r"labels nan \.\. nan; expected 0 \.\. 1"):
        objectives.check_labels(objective, jnp.asarray(W[:, 0]), examples)


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
            lambda: objectives.cross_entropy(linear, ignore=2**31),
            "ignore is 2147483648; expected at most 2147483647",
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
