"""Strata: blocks of consecutive clients, and schedules with slots of their own for each."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim import timelines
from fedjax_sim.timelines import sampling
from fedjax_sim.timelines.strata import strata

KEY = jax.random.key(0)


@st.composite
def populations(draw):
    num_clients = draw(st.integers(1, 40))
    return num_clients, draw(st.integers(1, num_clients))


@given(populations())
def test_strata_are_consecutive_and_of_nearly_equal_size(population):
    num_clients, number = population
    blocks = strata(num_clients, number)
    parts = [list(blocks.clients(s)) for s in range(number)]
    assert list(itertools.chain(*parts)) == list(range(num_clients))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == blocks.width


@given(populations())
def test_rows_of_a_table_belong_to_one_client_and_one_stratum(population):
    blocks = strata(*population)
    clients = np.arange(blocks.num_clients)
    rows = blocks.row(clients)
    assert len(set(rows)) == blocks.num_clients
    assert 0 <= rows.min() <= rows.max() < blocks.num_rows
    of = [s for s in range(blocks.number) for _ in blocks.clients(s)]
    np.testing.assert_array_equal(blocks.of(clients), of)
    first = [blocks.clients(s).start for s in of]
    np.testing.assert_array_equal(rows, np.array(of) * blocks.width + clients - first)


@pytest.mark.parametrize(("num_clients", "number"), [(3, 4), (3, 0)])
def test_strata_without_clients_are_refused(num_clients, number):
    with pytest.raises(ValueError, match=f"num_strata is {number}; expected 1 .. num_clients = 3"):
        strata(num_clients, number)


def test_every_stratum_gives_as_many_clients():
    timeline = sampling.stratified(KEY, 300, 10, 6, 1, num_strata=3)  # of 4, 3 and 3
    of = strata(10, 3).of(np.asarray(timeline.clients))
    np.testing.assert_array_equal(of, np.broadcast_to([0, 0, 1, 1, 2, 2], of.shape))
    assert all(len(set(row)) == 6 for row in np.asarray(timeline.clients))
    share = np.bincount(np.ravel(timeline.clients), minlength=10) / 300
    # 300 coins of probability p: within five standard deviations.
    expected = np.array([2 / 4] * 4 + [2 / 3] * 6)
    assert (np.abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / 300)).all()


def test_strata_are_drawn_independently():
    """Of two strata of two clients with one slot each, all four pairs occur."""
    timeline = sampling.stratified(KEY, 60, 4, 2, 1, num_strata=2)
    assert len({tuple(row) for row in np.asarray(timeline.clients).tolist()}) == 4


@pytest.mark.parametrize(
    ("cohort_size", "message"),
    [
        (3, "cohort_size is 3; expected a multiple of num_strata = 2 of at most 4"),
        (5, "cohort_size is 5; expected a multiple of num_strata = 2 of at most 4"),
        (6, "cohort_size is 6; expected 1 .. num_clients = 5"),
    ],
)
def test_a_cohort_that_strata_do_not_divide_is_refused(cohort_size, message):
    with pytest.raises(ValueError, match=message):
        sampling.stratified(KEY, 2, 5, cohort_size, 1, num_strata=2)


def visits(timeline, fields):
    """Of each round the visits, as a sorted list of tuples."""
    columns = [np.asarray(getattr(timeline, name)) for name in fields]
    return [
        sorted(zip(*(column[t][mask].tolist() for column in columns), strict=True))
        for t, mask in enumerate(np.asarray(timeline.mask))
    ]


def schedules():
    steps = np.arange(1, 12)
    drawn = sampling.uniform(KEY, 9, 11, 5, steps)
    late = timelines.contacts(
        KEY, timelines.renewal_counts(timelines.geometric(np.full(11, 0.4))), horizon=60.0,
        num_clients=11, cohort_size=4, max_steps=3,
    )  # fmt: skip
    return {
        "uniform": drawn,
        "thinned": sampling.dropout(KEY, drawn, 0.6),
        "full": sampling.full(2, 11, steps),
        "late": late,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "thinned", "full", "late"])
@pytest.mark.parametrize("number", [1, 3, 11])
def test_arranged_schedules_have_the_same_visits(name, number):
    timeline = schedules()[name]
    arranged = timelines.arrange_by_stratum(timeline, 11, number)
    fields = ["clients", "version", "num_steps"]
    fields += [x for x in ("first_step", "idle", "read_buffer") if getattr(timeline, x) is not None]
    assert ("read_buffer" in fields) == (name == "late")
    assert visits(arranged, fields) == visits(timeline, fields)
    blocks, width = strata(11, number), arranged.cohort_size // number
    of = blocks.of(np.asarray(arranged.clients))
    expected = np.arange(arranged.cohort_size) // width
    assert (of == expected)[np.asarray(arranged.mask)].all()
    # No more slots than the busiest round of the busiest stratum needs.
    counts = [np.bincount(row[mask], minlength=number) for row, mask in zip(
        blocks.of(np.asarray(timeline.clients)), np.asarray(timeline.mask), strict=True
    )]  # fmt: skip
    assert width == np.max(counts)


@pytest.mark.slow
def test_all_schedules_of_a_batch_get_equally_many_slots():
    one, other = schedules()["uniform"], sampling.uniform(jax.random.key(7), 9, 11, 5, 2)
    batch = jax.tree.map(lambda *x: np.stack(x), one, dataclasses.replace(other, max_steps=11))
    together = timelines.arrange_by_stratum(batch, 11, 3)
    assert together.clients.shape[:2] == (2, 9)
    fields = ["clients", "version", "num_steps"]
    for i, timeline in enumerate([one, other]):
        alone = jax.tree.map(lambda x, i=i: x[i], together)
        assert visits(alone, fields) == visits(timeline, fields)
        own = np.arange(alone.cohort_size) // (alone.cohort_size // 3)
        assert (strata(11, 3).of(alone.clients) == own)[alone.mask].all()


def test_clients_beyond_the_population_are_refused():
    """No stratum has them, so their visits would be lost."""
    timeline = sampling.cyclic(2, 10, 5, 1)
    message = r"timeline.clients has client 9; expected 0 .. num_clients - 1 = 3"
    with pytest.raises(ValueError, match=message):
        timelines.arrange_by_stratum(timeline, 4, 2)
    absent = timelines.remove_clients(timeline, range(4, 10))
    arranged = timelines.arrange_by_stratum(absent, 4, 2)
    assert visits(arranged, ["clients"]) == visits(absent, ["clients"])
