"""Feature shift: rotations and noise per client, drawn once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.data import feature_shift
from fedjax_sim.data.federated import FederatedData


def images(num_clients, shape=(6, 6, 2), dtype=np.uint8, size=5):
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(num_clients * size, *shape)).astype(dtype)
    examples = {"x": x, "y": np.arange(len(x))}
    return FederatedData(examples, np.arange(num_clients + 1) * size)


@given(turns=st.lists(st.integers(-5, 9), min_size=1, max_size=6), channels=st.booleans())
def test_a_pixel_turns_as_often_as_its_client(turns, channels):
    data = images(len(turns), (6, 6, 2) if channels else (6, 6))
    result = feature_shift.rotate(data, turns)
    for client, number in enumerate(turns):
        x, shifted = data.client(client)["x"], result.client(client)["x"]
        for _ in range(number % 4):  # counter-clockwise: the last column becomes the first row
            x = np.moveaxis(x, 2, 1)[:, ::-1]
        np.testing.assert_array_equal(shifted, x)
    np.testing.assert_array_equal(result.examples["y"], data.examples["y"])
    assert result.examples["x"].dtype == np.uint8


def test_half_turns_of_images_that_are_not_square():
    data = images(2, (3, 5))
    result = feature_shift.rotate(data, [0, 2])
    np.testing.assert_array_equal(result.client(1)["x"], data.client(1)["x"][:, ::-1, ::-1])


def test_noise_has_the_deviation_of_its_client_and_is_drawn_once():
    data = images(3, (20, 20), size=30)
    std = np.array([0.0, 0.1, 0.7])
    noisy = feature_shift.add_noise(data, std, seed=3)
    assert noisy.examples["x"].dtype == np.float32
    noise = noisy.examples["x"] - data.examples["x"].astype(np.float32) / 255
    measured = noise.reshape(3, -1).std(axis=1)
    np.testing.assert_allclose(measured, std, rtol=0.03, atol=1e-6)  # 12,000 values each
    np.testing.assert_allclose(noise.reshape(3, -1).mean(axis=1), 0, atol=0.03)
    again = feature_shift.add_noise(data, std, seed=3)
    np.testing.assert_array_equal(noisy.examples["x"], again.examples["x"])
    other = feature_shift.add_noise(data, std, seed=[3, 1])
    assert (noisy.client(2)["x"] != other.client(2)["x"]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_noise_keeps_precision(dtype):
    data = images(2, (3,), dtype)
    result = feature_shift.add_noise(data, [0.0, 0.0], seed=0).examples["x"]
    assert result.dtype == (np.float64 if dtype == np.float64 else np.float32)
    np.testing.assert_array_equal(result, data.examples["x"])


def test_levels_of_the_paper_and_of_its_program():
    np.testing.assert_allclose(feature_shift.noise_levels(0.1, 10) ** 2, 0.01 * np.arange(1, 11))
    levels = feature_shift.noise_levels(0.1, 11, "deviation")
    np.testing.assert_allclose(levels, 0.01 * np.arange(11))
    assert feature_shift.noise_levels(0.1, 1, "deviation").tolist() == [0.0]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: feature_shift.rotate(images(2), [1]), r"turns has shape \(1,\).*integers \[2\]"),
        (lambda: feature_shift.rotate(images(2), [0.5, 1]), "dtype float64"),
        (lambda: feature_shift.rotate(images(2, (3,)), [0, 1]), r"'x' has shape \(10, 3\)"),
        (lambda: feature_shift.rotate(images(2, (3, 5)), [0, 1]), "images of 3 x 5; expected squ"),
        (lambda: feature_shift.rotate(images(2), [0, 1], "z"), "leaf is 'z'.*'x', 'y'"),
        (lambda: feature_shift.add_noise(images(2), [0.1], 0), "expected 2 numbers of at least 0"),
        (lambda: feature_shift.add_noise(images(2), [0.1, -1], 0), "numbers of at least 0"),
        (lambda: feature_shift.add_noise(images(2), [0, 1], 0, "y"), "'y' has dtype int64"),
        (lambda: feature_shift.noise_levels(-1.0, 3), "sigma is -1.0"),
        (lambda: feature_shift.noise_levels(1.0, 0), "num_clients is 0"),
        (lambda: feature_shift.noise_levels(1.0, 3, "text"), "rule is 'text'"),  # type: ignore
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
