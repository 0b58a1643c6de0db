"""Augmentation against NumPy loops: which draws there can be, how often each comes, and when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim import models, objectives
from fedjax_sim.data.augmentation import (
    CIFAR_MEAN,
    CIFAR_STD,
    crop_and_flip,
    normalize,
    normalized,
    random_crop,
    random_flip,
    transformed,
)

KEY = jax.random.key(0)


def noise(*shape, seed=0):
    """Raw pixels without a 0, so that the border differs from the image."""
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


def crops(image, padding):
    """All crops of one image by offset, one assignment a pixel."""
    height, width, channels = image.shape
    found = {}
    for i in range(2 * padding + 1):
        for j in range(2 * padding + 1):
            out = np.zeros((height, width, channels), image.dtype)
            for r in range(height):
                for c in range(width):
                    y, x = r + i - padding, c + j - padding
                    if 0 <= y < height and 0 <= x < width:
                        out[r, c] = image[y, x]
            found[i, j] = out
    return found


def offset_of(out, image, padding):
    """The offset whose crop an image is; fails if it is none."""
    for offset, crop in crops(image, padding).items():
        if np.array_equal(out, crop):
            return offset
    raise AssertionError("not a crop of the image")


@pytest.mark.slow
@settings(max_examples=20)  # a program each
@given(
    size=st.integers(1, 4),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    channels=st.integers(1, 3),
    padding=st.integers(0, 3),
    dtype=st.sampled_from([np.uint8, np.float32, np.float16, jnp.bfloat16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_outputs_are_crops_and_mirror_images(size, height, width, channels, padding, dtype, seed):
    images = noise(size, height, width, channels, seed=seed).astype(dtype)
    both = compiled(lambda x, key: (random_crop(x, key, padding), random_flip(x, key)))
    cropped, flipped = both(images, jax.random.key(seed))
    assert cropped.dtype == flipped.dtype == dtype
    assert cropped.shape == flipped.shape == images.shape
    for image, crop, flip in zip(images, np.asarray(cropped), np.asarray(flipped), strict=True):
        offset_of(crop, image, padding)
        mirror = np.stack([image[:, width - 1 - c] for c in range(width)], axis=1)
        assert np.array_equal(flip, image) or np.array_equal(flip, mirror)


def positions(count, side):
    """Images that say at each pixel which row and column it comes from, counted from 1."""
    rows, columns = np.meshgrid(np.arange(1, side + 1), np.arange(1, side + 1), indexing="ij")
    return np.broadcast_to(np.stack([rows, columns], -1).astype(np.uint8), (count, side, side, 2))


def assert_uniform(cells, num_cells):
    """Pearson's test; a correct sampler fails it for one key in 10,000."""
    counts = np.bincount(cells, minlength=num_cells)
    expected = len(cells) / num_cells
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) == num_cells
    assert statistic < chi2.ppf(1 - 1e-4, num_cells - 1)


def test_offsets_and_flips_are_uniform_and_independent():
    # 9 x 9 offsets x 2; in 11 x 11 the middle pixel and its neighbours never reach the border.
    images = jnp.asarray(positions(81 * 2 * 60, 11))
    out = np.asarray(jax.jit(crop_and_flip)(images, KEY)).astype(np.int64)
    rows, columns = out[:, 5, 5, 0] - 2, out[:, 5, 5, 1] - 2  # the offsets themselves
    flipped = out[:, 5, 4, 1] > out[:, 5, 6, 1]
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 8, 0, 8)
    assert_uniform((rows * 9 + columns) * 2 + flipped, 162)
    # Neighbours in the batch are independent: pairs of their flips and row offsets.
    assert_uniform((rows[0::2] * 9 + rows[1::2]) * 4 + flipped[0::2] * 2 + flipped[1::2], 324)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [random_crop, random_flip, crop_and_flip])
