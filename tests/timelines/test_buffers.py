"""Buffers for past broadcasts: every slot reads its own, from as few buffers as possible."""

import dataclasses

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import regression
from hypothesis import given
from small_problems import assert_identical, compiled, execute, no_data, upload_algorithm

import fedjax_sim as fs
from fedjax_sim.timelines import allocate_buffers, held_versions, stacked
from fedjax_sim.timelines.buffers import Visits, assembled

M = 5


def timeline_of(clients, version, mask) -> fs.Timeline:
    clients, version, mask = np.asarray(clients), np.asarray(version), np.asarray(mask)
    rounds = np.arange(len(clients))
    staleness = np.where(mask, rounds[:, None] - version, 0)
    return fs.Timeline(
        clients=clients.astype(np.int32),
        version=version.astype(np.int32),
        num_steps=np.ones_like(clients, np.int32),
        mask=mask,
        time=rounds.astype(np.float32),
        max_steps=1,
        max_staleness=int(staleness.max(initial=0)),
    )


@st.composite
def timelines(draw, causal=False, new=st.booleans()):
    """Any cohorts, reports and versions.

    If ``causal``, every client holds one version: after its report to update t version t + 1 if
    ``new``, else version t.
    """
    rounds, slots = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    clients = np.stack([rng.choice(M, slots, replace=False) for _ in range(rounds)])
    mask = rng.random(clients.shape) < draw(st.sampled_from([0.2, 0.7, 1.0]))
    latest = np.arange(rounds)[:, None]
    version = rng.integers(0, latest + 1, clients.shape)
    if causal:
        held = np.zeros(M, int)
        new = draw(new)
        for t in range(rounds):
            version[t] = np.where(mask[t], held[clients[t]], t)
            held[clients[t][mask[t]]] = t + 1 if new else t
    return timeline_of(clients, version, mask)


def contents(timeline):
    """Contents of the buffers after each broadcast, ``[T, buffers]``; -1: still empty."""
    held, after = np.full(timeline.num_buffers, -1), []
    for t, place in enumerate(np.asarray(timeline.write_buffer)):
        if place < timeline.num_buffers:
            held[place] = t
        after.append(held.copy())
    return np.array(after)


def most_alive(timeline, held=None):
    """Broadcasts v <= t that are used at t or later, the most at any t: by looking at all pairs."""
    rounds = timeline.num_rounds
    uses = [set(timeline.version[u][timeline.mask[u]].tolist()) for u in range(rounds)]
    if held is not None:
        uses = [a | {int(v) for v in held[u] if v <= u} for u, a in enumerate(uses)]
    return max(len({v for u in range(t, rounds) for v in uses[u] if v <= t}) for t in range(rounds))


@given(timelines())
def test_every_slot_finds_its_broadcast(timeline):
    plan = allocate_buffers(timeline)
    held = contents(plan)
    for t in range(plan.num_rounds):
        reports = plan.mask[t]
        np.testing.assert_array_equal(
            held[t][plan.read_buffer[t][reports]], plan.version[t][reports]
        )
    assert plan.num_buffers == max(most_alive(timeline), 1) <= timeline.max_staleness + 1
    # Empty slots read some buffer, too.
    assert plan.read_buffer.min() >= 0
    assert plan.read_buffer.max() < plan.num_buffers
    for field in dataclasses.fields(timeline):
        if field.name not in ("write_buffer", "read_buffer", "num_buffers"):
            assert_identical(getattr(plan, field.name), getattr(timeline, field.name))


@given(timelines(causal=True))
def test_no_more_buffers_than_clients_and_one(timeline):
    plan = allocate_buffers(timeline)
    assert plan.num_buffers <= min(timeline.max_staleness, M) + 1
    assert_identical(allocate_buffers(plan).write_buffer, plan.write_buffer)  # once is enough


