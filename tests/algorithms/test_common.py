"""One battery over every algorithm: what holds for all of them, whatever they compute."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import (
    ALGORITHMS,
    CONTACTS,
    STRATEGIES,
    algorithm,
    exact_task,
    hyper,
    program,
    timeline_of,
    train,
    trained,
)
from small_problems import (
    NUM_CLIENTS,
    assert_close,
    assert_identical,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
    partial_timeline,
    stale_timeline,
)

import fedjax_sim as fs
from fedjax_sim.execution.placement import by_client, make_mesh

pytestmark = pytest.mark.parametrize("name", ALGORITHMS)


@functools.cache
def advancing(name):
    """Two more rounds."""

    def go(values, task, timeline, state, key):
        run_cohort = STRATEGIES["vmapped"]()
        return fs.advance(algorithm(name, values), task, timeline, state, key, cohort=run_cohort)[0]

    return compiled(go)


def test_jit_equals_eager(name):
    eager = train(name, hyper(name), exact_task(), timeline_of(name), jax.random.key(2))
    # Two compilations may fuse, hence round, differently: a few units in the last place.
    assert_close(trained(name, task=exact_task()), eager, 1e-6)


def test_vmap_equals_separate_runs(name):
    """Row i changes one hyper-parameter, the last row the key: a mix-up of any two is seen."""
    base = hyper(name)
    rows = [base | {key: 1.1 * value} for key, value in base.items()] + [base]
    keys = jax.random.split(jax.random.key(7), len(rows))
    batch = jax.tree.map(lambda *values: jnp.stack(values), *rows)
    over = compiled(jax.vmap(functools.partial(train, name), (0, None, None, 0)))
    together = over(batch, logistic_task(), timeline_of(name), keys)
    apart = [
        program(name)(row, logistic_task(), timeline_of(name), key)
        for row, key in zip(rows, keys, strict=True)
    ]
    assert_close(together, jax.tree.map(lambda *x: np.stack(x), *apart), 1e-6)


def test_strategies_agree(name):
    """Strategies differ in the order of summation only: round-off of single precision."""
    for strategy in STRATEGIES:
        assert_close(trained(name, strategy=strategy), trained(name), 1e-6)


def test_clients_on_a_mesh_by_client(name):
    """Data and states by client on two devices: the same server, and the same rows of states."""
    where = by_client(NUM_CLIENTS, make_mesh(jax.devices()[:2]), num_strata=4)
    batches = fs.epochs(2, 2)
    task = fs.empirical_task(logistic_losses, logistic_data(), batches, placement=where)
    timeline = fs.timelines.arrange_by_stratum(timeline_of(name), NUM_CLIENTS, 4)
    state, expected = trained(name, timeline, task), trained(name)
    assert_close(state.server, expected.server, 1e-6)
    table = where.strata.row(np.arange(NUM_CLIENTS))
    assert_close(rows_of(state.clients, table), expected.clients, 2e-6)


def test_strategies_agree_in_double_precision(name, x64):
    """Nothing larger than round-off hides behind the tolerance of single precision."""
    base = trained(name, task=exact_task())
    for strategy in STRATEGIES:
        assert_close(trained(name, task=exact_task(), strategy=strategy), base, 1e-12)


def test_declared_but_unused_staleness_changes_nothing(name):
    declared = dataclasses.replace(partial_timeline(), max_staleness=3)
    if algorithm(name, hyper(name)).synchronous_only:
        with pytest.raises(ValueError, match="staleness of up to 3; expected none: "):
            trained(name, declared, exact_task())
        return
    state = trained(name, declared, exact_task())
    expected = trained(name, partial_timeline(), exact_task())
    assert_identical(state.server, expected.server)
    assert_identical(state.clients, expected.clients)


def test_planned_places_equal_a_ring(name):
    """Old broadcasts are the same ones, wherever they are kept; with x64 off, to the bit."""
    if algorithm(name, hyper(name)).synchronous_only:
        pytest.skip("needs current broadcasts, so that none are kept")
    planned = stale_timeline()
    ring = dataclasses.replace(planned, write_buffer=None, read_buffer=None, num_buffers=0)
    states = [trained(name, timeline, exact_task()) for timeline in (planned, ring)]
    assert_identical(states[0].server, states[1].server)
    assert_identical(states[0].clients, states[1].clients)
    fresh = trained(name, partial_timeline(), exact_task())
    assert np.abs(fresh.server.params["w"] - states[0].server.params["w"]).max() > 1e-5


def test_client_numbers_are_only_labels(name):
    """Without random draws, renumbered clients give the same model and renumbered states."""
    old_of_new = np.array([5, 2, 7, 0, 3, 6, 1, 4])
    new_of_old = np.argsort(old_of_new)
    data, timeline = logistic_data(), timeline_of(name)
    renumbered = fs.from_clients([data.client(old) for old in old_of_new])
    states = []
    for examples, clients in [
        (data, timeline.clients),
        (renumbered, jnp.asarray(new_of_old, jnp.int32)[timeline.clients]),
    ]:
        task = fs.empirical_task(logistic_losses, examples, fs.full_batch(timeline.max_steps))
        visits = dataclasses.replace(timeline, clients=clients)
        states.append(program(name)(hyper(name), task, visits, jax.random.key(2)))
    assert_identical(states[1].server, states[0].server)
    assert_identical(states[1].clients, rows_of(states[0].clients, old_of_new))


def test_key_decides_everything_random(name):
    first = trained(name)
    assert_identical(trained(name), first)
    other = program(name)(hyper(name), logistic_task(), timeline_of(name), jax.random.key(3))
    assert np.abs(other.server.params["w"] - first.server.params["w"]).max() > 1e-4


def test_gradients_agree_with_finite_differences(name, x64):
    """Of a final loss, with respect to every hyper-parameter."""
    task, key = exact_task(), jax.random.key(2)
    examples = jax.tree.map(jnp.asarray, logistic_data().examples)

    def loss(state):
        return logistic_losses(state.server.params, examples, None).mean()

    def final_loss(values, task):
        return loss(train(name, values, task, timeline_of(name), key))

    # The derivative of optax's ``decay**count`` mixes dtypes, which strict promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        gradients = compiled(jax.grad(final_loss))(hyper(name), task)
    for parameter, value in hyper(name).items():
        # Central differences err by O(step^2) + eps / step: about 1e-10 at this step.
        step = 1e-5 * value
        above, below = (
            loss(program(name)(hyper(name) | {parameter: v}, task, timeline_of(name), key))
            for v in (value + step, value - step)
        )
        difference = (above - below) / (2 * step)
        assert abs(difference) > 1e-7, f"{parameter} has no effect, so nothing is tested"
        np.testing.assert_allclose(gradients[parameter], difference, rtol=1e-6, atol=1e-9)


def test_float32_agrees_with_float64(name):
    single = trained(name, task=exact_task())
    with jax.enable_x64(True):
        double = trained(name, task=exact_task())
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(double) if leaf.dtype.kind == "f"}
    assert dtypes == {np.dtype(np.float64)}
    # Up to 40 local steps deep, each rounding at 6e-8.
    assert_close(single, double, 1e-5)


def test_float32_hyper_parameters_on_a_float64_model(name, x64):
    """As in a sweep: they adopt the precision of the model. Staging is enough to see it."""
    values = {key: value.astype(jnp.float32) for key, value in hyper(name).items()}
    go = functools.partial(train, name)
    state = jax.eval_shape(go, values, exact_task(), timeline_of(name), jax.random.key(2))
    leaves = jax.tree.leaves((state.server.params, state.clients))
    assert {leaf.dtype for leaf in leaves if leaf.dtype.kind == "f"} == {np.dtype(np.float64)}


def test_empty_slot_is_nobody(name):
    """What stands in a masked slot has no effect, and its client keeps its state bit for bit."""
    timeline = timeline_of(name)
    mask = np.asarray(timeline.mask)
    assert not mask[0].all()
    clients, steps = np.array(timeline.clients), np.array(timeline.num_steps)
    for t, s in zip(*np.nonzero(~mask), strict=True):
        clients[t, s] = (clients[t, s] + 3) % NUM_CLIENTS  # may even be another slot's client
        steps[t, s] = 0
    other = dataclasses.replace(
        timeline, clients=jnp.asarray(clients), num_steps=jnp.asarray(steps)
    )
    assert_identical(trained(name, other), trained(name))

    later = jnp.arange(timeline.num_rounds)[:, None] > 0
    only_first = dataclasses.replace(timeline, mask=timeline.mask & ~later)
    absent = np.setdiff1d(np.arange(NUM_CLIENTS), timeline.clients[0][timeline.mask[0]])
    state = trained(name, only_first)
    start = fs.init(algorithm(name, hyper(name)), logistic_task(), timeline, logistic_params())
    assert_identical(rows_of(state.clients, absent), rows_of(start.clients, absent))


def rows_of(clients, rows):
    return jax.tree.map(lambda x: x[rows], clients)


def test_rounds_without_reports_change_nothing(name):
    timeline = timeline_of(name)
    before = trained(name)
    nobody = dataclasses.replace(timeline[:2], mask=jnp.zeros_like(timeline.mask[:2]))
    after = advancing(name)(hyper(name), logistic_task(), nobody, before, jax.random.key(2))
    assert int(after.round) == int(before.round) + 2
    # The server broadcasts nonetheless.
    assert_identical(after._replace(round=before.round, past=before.past), before)


def test_visit_of_no_steps_leaves_no_trace(name):
    """Its upload is zero and its state stays, wherever server and client are."""
    if name in CONTACTS:
        pytest.skip("averages the model that the client holds, with or without steps")
    alg, state, task = algorithm(name, hyper(name)), trained(name), exact_task()
    client_state = rows_of(state.clients, 1)

    @compiled
    def visit(state, client_state, task):
        round = fs.Round(jnp.array(4), jnp.array(1), NUM_CLIENTS, jax.random.key(0))
        message = alg.broadcast(state.server, round)
        zero = jnp.array(0)
        work = fs.Work(zero + 4, zero + 1, zero, zero + 9, zero, jax.random.key(1), max_steps=3)
        return alg.local(message, client_state, task.oracle(1, jax.random.key(2), 8), work)

    upload, new_state = visit(state, client_state, task)
    assert_identical(upload, jax.tree.map(jnp.zeros_like, upload))
    assert_identical(new_state, client_state)


def test_continued_run_equals_uninterrupted(name):
    timeline, task, values = timeline_of(name), logistic_task(), hyper(name)
    state = fs.init(algorithm(name, values), task, timeline, logistic_params())
    for part in (timeline[:2], timeline[2:]):
        state = advancing(name)(values, task, part, state, jax.random.key(2))
    assert_identical(state, trained(name))
