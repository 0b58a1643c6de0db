"""Scales and layouts that are named, not guessed; accuracies on data sets of scikit-learn."""

import functools
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from sklearn import datasets as sklearn_datasets

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_arrays, load, read_table

RNG = np.random.default_rng(0)
WINE: Any = sklearn_datasets.load_wine()
INK = load("digits").train["x"][..., 0]  # uint8 [N, 8, 8], 0 .. 255
LABELS = load("digits").train["y"]


def accuracy(data, rounds=30, lr=0.3):
    """Test accuracy of softmax regression after full gradient steps of four clients."""
    model = fs.models.softmax_regression(data.train["x"].shape[1:], data.num_classes)
    rows = np.array_split(np.random.default_rng(0).permutation(len(data.train["y"])), 4)
    task = fs.empirical_task(
        fs.objectives.cross_entropy(model), fs.from_assignment(data.train, rows), fs.full_batch(5)
    )
    metrics = fs.objectives.classification_metrics(model)
    setup = fs.Setup(
        task,
        fs.timelines.full(rounds, 4, task.num_steps),
        model.init(jax.random.key(0)),
        fs.evaluation.evaluator(metrics, data.test),
        rounds,
    )
    result = fs.simulate(fs.fedavg(lr), setup, jax.random.key(0))
    assert result.history is not None
    return float(result.history.metrics["accuracy"][-1])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool, np.float64])
def test_flags_are_numbers_of_any_type(dtype):
    """Not pixels as uint8 alone."""
    flags = (INK.reshape(-1, 64) > 127).astype(dtype)
    scale = "none" if dtype == np.int8 else None  # integers are token ids otherwise
    data = from_arrays(flags, LABELS, scale=scale)
    assert data.train["x"].dtype == np.float32
    assert (data.train["x"].max(), data.scaling) == (1, None)


@pytest.mark.slow
def test_training_with_flags_of_bytes():
    """As float32: 0.902; divided by 255, as pixels: 0.139."""
    assert accuracy(from_arrays((INK.reshape(-1, 64) > 127).astype(np.uint8), LABELS), 15) > 0.88


def test_what_bytes_are_is_named_where_it_could_be_both():
    flat = INK.reshape(-1, 64)
    with pytest.raises(DataError, match=r"uint8\[1438, 64\] up to 255; expected scale='unit' for"):
        from_arrays(flat, LABELS)
    with pytest.raises(DataError, match=r"uint8\[1438, 8, 8\] up to 1; expected scale='unit' for"):
        from_arrays(np.minimum(INK, 1), LABELS)
    images = from_arrays(INK, LABELS)  # stay bytes, in a quarter of the memory
    assert (images.train["x"].dtype, images.train["x"].shape[1:]) == (np.uint8, (8, 8, 1))
    unit = from_arrays(flat, LABELS, scale="unit").train["x"]
    np.testing.assert_array_equal(unit, images.train["x"].reshape(-1, 64).astype(np.float32) / 255)
    raw = from_arrays(flat, LABELS, scale="none").train["x"]
    assert (raw.dtype, raw.max()) == (np.float32, 255)
    assert from_arrays(INK, LABELS, scale="none").train["x"].shape[1:] == (8, 8)


@functools.cache
def pixels_in_columns():
    """Rows as in the CSV of MNIST at Kaggle: label, pixel0, ..., pixel63."""
    header = "label," + ",".join(f"pixel{i}" for i in range(64))
    flat = INK.reshape(-1, 64)
    return "\n".join(
        [header, *(f"{y}," + ",".join(map(str, x)) for x, y in zip(flat, LABELS, strict=True))]
    )