@given(timelines(causal=True), st.booleans())
def test_held_versions_stay(timeline, new):
    """Versions of clients that report no more are kept too; every slot still finds its own."""
    held = held_versions(timeline, M, new=new)
    plan = allocate_buffers(timeline, held)
    after = contents(plan)
    for t in range(plan.num_rounds):
        assert set(held[t][held[t] <= t].tolist()) <= set(after[t].tolist())
        reports = plan.mask[t]
        np.testing.assert_array_equal(
            after[t][plan.read_buffer[t][reports]], plan.version[t][reports]
        )
    assert plan.num_buffers == max(most_alive(timeline, held), 1)


@given(st.booleans(), st.data())
def test_no_more_buffers_than_clients_and_one_with_held_versions(new, data):
    timeline = data.draw(timelines(causal=True, new=st.just(new)))
    plan = allocate_buffers(timeline, held_versions(timeline, M, new=new))
    assert plan.num_buffers <= M + 1


@given(timelines(causal=True), st.booleans())
def test_held_versions_one_by_one(timeline, new):
    held = np.zeros(M, int)
    for t, found in enumerate(held_versions(timeline, M, new=new)):
        for client in timeline.clients[t][timeline.mask[t]]:
            held[client] = t + 1 if new else t
        np.testing.assert_array_equal(found, held)


@pytest.mark.slow
@given(st.lists(timelines(), min_size=1, max_size=3))
def test_stacked_timelines_keep_their_rounds(several):
    slots = min(t.cohort_size for t in several)
    several = [
        timeline_of(t.clients[:, :slots], t.version[:, :slots], t.mask[:, :slots]) for t in several
    ]
    batch = jax.device_get(stacked(several))
    longest = max(t.num_rounds for t in several)
    assert batch.clients.shape == (len(several), longest, slots)
    assert batch.max_staleness == max(t.max_staleness for t in several)
    assert batch.num_buffers == (
        max(allocate_buffers(t).num_buffers for t in several)
        if batch.write_buffer is not None
        else 0
    )
    for i, timeline in enumerate(several):
        rounds = timeline.num_rounds
        for name in ("clients", "version", "num_steps", "mask", "time"):
            np.testing.assert_array_equal(getattr(batch, name)[i, :rounds], getattr(timeline, name))
        assert not batch.mask[i, rounds:].any()
        assert (batch.time[i, rounds:] == timeline.time[-1]).all()
        if batch.write_buffer is not None:
            one = dataclasses.replace(
                timeline, write_buffer=batch.write_buffer[i, :rounds], num_buffers=batch.num_buffers
            )
            held = contents(one)
            for t in range(rounds):
                read_buffer = batch.read_buffer[i, t][timeline.mask[t]]
                np.testing.assert_array_equal(
                    held[t][read_buffer], timeline.version[t][timeline.mask[t]]
                )


def test_stacked_refuses_other_kinds():
    one = fs.timelines.full(2, 3, num_steps=1)
    for others in ([], [one, fs.timelines.full(2, 4, num_steps=1)],
                   [one, dataclasses.replace(one, max_steps=2)],
                   [one, dataclasses.replace(one, idle=jnp.zeros((2, 3)))]):  # fmt: skip
        with pytest.raises(ValueError, match=r"timelines have the .*; expected equal ones"):
            stacked(others)


def test_held_versions_of_a_batch():
    """As each by itself, but for the number of places."""
    several = [some_timeline(seed=seed) for seed in range(3)]
    helds = np.stack([held_versions(timeline, M) for timeline in several])
    batch = allocate_buffers(jax.device_get(stacked(several)), helds)
    alone = [
        allocate_buffers(timeline, held) for timeline, held in zip(several, helds, strict=True)
    ]
    assert batch.num_buffers == max(one.num_buffers for one in alone)
    for i, one in enumerate(alone):
        np.testing.assert_array_equal(batch.read_buffer[i], one.read_buffer)
        kept = one.write_buffer < one.num_buffers
        np.testing.assert_array_equal(batch.write_buffer[i][kept], one.write_buffer[kept])
        assert (batch.write_buffer[i][~kept] == batch.num_buffers).all()


def test_allocation_refuses_held_versions_of_another_shape():
    one = some_timeline()
    for timeline, held in (
        (one, np.zeros((7, M), int)),
        (stacked([one, one]), held_versions(one, M)),
    ):
        with pytest.raises(ValueError, match=r"held has shape \(., 5\); expected .*M"):
            allocate_buffers(timeline, held)


