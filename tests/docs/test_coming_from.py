"""The tables of docs/coming_from: every number of ours is the value of the call beside it.

Theirs are outputs of experiments/porting/theirs/*.sh, which install the other packages.
"""

import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_sim import Work
from fedjax_sim.local import rate

FOLDER = pathlib.Path(__file__).parent.parent.parent / "docs" / "coming_from"
PAGES = runpy.run_path(str(FOLDER / "pages.py"))
ROWS = PAGES["rows"]()
SIMULATORS = sorted({row["simulator"] for row in ROWS})
SLOW = {"dirichlet", "unbalanced", "qsgd"}  # many random draws
# Pages show five digits; float32 errs by less.
SHOWN = {"rtol": 5e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def parts():
    return runpy.run_path(str(FOLDER / "parts.py"))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            marks=[pytest.mark.slow] if row["id"] in SLOW else [],
            id=f"{row['simulator']}-{row['id']}",
        )
        for row in ROWS
    ],
)
def test_row(row, parts):
    np.testing.assert_allclose(eval(row["call"], parts), row["ours"], **SHOWN)
    if "get" in row:
        # Means over other random draws have no common digits, but one law.
        tolerance = {"rtol": 0, "atol": row["within"]} if "within" in row else SHOWN
        np.testing.assert_allclose(eval(row["get"], parts), row["theirs"], **tolerance)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_page_has_the_present_table(simulator):
    text = (FOLDER / f"{simulator}.md").read_text()
    assert PAGES["table"](simulator) in text


def test_rows_are_named_once_and_say_where_they_differ():
    names = [(row["simulator"], row["id"]) for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert row["theirs"] == row["ours"] or "get" in row or "note" in row, row["id"]


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_script_fills_theirs(simulator):
    script = FOLDER.parent.parent / "experiments" / "porting" / "theirs" / f"{simulator}.sh"
    text = script.read_text()
    for row in ROWS:
        if row["simulator"] == simulator:
            assert (f'"{row["id"]}":' in text) != bool(row.get("read")), row["id"]


LENGTHS = range(1, 200)
COUNTS = np.array(LENGTHS)[:, None] * np.arange(1, 51)  # the first fifty steps of each staircase


def integers(length):
    return lambda count: 0.5 ** (count // length).astype(float)


def boundaries(length):
    return optax.piecewise_constant_schedule(1.0, {length * k: 0.5 for k in range(1, 51)})


def staircase(length):
    return optax.exponential_decay(1.0, length, 0.5, staircase=True)


@pytest.mark.slow  # a program with a constant per length
@jax.numpy_dtype_promotion("standard")  # optax's schedules mix them
@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        pytest.param(integers, LENGTHS, id="integers"),
        # Fifty comparisons per schedule: the lengths at which the quotient misses are enough.
        pytest.param(boundaries, (41, 47, 55, 61, 82, 83, 94, 97), id="boundaries"),
    ],
)
def test_steps_of_these_schedules_are_counted_exactly(schedule, lengths):
    @jax.jit
    def rates(counts):
        def at(length):
            def one(count):
                return rate(schedule(length), Work(count, 0, 1, 1, 0, None, 1))

            return jax.vmap(one)(counts[length - 1])

        return jnp.stack([at(length) for length in lengths])

    for counts, steps in ((COUNTS, np.arange(1, 51)), (COUNTS - 1, np.arange(50))):
        expected = np.broadcast_to(np.float32(0.5) ** steps, (len(lengths), 50))
        np.testing.assert_array_equal(rates(jnp.asarray(counts, jnp.int32)), expected)


@jax.numpy_dtype_promotion("standard")
def test_a_staircase_of_optax_misses_the_steps_that_the_table_says():
    # In float32 the quotient is a product with the rounded reciprocal of the length.
    products = COUNTS.astype(np.float32) * (np.float32(1) / np.float32(LENGTHS))[:, None]
    expected = (np.floor(products) != np.arange(1, 51)).any(1)
    assert expected.sum() == 23
    assert LENGTHS[int(expected.argmax())] == 41

    @jax.jit
    def rates(counts):
        return jnp.stack([staircase(n)(c) for n, c in zip(LENGTHS, counts, strict=True)])

    rates = np.asarray(rates(jnp.asarray(COUNTS, jnp.int32)))
    np.testing.assert_array_equal((rates != np.float32(0.5) ** np.arange(1, 51)).any(1), expected)
