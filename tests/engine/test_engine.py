"""The engine: evaluation, probes, weights, staleness, continuation, divergence, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import (
    COUNT_ROUNDS,
    COUNT_STEPS,
    KEY,
    NUM_CLIENTS,
    ZERO,
    Counter,
    assert_identical,
    compiled,
    execute,
    no_data,
    partial_timeline,
    quadratic_task,
    random_quadratics,
    upload_algorithm,
)

import fedjax_sim as fs
from fedjax_sim.engine import Span, advance_by
from fedjax_sim.engine.execution import strategies


def metrics(params):
    return {"value": params, "square": params**2, "vector": jnp.stack([params, -params])}


@pytest.mark.parametrize(
    ("eval_every", "rounds"),
    [(1, range(1, 8)), (3, [3, 6, 7]), (7, [7]), (100, [7]), (2, [2, 4, 6, 7])],
)
def test_evaluates_every_so_many_rounds_and_after_the_last(eval_every, rounds):
    timeline = fs.timelines.cyclic(7, NUM_CLIENTS, 3, 1)
    state, history = execute(COUNT_ROUNDS, timeline, eval_fn=metrics, eval_every=eval_every)
    expected = np.array(rounds)
    np.testing.assert_array_equal(history.round, expected)
    np.testing.assert_array_equal(history.metrics["value"], expected)
    np.testing.assert_array_equal(history.metrics["square"], expected**2)
    np.testing.assert_array_equal(history.metrics["vector"], np.stack([expected, -expected], 1))
    assert int(state.round) == 7


def test_records_of_rounds_inside_a_part_of_a_timeline_come_first():
    """Rounds 4 and 5 of 6, in a part that begins with round 3; the model counts the rounds."""
    timeline = fs.timelines.cyclic(6, NUM_CLIENTS, 3, 1)
    probes = fs.Probes(server={"model": lambda update: update.new_state.params})
    state, _ = execute(COUNT_ROUNDS, timeline[:3])
    setup = fs.Setup(no_data(), timeline[2:], ZERO, metrics, eval_every=2)
    span = Span(row=1, count=2, done=3, total=6)
    state, history = compiled(
        lambda state, span: advance_by(COUNT_ROUNDS, setup, state, KEY, span, probes=probes)
    )(state, span)
    assert int(state.round) == 5
    assert (int(history.round[0]), float(history.metrics["value"][0])) == (4, 4.0)
    np.testing.assert_array_equal(history.probes["model"][:2], [4.0, 5.0])


def test_nothing_to_evaluate():
    _, history = execute(COUNT_ROUNDS, fs.timelines.cyclic(3, NUM_CLIENTS, 3, 1))
    assert history.metrics == history.probes == {}
    np.testing.assert_array_equal(history.round, [1, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("eval_every", [1, 2, 5])
def test_probes_see_every_round_whatever_is_evaluated(eval_every):
    timeline = fs.timelines.uniform(jax.random.key(3), 5, NUM_CLIENTS, 3, np.arange(8))
    probes = fs.Probes(
        client={
            "client": lambda visit: visit.work.client,
            "received": lambda visit: visit.message,
            "visits": lambda visit: jnp.stack([visit.state, visit.new_state]),
            "upload": lambda visit: visit.upload,
            "steps": lambda visit: visit.work.num_steps,
            "loss": lambda visit: visit.oracle.loss(jnp.ones(1), 0),
        },
        server={
            "before": lambda update: update.state.params,
            "after": lambda update: update.new_state.params,
            "mean": lambda update: update.mean,
            "round": lambda update: update.round.number,
            "uploads": lambda update: update.round.num_uploads,
        },
    )
    _, history = execute(COUNT_STEPS, timeline, probes=probes, eval_every=eval_every)
    probed = jax.tree.map(np.asarray, history.probes)
    clients = np.asarray(timeline.clients)
    np.testing.assert_array_equal(probed["client"], clients)
    np.testing.assert_array_equal(probed["steps"], clients)  # client i does i steps
    np.testing.assert_array_equal(probed["upload"], clients)
    np.testing.assert_array_equal(probed["loss"], np.full((5, 3), 0.5))
    # Means of three small integers are exact up to the last place of the division.
    np.testing.assert_allclose(probed["mean"], clients.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(probed["after"], np.cumsum(clients.mean(axis=1)), rtol=1e-6)
    np.testing.assert_array_equal(probed["before"][1:], probed["after"][:-1])
    np.testing.assert_array_equal(probed["received"], np.repeat(probed["before"][:, None], 3, 1))
    earlier = [[np.sum(clients[:t] == i) for i in row] for t, row in enumerate(clients)]
    np.testing.assert_array_equal(probed["visits"][..., 0], earlier)
    np.testing.assert_array_equal(probed["visits"][..., 1], np.array(earlier) + 1)
    np.testing.assert_array_equal(probed["round"], np.arange(5))
    np.testing.assert_array_equal(probed["uploads"], np.full(5, 3))


def test_weights():
    """Uniform, by examples, and a weighting of one's own, with an empty slot."""
    sizes = np.arange(1, NUM_CLIENTS + 1)
    task = dataclasses.replace(no_data(), num_examples=sizes)
    timeline = fs.timelines.full(1, NUM_CLIENTS, 2)
    mask = jnp.arange(NUM_CLIENTS) != 5
    timeline = dataclasses.replace(timeline, mask=mask[None])
    number = upload_algorithm(lambda message, work: work.client.astype(jnp.float32))
    reporting = np.flatnonzero(mask)
    for weighting, weights in [
        (fs.uniform_weights, np.ones(NUM_CLIENTS)),
        (fs.weight_by_examples, sizes),
        (lambda work: work.client % 2, np.arange(NUM_CLIENTS) % 2),
    ]:
        state, _ = execute(number, timeline, task=task, weighting=weighting)
        expected = np.average(reporting, weights=weights[reporting])
        np.testing.assert_allclose(state.server.params, expected, rtol=1e-6)