@pytest.mark.parametrize("assign", [
    allocate_buffers,
    lambda rest: fs.timelines.delay_uploads(jax.random.key(0), rest, 0.5),
    lambda rest: fs.timelines.delay_clients(rest, 0, 1),
])  # fmt: skip
def test_later_parts_get_no_buffers(assign):
    """Versions are those of the whole timeline, rounds are not."""
    whole = timeline_of([[0, 1]] * 6, [[t, 0] for t in range(6)], np.ones((6, 2), bool))
    whole = allocate_buffers(whole)
    with pytest.raises(ValueError, match=r"timeline.version\[0, 0\] is [12]; expected at most 0"):
        assign(whole[2:])
    assert assign(whole[:3]).num_buffers


# ---- runs


def some_timeline(rounds=8, seed=0) -> fs.Timeline:
    """Versions that overlap in time, empty slots, an empty round, broadcasts that nobody uses."""
    rng = np.random.default_rng(seed)
    clients = np.stack([rng.choice(M, 3, replace=False) for _ in range(rounds)])
    mask = rng.random(clients.shape) < 0.7
    mask[2] = False
    held = np.zeros(M, int)
    version = np.zeros_like(clients)
    for t in range(rounds):
        version[t] = np.where(mask[t], held[clients[t]], t)
        held[clients[t][mask[t]]] = t + 1
    return timeline_of(clients, version, mask)


ECHO = upload_algorithm(lambda message, work: 1 + message / 2)  # the model it started from


def by_hand(timeline):
    models = [0.0]
    for t in range(timeline.num_rounds):
        started = [models[v] for v in timeline.version[t][timeline.mask[t]]]
        models.append(models[-1] + (np.mean([1 + x / 2 for x in started]) if started else 0))
    return np.array(models[1:])


RECORD = {"eval_fn": lambda params: {"model": params}}


def test_buffers_ring_and_numpy_agree(x64):
    """1e-14: means of three numbers, eight times."""
    ring = some_timeline()
    plan = allocate_buffers(ring)
    assert 2 < plan.num_buffers < ring.max_staleness + 1
    assert (plan.write_buffer == plan.num_buffers).any()
    start = jnp.array(0.0)
    expected = by_hand(ring)
    for timeline in (ring, plan, allocate_buffers(ring, held_versions(ring, M))):
        _, history = execute(ECHO, timeline, start, **RECORD)
        np.testing.assert_allclose(history.metrics["model"], expected, rtol=1e-14)


def test_models_agree_on_the_regression_problem(x64):
    ring = some_timeline(seed=1)

    @compiled
    def final(task, timeline):
        params = regression.start_params()
        return fs.run(fs.fedavg(0.1), fs.Setup(task, timeline, params), jax.random.key(0))[0]

    states = [final(regression.task(), timeline) for timeline in (ring, allocate_buffers(ring))]
    assert_identical(states[0].server, states[1].server)


@pytest.mark.slow
def test_slices_run_on_with_the_state():
    plan = allocate_buffers(some_timeline())
    task = no_data(M)
    whole, _ = execute(ECHO, plan, jnp.array(0.0), task)
    state = fs.init(ECHO, fs.Setup(task, plan, jnp.array(0.0)))
    assert state.past.shape == (plan.num_buffers,)
    for part in (plan[:1], plan[1:5], plan[5:]):
        assert part.num_buffers == plan.num_buffers
        go = compiled(
            lambda part, state: fs.advance(
                ECHO,
                fs.Setup(task, part, None, eval_every=part.num_rounds),
                state,
                jax.random.key(0),
            )[0]
        )
        state = go(part, state)
    assert_identical(state, whole)


