"""Interventions on timelines, slot by slot."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.timelines import delay_clients, lose_uploads_of, remove_clients


def cohorts():
    """Clients 0, 1 / 2, 0 / 1, 2 / 0, 1."""
    return fs.timelines.cyclic(4, 3, 2, num_steps=2)


def slots(timeline, clients):
    return np.isin(np.asarray(timeline.clients), clients)


def test_removed_clients_have_empty_slots():
    timeline = cohorts()
    without = remove_clients(timeline, [0, 2], slice(1, 3))
    expected = np.asarray(timeline.mask).copy()
    expected[1:3] &= ~slots(timeline, [0, 2])[1:3]
    np.testing.assert_array_equal(without.mask, expected)
    assert expected.sum() == 5
    np.testing.assert_array_equal(without.clients, timeline.clients)
    np.testing.assert_array_equal(remove_clients(without, 1).mask, expected & ~slots(timeline, [1]))


def test_lost_uploads_keep_the_work():
    timeline = cohorts()
    lost = lose_uploads_of(timeline, 1)
    np.testing.assert_array_equal(lost.mask, timeline.mask)
    np.testing.assert_array_equal(lost.arrived, ~slots(timeline, 1))
    both = lose_uploads_of(lost, 2, slice(-2, None))
    expected = ~slots(timeline, 1)
    expected[2:] &= ~slots(timeline, 2)[2:]
    np.testing.assert_array_equal(both.arrived, expected)


@pytest.mark.parametrize("first", [0, 2])
def test_delayed_clients_start_earlier_but_not_before_the_timeline(first):
    timeline = cohorts()[first:]
    late = delay_clients(timeline, 0, 2)
    rounds = np.arange(first, 4)[:, None]
    expected = np.where(slots(timeline, 0), np.maximum(rounds - 2, first), rounds)
    np.testing.assert_array_equal(late.version, expected)
    assert late.max_staleness == 2


def test_batches_and_traced_timelines():
    batch = jax.tree.map(lambda x: np.stack([x, x]), cohorts())
    for change in (remove_clients, lose_uploads_of):
        one, two = change(cohorts(), 1), change(batch, 1)
        np.testing.assert_array_equal(two.arrived, np.stack([one.arrived] * 2))
    traced = jax.jit(lambda timeline: remove_clients(timeline, 1).mask)(cohorts())
    np.testing.assert_array_equal(traced, remove_clients(cohorts(), 1).mask)


def test_refusals():
    with pytest.raises(ValueError, match=r"clients is \[-1\]; expected numbers of clients"):
        remove_clients(cohorts(), [-1])
    with pytest.raises(ValueError, match=r"clients is 0.5; expected numbers of clients"):
        lose_uploads_of(cohorts(), 0.5)
    with pytest.raises(ValueError, match=r"delay is 0; expected at least 1"):
        delay_clients(cohorts(), 0, 0)
    with pytest.raises(ValueError, match=r"delay is 1.5; expected an integer"):
        delay_clients(cohorts(), 0, 1.5)
    with pytest.raises(ValueError, match=r"timeline.own_models is True"):
        delay_clients(dataclasses.replace(cohorts(), own_models=True), 0, 1)
    allocated = fs.timelines.allocate_buffers(delay_clients(cohorts(), 0, 1))
    assert delay_clients(allocated, 1, 1).num_buffers == 2
    with pytest.raises(ValueError, match=r"begins after broadcast 2 and has allocated buffers"):
        delay_clients(allocated[2:], 0, 1)
