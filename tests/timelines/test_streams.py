"""Minibatches that continue across visits: every epoch covers a client's examples exactly once."""

import dataclasses
import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from small_problems import compiled, recorded_batches, row_recorder

import fedjax_sim as fs
from fedjax_sim import timelines
from fedjax_sim.data.batches import permutations, stream

SIZES = np.array([3, 9, 1, 5, 2, 8, 4, 7])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
M, BATCH, STEPS = len(SIZES), 2, 6
KEY = jax.random.key(3)
RULE = stream(BATCH, STEPS)


def contacts():
    return timelines.contacts(
        jax.random.key(1), timelines.renewal_counts(timelines.geometric(0.4)), horizon=7.0 * 12,
        num_clients=M, cohort_size=3, max_steps=STEPS,
    )  # fmt: skip


def arrivals():
    return timelines.arrivals(
        jax.random.key(1), timelines.geometric(0.4), horizon=60.0, num_clients=M, num_steps=STEPS,
        buffer=3,
    )  # fmt: skip


def walk(record, timeline):
    """Per client the rows of its steps over all visits, in the client's own numbers."""
    steps = {client: [] for client in range(M)}
    timeline = jax.device_get(timeline)
    for t, s in zip(*np.nonzero(timeline.mask), strict=True):
        client = int(timeline.clients[t, s])
        for k in range(int(timeline.num_steps[t, s])):
            (rows,) = np.nonzero(record[t, s, k])
            steps[client].append((rows - OFFSETS[client]).tolist())
    return steps


@compiled
def order(key, size, epoch):
    """Entries from ``size`` on mean nothing."""
    return permutations(jax.random.fold_in(key, epoch), 1, size, int(SIZES.max()))[0]


def orders(client, epochs):
    """The permutations of one client: its key is that of all its visits, one branch an epoch."""
    key = jax.random.fold_in(jax.random.fold_in(KEY, np.uint32(2**32 - 1)), client)
    rows_key = jax.random.split(key, 3)[0]
    size = SIZES[client]
    return [np.asarray(order(rows_key, size, epoch))[:size].tolist() for epoch in range(epochs)]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [contacts, arrivals])
