"""Ragged client data: construction, views, and refusals."""

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim import FederatedData, from_assignment, from_clients
from fedjax_sim.data.source import assigned


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_clients_come_back_as_given(sizes):
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 2)), "y": rng.integers(9, size=n)} for n in sizes]
    data = from_clients(clients)
    assert data.num_clients == len(sizes)
    assert data.num_examples == sum(sizes)
    assert data.offsets.dtype == np.int32
    np.testing.assert_array_equal(data.sizes, sizes)
    np.testing.assert_array_equal(np.bincount(data.owners(), minlength=len(sizes)), sizes)
    for i, expected in enumerate(clients):
        jax.tree.map(np.testing.assert_array_equal, data.client(i), expected)


@settings(max_examples=30)
@given(assignment=st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=5))
def test_assignment_deals_rows(assignment):
    """Rows may be left out and, if so said, repeated or shared by clients; order is kept."""
    examples = {"x": np.arange(14.0).reshape(7, 2), "y": np.arange(7, dtype=np.uint8)}
    parts = [np.array(part, int) for part in assignment]
    data = from_assignment(examples, parts, disjoint=False)
    for i, part in enumerate(assignment):
        np.testing.assert_array_equal(data.client(i)["y"], part)
        np.testing.assert_array_equal(data.client(i)["x"], examples["x"][part])
    assert data.examples["y"].dtype == np.uint8


def test_names_survive_the_device():
    data = from_clients([{"x": np.zeros((2, 1))}, {"x": np.ones((1, 1))}], ["ann", "bob"])
    moved = jax.device_put(data)
    assert isinstance(moved.examples["x"], jax.Array)
    assert moved.client_ids == ("ann", "bob")
    np.testing.assert_array_equal(moved.sizes, data.sizes)


def test_sizes_work_inside_jit():
    data = FederatedData({"x": np.zeros((5, 2))}, np.array([0, 2, 5]))
    np.testing.assert_array_equal(jax.jit(lambda data: data.sizes)(data), [2, 3])


def from_rows(rows, count=2, *names):
    return from_assignment({"x": np.zeros(count)}, [np.array(part) for part in rows], *names)


ONE = {"x": np.zeros(2)}
FRAME, TWICE = pd.DataFrame({"x": [1.0]}), r"client 0 and in client 1; expected .*, or disjoint=F"


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (from_clients, ([],), "clients is empty"),
        (from_clients, ({"ann": {"x": np.ones(2)}},), "clients is a dict; expected a list"),
        (from_clients, ([FRAME],), "examples is a DataFrame; expected a pytree of arrays"),
        (from_assignment, (FRAME, [[0]]), "examples is a DataFrame; expected a pytree of arrays"),
        (from_clients, ([{"x": np.float32(1)}],), r"clients\[0\] has a leaf that is one num"),
        (from_clients, ([{"x": [1.0]}, {"x": []}],), r"clients\[1\] has no arrays; expected some"),
        (from_clients, ([{"x": [2**40, 1]}],), r"examples\['x'\] has integers 1 .. 1099511627776"),
        (
            from_clients, ([{"x": np.ones(2)}, {"y": np.ones(2)}],),
            r"clients\[1\] has the structure .*'y'.*; expected .*'x'.*, as clients\[0\]",
        ),
        (
            from_clients, ([{"x": np.ones((2, 3))}, {"x": np.ones((2, 4))}],),
            r"clients\[1\]\['x'\] has examples of shape \[4\]; expected \[3\], as clients\[0\]",
        ),
        (
            from_clients, ([{"x": np.zeros(2)}, {"x": np.zeros(2), "y": np.zeros(3)}],),
            r"clients\[1\] has leaves of lengths \[2, 3\]",
        ),
        (from_clients, ([{"x": np.zeros(2)}], ["a", "b"]), "client_ids has 2 names"),
        (from_rows, ([],), "assignment is empty"),
        (from_rows, ([[0]], 2, ["a", "b"]), "client_ids has 2 names; expected 1"),
        (from_rows, ([[0, 2]],), r"assignment has rows 0 \.\. 2; expected 0 \.\. 1"),
        (from_rows, ([[-1]],), r"assignment has rows -1 \.\. -1; expected 0 \.\. 1"),
        (from_rows, ([[3, 2], [1, 2]], 4), f"assignment has row 2 in {TWICE}"),
        (from_rows, ([[0], [3, 3]], 4), "row 3 twice in client 1; expected every row at most once"),
        (assigned, ({"x": np.zeros(2)}, [[1], [1]]), f"assignment has row 1 in {TWICE}"),
        (from_clients, (None,), "clients is a NoneType; expected a list of one pytree per client"),
        (from_clients, (({"x": np.ones(2)} for _ in "ab"),), "clients is a generator; expected a"),
        (from_assignment, (ONE, None), "assignment is a NoneType; expected a list of o"),
        (from_assignment, (ONE, {"ann": [0]}), "assignment is a dict; expected a list"),
        (from_assignment, (ONE, np.array([0, 1])), r"assignment\[0\] is int64\[\];"),
    ],
)  # fmt: skip
def test_refuses(build, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(*arguments)


def test_clients_of_pixels_and_of_floats_are_refused():
    """Models divide uint8 by 255 and floats by nothing."""
    pixels = {"x": np.array([0, 255], np.uint8)}
    with pytest.raises(ValueError, match=r"clients\[1\]\['x'\] has dtype float32 .* uint8 in both"):
        from_clients([pixels, {"x": np.array([0.5], np.float32)}])
    from_clients([pixels, {"x": np.zeros(0)}])