def test_stacked_timelines_run_as_one_program(x64):
    several = [some_timeline(rounds, seed) for rounds, seed in ((8, 0), (5, 1), (6, 2))]
    batch = stacked(several)
    task = no_data(M)

    @compiled
    def final(batch):
        return jax.vmap(
            lambda timeline: fs.run(
                ECHO, fs.Setup(task, timeline, jnp.array(0.0)), jax.random.key(0)
            )[0]
        )(batch)

    expected = [by_hand(timeline)[-1] for timeline in several]
    np.testing.assert_allclose(final(batch).server.params, expected, rtol=1e-14)


def damaged(**changes):
    plan = allocate_buffers(some_timeline())
    return dataclasses.replace(
        plan, **{name: change(np.array(getattr(plan, name))) for name, change in changes.items()}
    )


@pytest.mark.parametrize(
    ("timeline", "message"),
    [
        (
            lambda: damaged(read_buffer=lambda x: (x + 1) % 3),
            r"timeline\.read_buffer in round \d has buffers",
        ),
        (
            lambda: damaged(write_buffer=lambda x: np.roll(x, 1)),
            r"timeline\.read_buffer in round \d has buf",
        ),
        # A buffer that does not exist cannot have been written to.
        (
            lambda: damaged(read_buffer=lambda x: x + 99),
            r"read_buffer in \d+ \.\. \d+; expected 0 \.\. ",
        ),
        (
            lambda: damaged(write_buffer=lambda x: x - 1),
            r"timeline\.write_buffer is in -1 \.\. \d+ and read_buffer",
        ),
        (
            lambda: damaged(write_buffer=lambda x: x[1:]),
            r"timeline\.write_buffer and read_buffer have shapes",
        ),
        (
            lambda: damaged(write_buffer=lambda x: 0 * x),
            r"timeline\.read_buffer in round \d has buffers with",
        ),
        (
            lambda: dataclasses.replace(allocate_buffers(some_timeline()), write_buffer=None),
            r"timeline\.num_buffers is \d without write_buffer and read_buffer; expected both",
        ),
        (
            lambda: damaged(read_buffer=lambda x: x[:, :2]),
            r"timeline\.read_buffer has shape \(8, 2\); expected",
        ),
        (
            lambda: dataclasses.replace(
                allocate_buffers(some_timeline()), first_step=np.zeros((8, 2), np.int32)
            ),
            r"timeline\.first_step has shape \(8, 2\); expected \(8, 3\), the shape of",
        ),
        (
            lambda: dataclasses.replace(some_timeline(), idle=np.zeros((8, 2))),
            r"timeline\.idle has shape \(8, 2\); expected \(8, 3\), the shape of",
        ),
    ],
)
def test_damaged_plans_are_refused(timeline, message):
    with pytest.raises(ValueError, match=message):
        fs.run(ECHO, fs.Setup(no_data(M), timeline(), jnp.array(0.0)), jax.random.key(0))


def test_held_versions_of_a_batch_or_of_fewer_clients_are_refused():
    timeline = fs.timelines.cyclic(3, 4, 2, 1)
    with pytest.raises(ValueError, match=r"timeline.clients has client 3; expected 0 .. "):
        held_versions(timeline, 2)
    with pytest.raises(ValueError, match=r"timeline.clients has shape \(5, 3, 2\); expected"):
        held_versions(stacked([timeline] * 5), 4)


def test_an_empty_slot_is_not_stale():
    """Update 1 has a visit of the newest version, and an empty slot that names version 0."""
    first = Visits(1.0, *(np.array([x]) for x in (0, 0, 1, 0.0)))
    second = Visits(
        2.0,
        clients=np.array([1, 2]),
        version=np.array([1, 0]),
        num_steps=np.array([1, 1]),
        idle=np.zeros(2),
        mask=np.array([True, False]),
    )
    timeline = assembled([first, second], cohort_size=2, max_steps=1)
    assert (timeline.max_staleness, timeline.num_buffers) == (0, 0)


def test_versions_of_later_rounds_are_refused_with_their_place():
    timeline = timeline_of([[0, 1], [1, 0]], [[0, 2], [1, 1]], np.ones((2, 2), bool))
    with pytest.raises(ValueError, match=r"version\[0, 1\] is 2; expected at most 0, the round"):
        allocate_buffers(timeline)