def test_epochs_cover_the_examples_and_follow_an_eager_walk(schedule):
    timeline = schedule()
    steps = walk(recorded_batches(SIZES, RULE, timeline, KEY), timeline)
    assert max(map(len, steps.values())) > 2 * -(-9 // BATCH)
    for client, found in steps.items():
        per_epoch = -(-SIZES[client] // BATCH)
        epochs = [found[i : i + per_epoch] for i in range(0, len(found), per_epoch)]
        for epoch in epochs[: len(found) // per_epoch]:
            assert sorted(row for step in epoch for row in step) == list(range(SIZES[client]))
        eager = orders(client, len(epochs))
        for epoch, rows in zip(epochs, eager, strict=True):
            expected = [sorted(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
            assert epoch == expected[: len(epoch)]
    # Another order in the next epoch.
    assert len({tuple(rows) for rows in orders(1, 3)}) == 3


@pytest.mark.slow
def test_the_same_under_every_strategy():
    timeline = contacts()
    mask = np.asarray(timeline.mask)[..., None, None]
    expected = recorded_batches(SIZES, RULE, timeline, KEY, execution=fs.execution.vmapped()) * mask
    for strategy in (
        fs.execution.chunked(2),
        fs.execution.sequential(),
        fs.execution.sharded(jax.make_mesh((4,), ("clients",))),
    ):
        found = recorded_batches(SIZES, RULE, timeline, KEY, execution=strategy) * mask
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_the_same_after_resuming():
    timeline = contacts()
    task, params, probes = row_recorder(SIZES, RULE, timeline.max_steps)

    @compiled
    def go(task, part, state):
        return fs.advance(
            fs.fedsgd(0.0),
            fs.Setup(task, part, None, eval_every=part.num_rounds),
            state,
            KEY,
            probes=probes,
        )

    whole = recorded_batches(SIZES, RULE, timeline, KEY)
    state, found = fs.init(fs.fedsgd(0.0), fs.Setup(task, timeline, params)), []
    for part in (timeline[:4], timeline[4:]):
        state, history = go(task, part, state)
        found.append(history.probes["rows"])
    np.testing.assert_array_equal(np.concatenate(found), whole)


@pytest.mark.slow
def test_other_visits_do_not_matter():
    """A client's n-th step sees the same examples whenever, with whomever and in whatever visit."""
    a, b = (
        walk(recorded_batches(SIZES, RULE, timeline, KEY), timeline)
        for timeline in (contacts(), arrivals())
    )
    compared = 0
    for client in range(M):
        together = min(len(a[client]), len(b[client]))
        assert a[client][:together] == b[client][:together]
        compared += together
    assert compared > 40


@pytest.mark.slow
def test_without_first_steps_every_visit_begins_an_epoch():
    """Of its own: two visits have two orders."""
    timeline = dataclasses.replace(contacts(), first_step=None)
    record = recorded_batches(SIZES, RULE, timeline, KEY)
    timeline = jax.device_get(timeline)
    firsts = set()
    for t, s in zip(*np.nonzero(timeline.mask), strict=True):
        client = int(timeline.clients[t, s])
        per_epoch = -(-SIZES[client] // BATCH)
        if timeline.num_steps[t, s] >= per_epoch:
            rows = np.nonzero(record[t, s, :per_epoch])[1] - OFFSETS[client]
            assert sorted(rows.tolist()) == list(range(SIZES[client]))
        if client == 1:
            firsts.add(tuple(np.nonzero(record[t, s, 0])[0].tolist()))
    assert len(firsts) > 1
    # A synchronous timeline has none to begin with.
    assert fs.timelines.full(1, M, RULE.num_steps(SIZES)).first_step is None


@functools.cache
def resumed(batch, smallest):
    """Rows and weights of a visit of 7 steps: ``(key, size, first) -> [7, batch]`` each."""

    @compiled
    def visit(key, size, first):
        pick = stream(batch, 7).resume(key, size, (smallest, int(SIZES.max())), first, 7)
        return jax.vmap(pick)(jnp.arange(7))

    return visit


@pytest.mark.slow
@given(
    size=st.integers(1, 9), batch=st.sampled_from([1, 2, 4]), first=st.integers(0, 40),
    smallest=st.sampled_from([1, 5]),
)  # fmt: skip
def test_resuming_anywhere(size, batch, first, smallest):
    """Steps first .. first + 6 of a visit are those of one long walk, for any smallest client."""
    size, key = max(size, smallest), jax.random.key(5)
    rows, weights = jax.device_get(resumed(batch, smallest)(key, size, first))
    per_epoch = -(-size // batch)
    for k in range(7):
        epoch, place = divmod(first + k, per_epoch)
        expected = np.asarray(order(key, size, epoch))[:size][place * batch : (place + 1) * batch]
        np.testing.assert_array_equal(rows[k][weights[k]], expected)


def test_clients_without_examples_do_nothing():
    sizes = np.array([4, 0, 3])
    assert RULE.num_steps(sizes).tolist() == [STEPS, 0, STEPS]
    timeline = timelines.contacts(
        KEY, timelines.renewal_counts(timelines.deterministic(2.0)), horizon=21.0, num_clients=3,
        cohort_size=3, max_steps=3,
    )  # fmt: skip
    record = recorded_batches(sizes, RULE, timeline, KEY)
    nobody = np.asarray(timeline.clients) == 1
    assert not record[nobody].any()
    assert record[~nobody].any(axis=-1).all()


@pytest.mark.parametrize(("batch", "steps", "name"), [(0, 1, "batch_size"), (1, 0, "num_steps")])
def test_refuses(batch, steps, name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1"):
        stream(batch, steps)


def test_is_one_object_for_equal_arguments():
    assert stream(2, 6) is RULE