def test_pixels_in_columns(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(pixels_in_columns())
    with pytest.warns(UserWarning, match=r"\[64\] integers 0 .. 255, as pixels are"):
        read_table(path)
    data = read_table(path, scale="unit")
    expected = from_arrays(INK.reshape(-1, 64), LABELS, scale="unit")
    np.testing.assert_array_equal(data.train["x"], expected.train["x"])
    np.testing.assert_array_equal(data.test["y"], expected.test["y"])


def test_pixels_as_floats():
    """As of Keras's images after astype("float32")."""
    images = INK.reshape(-1, 8, 8).astype(np.float32)
    with pytest.warns(UserWarning, match=r"\[8, 8\] integers 0 .. 255, as pixels are"):
        from_arrays(images, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_arrays(images / 255, LABELS)
        from_arrays(images, LABELS, scale="none")


def test_standardised_columns():
    """Statistics are those of the training rows, in double precision."""
    x = WINE.data.copy()
    x[:, 3] = 7.0  # constant
    data = from_arrays(x, WINE.target, scale="standardise")
    raw = from_arrays(x, WINE.target, scale="none")
    train = x[[np.flatnonzero((x.astype(np.float32) == row).all(1))[0] for row in raw.train["x"]]]
    mean, std = train.mean(0), train.std(0)
    std[3] = 1
    np.testing.assert_allclose(data.train["x"], (train - mean) / std, rtol=1e-5, atol=1e-5)
    assert data.scaling is not None
    np.testing.assert_array_equal(data.scaling(train), data.train["x"])
    np.testing.assert_allclose(
        data.test["x"].mean(0), data.scaling(raw.test["x"]).mean(0), atol=1e-5
    )
    assert (data.train["x"][:, 3] == 0).all()


@pytest.mark.slow
def test_wine_as_it_is_and_standardised():
    with pytest.warns(UserWarning, match="deviations of columns 12 and 7 .*scale='standardise'"):
        raw = from_arrays(WINE.data, WINE.target)
    assert accuracy(raw, 10, 0.01) < 0.7
    assert accuracy(from_arrays(WINE.data, WINE.target, scale="standardise"), 10, 0.1) > 0.97


def test_large_offsets_are_subtracted_before_they_are_rounded():
    """A float32 near 1.7e9, a time in seconds, has a step of 128."""
    times = 1.7e9 + np.arange(10.0)
    table = {"time": times, "y": np.arange(10) % 2}
    data = fs.from_table(table, test=table, feature_columns=["time"], scale="standardise")
    wanted = (np.arange(10.0) - 4.5) / np.arange(10.0).std()
    np.testing.assert_allclose(data.train["x"][:, 0], wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 3, 128, 9), (6, 1, 50, 6), (6, 4, 10, 10)])
def test_windows_of_signals_are_no_images(shape):
    x = RNG.normal(size=shape)
    assert from_arrays(x, [0, 1] * 3).train["x"].shape[1:] == shape[1:]
    images = from_arrays(x, [0, 1] * 3, layout="channels_first", test=(x, [0, 1] * 3))
    np.testing.assert_array_equal(images.test["x"], np.moveaxis(x, 1, 3).astype(np.float32))


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (WINE.data, {"scale": "unit"}, "scale is 'unit', but examples are in 0.13 .. 1[0-9]+;"),
        (WINE.data, {"scale": "minmax"}, "'minmax'; expected one of none, unit, standardise"),
        (WINE.data, {"layout": "nchw"}, "'nchw'; expected one of as_given, channels_first, chan"),
        (WINE.data, {"layout": "channels_first"}, r"shape \(178, 13\); expected \[N, C, H, W\]"),
        (np.full((178, 3, 9, 3), 9, np.uint8), {}, "or layout='channels_first', 'channels_last'"),
    ],
)
def test_scales_and_layouts_that_do_not_fit(x, options, message):
    with pytest.raises(DataError, match=message):
        from_arrays(x, WINE.target, **options)


def test_a_layout_decides_where_both_sides_could_be_channels():
    x: Any = RNG.integers(2, 255, (6, 3, 9, 4)).astype(np.uint8)
    y = [0, 1] * 3
    wanted_shapes: dict[Any, Any] = {"channels_first": (9, 4, 3), "channels_last": (3, 9, 4)}
    for layout, wanted in wanted_shapes.items():
        assert from_arrays(x, y, layout=layout).train["x"].shape[1:] == wanted