def test_round_of_weight_zero_changes_nothing():
    """Clients without examples, weighted by examples: there is no mean to apply."""
    task = dataclasses.replace(no_data(), num_examples=np.zeros(NUM_CLIENTS, np.int32))
    state, _ = execute(
        COUNT_ROUNDS, fs.timelines.cyclic(3, 8, 3, 1), task=task, weighting=fs.weight_by_examples
    )
    assert float(state.server.params) == 0


NUM_ROUNDS, COHORT = 5, 3
count_visits = compiled(
    lambda task, timeline: fs.run(COUNT_ROUNDS, fs.Setup(task, timeline, ZERO), KEY)[0]
)


@settings(max_examples=30)
@given(
    cohorts=st.lists(
        st.lists(st.integers(0, NUM_CLIENTS - 1), min_size=COHORT, max_size=COHORT, unique=True),
        min_size=NUM_ROUNDS,
        max_size=NUM_ROUNDS,
    ),
    mask=st.lists(
        st.lists(st.booleans(), min_size=COHORT, max_size=COHORT),
        min_size=NUM_ROUNDS,
        max_size=NUM_ROUNDS,
    ),
    ghost=st.integers(0, NUM_CLIENTS - 1),
)
def test_states_of_exactly_the_reporting_clients_change(cohorts, mask, ghost):
    clients, mask = np.array(cohorts), np.array(mask)
    visits = np.bincount(clients[mask], minlength=NUM_CLIENTS)
    # What stands in empty slots is free, be it a client that reports from another slot.
    clients[~mask] = ghost
    timeline = dataclasses.replace(
        fs.timelines.cyclic(NUM_ROUNDS, NUM_CLIENTS, COHORT, 1),
        clients=jnp.asarray(clients, jnp.int32),
        mask=jnp.asarray(mask),
    )
    state = count_visits(no_data(), timeline)
    np.testing.assert_array_equal(state.clients, visits)
    assert float(state.server.params) == mask.any(axis=1).sum()


def test_empty_slots_do_no_work():
    timeline = partial_timeline()
    probes = fs.Probes(client={"steps": lambda visit: visit.work.num_steps})
    _, history = execute(COUNT_ROUNDS, timeline, probes=probes)
    expected = np.where(timeline.mask, timeline.num_steps, 0)
    np.testing.assert_array_equal(history.probes["steps"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [strategies.vmapped(), strategies.sequential(), strategies.chunked(2)]
)
def test_stale_clients_receive_the_version_they_downloaded(strategy):
    """The model is the number of updates so far, so a message tells its version."""
    version = np.array([[0, 0, 0], [1, 0, 1], [0, 2, 1], [3, 0, 2], [1, 4, 4], [5, 2, 3]])
    timeline = dataclasses.replace(
        fs.timelines.cyclic(6, NUM_CLIENTS, 3, 1),
        version=jnp.asarray(version, jnp.int32),
        max_staleness=3,
    )
    probes = fs.Probes(
        client={
            "received": lambda visit: visit.message,
            "staleness": lambda visit: visit.work.staleness,
        }
    )
    _, history = execute(COUNT_ROUNDS, timeline, probes=probes, execution=strategy)
    np.testing.assert_array_equal(history.probes["received"], version)
    np.testing.assert_array_equal(history.probes["staleness"], np.arange(6)[:, None] - version)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 4])
def test_history_of_a_continued_run(cut):
    """advance() counts on: rounds, metrics and probes of the parts follow each other."""
    timeline = fs.timelines.uniform(jax.random.key(3), 6, NUM_CLIENTS, 3, np.arange(8))
    probes = fs.Probes(server={"mean": lambda update: update.mean})
    whole_state, whole = execute(COUNT_STEPS, timeline, eval_fn=metrics, probes=probes)
    setup = fs.Setup(no_data(), timeline, ZERO, eval_fn=metrics)

    @compiled
    def go(state, part):
        one = dataclasses.replace(setup, timeline=part, params=None)
        return fs.advance(COUNT_STEPS, one, state, KEY, probes=probes)

    state, histories = fs.init(COUNT_STEPS, setup), []
    for part in (timeline[:cut], timeline[cut:]):
        state, history = go(state, part)
        histories.append(history)
    assert_identical(state, whole_state)
    joined = jax.tree.map(lambda *x: np.concatenate(x), *histories)
    assert_identical(joined._asdict(), whole._asdict())


