"""Visits of clients to timelines: their number, and the rounds between them."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.wrappers.privacy.participation import (
    min_separation,
    most_visits,
    num_draws,
    repeated_client,
)


def timeline(clients, mask):
    rounds = fs.timelines.full(len(clients), len(clients[0]), num_steps=1)
    return dataclasses.replace(rounds, clients=np.array(clients), mask=np.array(mask, bool))


RETURNS = timeline([[0, 1], [2, 3], [4, 5], [0, 3]], [[1, 1], [1, 1], [1, 0], [1, 1]])


def test_visits_are_counted_in_rounds_with_a_report():
    assert (most_visits(RETURNS), min_separation(RETURNS), num_draws(RETURNS)) == (2, 2, 4)
    empty = dataclasses.replace(RETURNS, mask=np.array([[1, 1], [1, 1], [0, 0], [1, 1]], bool))
    # Client 3 reports in rounds 1 and 3; nobody reports between them.
    assert (min_separation(empty), num_draws(empty)) == (1, 3)
    assert repeated_client(empty, 2) is None
    assert repeated_client(empty, 3) == (0, 0)


def test_a_client_that_never_returns_has_no_separation():
    once = fs.timelines.cyclic(3, num_clients=6, cohort_size=2, num_steps=1)
    assert (min_separation(once), most_visits(once), repeated_client(once, 3)) == (None, 1, None)


def test_the_worst_replica_of_a_batch_counts():
    batch = fs.timelines.stacked([RETURNS, fs.timelines.cyclic(4, 8, 2, num_steps=1)])
    assert (most_visits(batch), min_separation(batch)) == (2, 2)


def test_traced_timelines_are_refused():
    with pytest.raises(ValueError, match="is traced; expected a concrete timeline"):
        jax.eval_shape(lambda t: most_visits(t), RETURNS)