def test_draws_depend_on_key_and_position_only(transform):
    images = jnp.asarray(noise(12, 6, 5, 3))
    out = transform(images, KEY)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(transform(images, KEY), out)
    batched = jax.vmap(transform)(images[None], KEY[None])
    np.testing.assert_array_equal(batched[0], out)
    assert not np.array_equal(transform(images, jax.random.key(1)), out)
    # A shorter batch, and other images in the other places.
    np.testing.assert_array_equal(transform(images[:5], KEY), out[:5])
    others = images.at[:4].set(0)
    np.testing.assert_array_equal(transform(others, KEY)[4:], out[4:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalize(x64, dtype):
    pixels = noise(2, 3, 4, 3)
    expected = (pixels / 255 - np.array(CIFAR_MEAN)) / np.array(CIFAR_STD)
    # Numbers below 3 from differences of numbers below 255 / (255 std) = 5: a few roundings of 5.
    tolerance = 20 * np.finfo(dtype).eps
    for images in (jnp.asarray(pixels), jnp.asarray((pixels / 255).astype(dtype))):
        out = normalize(images, CIFAR_MEAN, CIFAR_STD, dtype)
        assert out.dtype == dtype
        np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
    out = normalize(jnp.asarray(pixels.astype(dtype)), 0.5, 2.0)
    assert out.dtype == dtype  # floating images keep theirs
    np.testing.assert_allclose(out, (pixels - 0.5) / 2, rtol=2 * np.finfo(dtype).eps)
    assert normalize(jnp.asarray(pixels), 0.5, 2.0).dtype == jnp.result_type(float)
    assert normalize(jnp.zeros((1, 1), jnp.bfloat16), 0.5, 0.5).dtype == jnp.bfloat16


def seen_by_model(images, key):
    """The inputs of the model in training, through an objective of the library."""
    apply = normalized(lambda params, x: x, CIFAR_MEAN, CIFAR_STD)
    seen = []

    def objective(params, examples, key):
        seen.append(apply(params, objectives.as_float(examples["x"])))
        return jnp.zeros(len(examples["x"]))

    transformed(objective, crop_and_flip)(jnp.zeros(1), {"x": images}, key)
    return np.asarray(seen[0])


@pytest.mark.slow
def test_order_is_crop_flip_scale_normalise():
    """As a training loop in NumPy does it: the border is black, not the mean colour."""
    images = noise(6, 5, 5, 3)
    found = seen_by_model(jnp.asarray(images), KEY)
    black = -np.array(CIFAR_MEAN) / np.array(CIFAR_STD)
    borders = 0
    for image, out in zip(images, found, strict=True):
        candidates = []
        for crop in crops(image, 4).values():
            for raw in (crop, crop[:, ::-1]):
                scaled = raw.astype(np.float64) / 255
                candidates.append((scaled - np.array(CIFAR_MEAN)) / np.array(CIFAR_STD))
        # Single precision of numbers below 3; other crops differ by a grey level, 0.019, or more.
        assert min(np.abs(out - c).max() for c in candidates) < 1e-5
        borders += (np.abs(out - black) < 1e-5).all(axis=-1).sum()
    assert borders > 0


def image_task(objective, batches=None):
    count = 20
    labels = np.random.default_rng(1).integers(0, 4, count)
    examples = {"x": noise(count, 8, 8, 3), "y": labels.astype(np.int32)}
    data = fs.FederatedData(examples, np.array([0, count // 2, count]))
    return fs.empirical_task(objective, data, batches or fs.epochs(1, 5)), examples


def linear_objective():
    """The loss is linear in the parameters, so its gradient is the mean image that it saw."""

    def objective(params, examples, key):
        x = objectives.as_float(examples["x"], params.dtype)
        return (x * params).reshape(len(x), -1).sum(axis=1)

    return objective


@compiled
def gradient(task, key, params, step=0):
    return task.oracle(jnp.array(1), key, 2).grad(params, step)


def test_both_gradients_of_a_step_see_the_same_images():
    # The same examples at every step, so that only the transform makes a difference.
    task, _ = image_task(transformed(linear_objective(), crop_and_flip), fs.full_batch(2))
    plain, _ = image_task(linear_objective(), fs.full_batch(2))
    zeros, ones = jnp.zeros((8, 8, 3)), jnp.ones((8, 8, 3))
    first = gradient(task, KEY, zeros)
    np.testing.assert_array_equal(gradient(task, KEY, ones), first)
    # Transformed at all, and differently at the next step and the next visit.
    for other in (
        gradient(plain, KEY, zeros),
        gradient(task, KEY, zeros, 1),
        gradient(task, jax.random.key(1), zeros),
    ):
        assert not np.allclose(first, other)


@pytest.mark.parametrize("statistics", [False, True])
def test_labels_without_an_output_are_refused_behind_a_transform(statistics):
    layers = nnx.BatchNorm if statistics else nnx.LayerNorm
    model = models.from_nnx(
        lambda rngs: nnx.Sequential(
            layers(3, rngs=rngs), lambda x: x.reshape(len(x), -1), nnx.Linear(192, 3, rngs=rngs)
        )
    )
    task, _ = image_task(transformed(objectives.cross_entropy(model), crop_and_flip))
    setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), model.init(KEY))
    algorithm = fs.fedavg(0.1)
    if statistics:
        algorithm = fs.running_statistics(algorithm, model.statistics)
    with pytest.raises(ValueError, match=r"labels 0 .. 3; expected 0 .. 2"):
        fs.run(algorithm, setup, KEY)


def test_normalised_functions_keep_the_marks_of_models():
    dropout = models.from_nnx(lambda rngs: nnx.Dropout(0.5, rngs=rngs))
    with pytest.raises(ValueError, match="expected the model itself"):
        objectives.cross_entropy(normalized(dropout.apply, 0.5, 0.5))
    adapted = models.vit((4, 4, 1), 3, patch_size=2, width=2, depth=1, heads=1)
    assert normalized(adapted, 0.5, 0.5).apply.takes_adapters
    assert models.in_precision(adapted, jnp.bfloat16).apply.takes_adapters


@pytest.mark.slow
def test_training_and_evaluation_normalise_alike():
    """With a transform that does nothing the objective is the evaluator's loss."""
    model = models.softmax_regression((8, 8, 3), 4)
    apply = normalized(model.apply, CIFAR_MEAN, CIFAR_STD)
    objective = transformed(objectives.cross_entropy(apply), lambda images, key: images)
    _, examples = image_task(objective)
    examples = jax.tree.map(jnp.asarray, examples)
    shapes = jax.tree.map(lambda x: jax.random.normal(KEY, x.shape), model.init(KEY))
    losses = objective(shapes, examples, KEY)
    metrics = objectives.classification_metrics(apply)(shapes, examples)
    np.testing.assert_array_equal(losses, metrics["loss"])
    x = (np.asarray(examples["x"]) / 255 - np.array(CIFAR_MEAN)) / np.array(CIFAR_STD)
    logits = np.asarray(model.apply(shapes, jnp.asarray(x, jnp.float32)), np.float64)
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(20), np.asarray(examples["y"])]
    # Logits near 20 from 192 products each, in single precision: errors of some 1e-5.
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-3)


def test_objective_gets_the_rest_of_the_examples_and_a_key_of_its_own():
    seen = {}

    def objective(params, examples, key):
        seen.update(examples, key=key)
        return jnp.zeros(2)

    def transform(images, key):
        seen["transform_key"] = key
        return images + 1

    examples = {"x": jnp.ones((2, 1)), "y": jnp.arange(2)}
    transformed(objective, transform)(None, examples, KEY)
    assert seen["x"].tolist() == [[2.0], [2.0]]
    assert seen["y"].tolist() == [0, 1]
    assert examples["x"].tolist() == [[1.0], [1.0]]
    data = [jax.random.key_data(k).tolist() for k in (KEY, seen["key"], seen["transform_key"])]
    assert len({tuple(words) for words in data}) == 3


IMAGES = jnp.zeros((2, 4, 4, 3), jnp.uint8)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: random_crop(IMAGES[0], KEY), r"images has shape \(4, 4, 3\); expected \[B, H"),
        (lambda: random_flip(IMAGES[0], KEY), r"images has shape \(4, 4, 3\); expected \[B, H"),
        (lambda: random_crop(IMAGES.astype(jnp.int32), KEY), "dtype int32; expected uint8 or"),
        (lambda: random_flip(IMAGES.astype(jnp.int8), KEY), "dtype int8; expected uint8 or"),
        (lambda: random_crop(IMAGES, KEY, -1), "padding is -1; expected at least 0"),
        (lambda: normalize(IMAGES, (0.5, 0.5), 1.0), "mean has 2 numbers; expected one, or 3"),
        (lambda: normalize(IMAGES, 0.5, (1.0, 1.0)), "std has 2 numbers; expected one, or 3"),
        (lambda: normalize(IMAGES, 0.5, (1.0, 0.0, 1.0)), r"std is \(1.0, 0.0, 1.0\); expected po"),
        (lambda: normalize(IMAGES, 0.5, float("nan")), "std is nan; expected positive"),
        (lambda: normalize(IMAGES.astype(jnp.int32), 0.5, 1.0), "dtype int32; expected uint8"),
        (lambda: normalized(lambda p, x: x, 0.5, -1.0), "std is -1.0; expected positive"),
        (
            lambda: transformed(linear_objective(), crop_and_flip)(0.0, {"image": IMAGES}, KEY),
            r"examples is \['image'\]; expected a dict with images under 'x'",
        ),
        (
            lambda: transformed(linear_objective(), crop_and_flip)(0.0, IMAGES, KEY),
            "expected a dict with images under 'x'",
        ),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