def test_advance_evaluates_once_unless_told_otherwise():
    timeline = fs.timelines.cyclic(5, NUM_CLIENTS, 3, 1)
    state = fs.init(COUNT_ROUNDS, fs.Setup(no_data(), timeline, ZERO))
    _, history = fs.advance(
        COUNT_ROUNDS,
        fs.Setup(no_data(), timeline, None, eval_fn=metrics, eval_every=timeline.num_rounds),
        state,
        KEY,
    )
    np.testing.assert_array_equal(history.metrics["value"], [5])


def test_vmap_over_timelines():
    keys = jax.random.split(jax.random.key(1), 3)
    steps = np.arange(NUM_CLIENTS)
    batch = jax.vmap(lambda key: fs.timelines.uniform(key, 4, NUM_CLIENTS, 3, steps))(keys)
    go = compiled(
        jax.vmap(lambda timeline: fs.run(COUNT_STEPS, fs.Setup(no_data(), timeline, ZERO), KEY)[0])
    )
    expected = np.asarray(batch.clients).mean(axis=2).sum(axis=1)
    np.testing.assert_allclose(go(batch).server.params, expected, rtol=1e-6)


@pytest.mark.parametrize("bad", [1, 4, 6])
def test_divergence_is_reported_with_its_round(allow_nans, bad):
    """Counted from 1, and the first one even if the model recovers."""

    def update(state, mean, round):
        return Counter(jnp.where(round.number + 1 == bad, jnp.nan, 1.0))

    algorithm = COUNT_ROUNDS._replace(update=update)
    state, _ = execute(algorithm, fs.timelines.cyclic(6, NUM_CLIENTS, 3, 1))
    assert int(state.diverged_at) == bad


def test_overflow_is_divergence(allow_nans):
    """Gradient descent at a rate of 3e4 on curvature 0.5 .. 1.5 leaves float32 within 10 rounds."""
    hessians, centres = random_quadratics(NUM_CLIENTS, 2)
    timeline = fs.timelines.full(12, NUM_CLIENTS, 1)
    state, history = execute(
        fs.fedavg(3e4),
        timeline,
        jnp.ones(2),
        quadratic_task(hessians, centres, 1),
        eval_fn=lambda params: {"finite": jnp.isfinite(params).all()},
    )
    finite = np.asarray(history.metrics["finite"])
    assert finite[0]
    assert not finite[-1]
    assert int(state.diverged_at) == np.argmin(finite) + 1


def test_run_that_converges_did_not_diverge():
    state, _ = execute(COUNT_ROUNDS, fs.timelines.cyclic(3, NUM_CLIENTS, 3, 1))
    assert int(state.diverged_at) == 0


def refusing_to_start():
    """An algorithm that fails when first touched, to show that arguments are checked before."""

    def init(params):
        raise AssertionError("compilation has begun")

    return COUNT_ROUNDS._replace(init=init)


def naming(*clients):
    timeline = fs.timelines.cyclic(1, NUM_CLIENTS, len(clients), 1)
    return dataclasses.replace(timeline, clients=jnp.array([clients]))


BATCH = jax.tree.map(lambda x: x[None], fs.timelines.cyclic(2, NUM_CLIENTS, 3, 1))


@pytest.mark.parametrize(
    ("timeline", "params", "eval_every", "message"),
    [
        (naming(0, 1), ZERO, 0, "eval_every is 0; expected at least 1"),
        (naming(0, 1), {}, 1, "params has no leaves"),
        (naming(0, 8), ZERO, 1, r"has clients 0 \.\. 8; expected 0 \.\. 7"),
        (naming(-1, 2), ZERO, 1, r"has clients -1 \.\. 2; expected 0 \.\. 7"),
        (BATCH, ZERO, 1, r"timeline.clients has shape \(1, 2, 3\); expected \[T, S\]"),
    ],
)
def test_refuses_before_anything_is_compiled(timeline, params, eval_every, message):
    with pytest.raises(ValueError, match=message):
        fs.run(
            refusing_to_start(), fs.Setup(no_data(), timeline, params, eval_every=eval_every), KEY
        )


def test_client_numbers_are_checked_inside_jit_when_concrete():
    timeline = naming(0, 8)
    with pytest.raises(ValueError, match="has clients"):
        jax.jit(lambda x: fs.run(refusing_to_start(), fs.Setup(no_data(), timeline, x), KEY))(ZERO)


def test_clients_count_rounds_from_zero():
    number = upload_algorithm(lambda message, work: work.round.astype(jnp.float32))
    timeline = fs.timelines.cyclic(5, NUM_CLIENTS, 3, 1)
    _, history = execute(number, timeline, eval_fn=lambda x: {"sum": x})
    np.testing.assert_array_equal(history.metrics["sum"], np.cumsum(np.arange(5)))
