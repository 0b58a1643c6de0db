"""Examples that make a run fail: where the message points, and what passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.data.inspection import check_finite, check_numbers, largest_input

OFFSETS = np.array([0, 2, 2, 5])  # the second client has no examples


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "client", "example"), [(0, 0, 0), (2, 2, 0), (4, 2, 2)])
def test_the_message_names_leaf_client_and_example(row, client, example, value):
    x = np.zeros((5, 3, 2), np.float32)
    x[row, 1, 1] = value
    with pytest.raises(ValueError, match="expected finite numbers") as error:
        check_finite({"x": x, "y": np.arange(5)}, OFFSETS)
    text = f"examples['x'] has {x[row, 1, 1]} in example {example} of client {client} (row {row})"
    assert text in str(error.value)


def test_half_precision_is_checked():
    x = np.array([1.0, np.nan, 2.0, 3.0, 4.0]).astype(jnp.bfloat16)
    with pytest.raises(ValueError, match=r"nan in example 1 of client 0 \(row 1\)"):
        check_finite({"x": x}, OFFSETS)


def test_numbers_that_single_precision_does_not_have_are_refused():
    """They would be infinite on the device; in double precision they pass."""
    x = np.array([0.0, 0.0, 1.0, -1e39, 0.0])
    with pytest.raises(ValueError, match=r"has -1e\+39 in example 1 .* finite numbers of float32"):
        check_finite({"x": x}, OFFSETS)
    with jax.enable_x64(True):
        check_finite({"x": x}, OFFSETS)
    check_finite({"x": x / 10}, OFFSETS)


def test_extended_precision_is_refused():
    with pytest.raises(ValueError, match="expected at most double precision"):
        check_numbers({"x": np.ones(3, np.longdouble)})


def test_finite_values_whose_sum_is_infinite_pass():
    check_finite({"x": np.full((5, 9), 3e38, np.float32), "y": np.arange(5)}, OFFSETS)


MASKED = {"x": np.ma.masked_less([1.0, -99.0, -99.0], 0)}


@pytest.mark.parametrize(
    "build",
    [
        lambda: fs.from_clients([MASKED]),
        lambda: fs.from_assignment(MASKED, [np.arange(3)]),
        lambda: fs.shared_task(lambda w, b, key: b["x"], MASKED, 2, fs.full_batch(1)),
        lambda: fs.empirical_task(
            lambda w, b, key: b["x"], fs.FederatedData(MASKED, np.array([0, 3])), fs.full_batch(1)
        ),
    ],
)
def test_masked_values_are_refused(build):
    """NumPy keeps -99 below the mask, and JAX would train on it."""
    with pytest.raises(ValueError, match=r"examples\['x'\] has 2 masked values; expected none"):
        build()


def test_masked_arrays_without_masked_values_pass():
    data = fs.from_clients([{"x": np.ma.masked_less([1.0, 2.0], 0)}])
    np.testing.assert_array_equal(data.examples["x"], [1.0, 2.0])


def test_largest_input():
    assert largest_input({"y": np.arange(3)}) == ""
    assert largest_input({"x": np.array([-3.0, 1]), "z": np.ones(2)}).endswith("['x']| is 3")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array(["a", "b"]), "has dtype <U1; expected numbers"),
        (np.array([None, 1]), "has dtype object; expected numbers"),
        (jax.random.split(jax.random.key(0)), r"has dtype key<.*; expected numbers, such as the w"),
        ("ab", "is a str"),
        (np.array([2**40 + 3, 1]), "has integers .*; expected those of int32"),  # 3, 1 in JAX
        (np.array([2**32], np.uint64), "has integers .*; expected those of uint32"),
        *((np.zeros(2, dtype), "has dtype") for dtype in (">f4", ">i4", "M8[D]", "m8[s]")),
    ],
)
def test_values_that_jax_does_not_have_are_refused(x, message):
    with pytest.raises(ValueError, match=rf"examples\['x'\] {message}"):
        check_numbers({"x": x})
    data = fs.FederatedData({"x": x}, np.array([0, len(x)]))
    with pytest.raises(ValueError, match=message):
        fs.empirical_task(lambda w, batch, key: batch["x"], data, fs.full_batch(1))


def test_integers_of_64_bits_pass_in_double_precision():
    with jax.enable_x64(True):
        check_numbers({"x": np.array([2**40])})
