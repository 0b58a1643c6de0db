"""Lost and late uploads: coupled draws, what reaches the server, client states, refusals."""

import dataclasses
import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from small_problems import (
    COUNT_ROUNDS,
    assert_close,
    compiled,
    execute,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim.timelines import delay_uploads, lose_uploads

KEY = jax.random.key(3)
NUM_CLIENTS, NUM_ROUNDS = 5, 6
probabilities = st.lists(st.floats(0, 1, width=32), min_size=NUM_CLIENTS, max_size=NUM_CLIENTS)


@functools.cache
def rounds():
    return fs.timelines.full(NUM_ROUNDS, NUM_CLIENTS, num_steps=2)


@jax.jit
def failed(probability, clients):
    timeline = dataclasses.replace(rounds(), clients=clients)
    lost = lose_uploads(KEY, timeline, probability).lost
    late = delay_uploads(KEY, timeline, probability, delay=2)
    return lost, late.version


@settings(max_examples=30)
@given(probabilities, probabilities, st.permutations(range(NUM_CLIENTS)))
def test_failures_are_coupled(some, more, order):
    """More reports fail at a larger probability; a report's fate is that of its client."""
    more = np.maximum(some, more).astype(np.float32)
    some = np.asarray(some, np.float32)
    clients = np.asarray(rounds().clients)
    few, version = map(np.asarray, failed(some, clients))
    many, _ = map(np.asarray, failed(more, clients))
    assert (few <= many).all()
    assert not few[:, some == 0].any()
    assert few[:, some == 1].all()
    number = np.arange(NUM_ROUNDS)[:, None]
    np.testing.assert_array_equal(version, np.where(few, np.maximum(number - 2, 0), number))
    permuted, _ = failed(some, clients[:, order])
    np.testing.assert_array_equal(permuted, few[:, order])


@pytest.mark.slow
def test_frequencies_and_prefix():
    many = fs.timelines.full(1000, 3, num_steps=1)
    lost = np.asarray(lose_uploads(KEY, many, np.array([0.1, 0.5, 0.9])).lost)
    # Four standard deviations of the mean of 1,000 independent draws.
    bound = 4 * np.sqrt(np.array([0.09, 0.25, 0.09]) / 1000)
    assert (np.abs(lost.mean(axis=0) - [0.1, 0.5, 0.9]) < bound).all()
    assert abs(np.corrcoef(lost[1:, 1], lost[:-1, 1])[0, 1]) < 4 / np.sqrt(1000)
    np.testing.assert_array_equal(lose_uploads(KEY, many[:50], 0.5).lost[:, 1], lost[:50, 1])


def test_lost_uploads_leave_the_work():
    """The server counts rounds in which an upload arrives, clients count their visits."""
    mask = np.array([[True, True, False], [True, True, True], [False, False, False], [True] * 3])
    lost = np.array([[True, False, True], [True, True, True], [False, True, False], [False] * 3])
    timeline = dataclasses.replace(fs.timelines.full(4, 3, 1), mask=mask, lost=lost)
    probe = {"uploads": lambda update: update.round.num_uploads}
    state, history = execute(COUNT_ROUNDS, timeline, probes=fs.Probes(server=probe))
    assert float(state.server.params) == 2  # rounds 0 and 3
    np.testing.assert_array_equal(state.clients[:3], mask.sum(axis=0))
    assert history.probes["uploads"].tolist() == [1, 0, 0, 3]
    np.testing.assert_array_equal(timeline.arrived, mask & ~lost)


@functools.cache
def quadratics():
    return random_quadratics(NUM_CLIENTS, 2)


def final(algorithm, timeline, execution=None):
    task = quadratic_task(*quadratics(), num_steps=2)

    @compiled
    def go(task, timeline):
        setup = fs.Setup(task, timeline, jnp.array([1.0, -2.0]))
        return fs.run(algorithm, setup, KEY, execution=execution)[0]

    return go(task, timeline)


EXECUTIONS = {
    "sequential": fs.execution.strategies.sequential,
    "chunked": lambda: fs.execution.strategies.chunked(2),
    "sharded": lambda: fs.execution.strategies.sharded(
        jax.make_mesh((2,), ("clients",), devices=jax.devices()[:2])
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [bool, jnp.bfloat16])
def test_probabilities_of_zero_and_one_have_any_dtype(kind):
    """In NumPy booleans are no integers, and bfloat16 no floats."""
    probability = np.array([True, False, False, True, False]).astype(kind)
    timeline = lose_uploads(KEY, rounds(), probability)
    gone = np.isin(timeline.clients, [0, 3])
    np.testing.assert_array_equal(timeline.lost, gone & np.asarray(timeline.mask))


@pytest.mark.parametrize(
    "execution",
    [
        name if name == "sequential" else pytest.param(name, marks=pytest.mark.slow)
        for name in EXECUTIONS
    ],
)
def test_scaffold_with_lost_uploads(x64, execution):
    """In NumPy: every client's control moves, the server's by the uploads that arrive."""
    lr, (hessians, centres) = 0.2, quadratics()
    timeline = lose_uploads(KEY, rounds(), np.array([0.5, 0.5, 0.5, 0.9, 0.0]))
    lost = np.asarray(timeline.lost)
    assert lost.any()
    x, control = np.array([1.0, -2.0]), np.zeros(2)
    controls = np.zeros((NUM_CLIENTS, 2))
    for missing in lost:
        moves, changes = [], []
        for i in range(NUM_CLIENTS):
            y = x
            for _ in range(2):
                y = y - lr * (hessians[i] @ (y - centres[i]) - controls[i] + control)
            new = controls[i] - control + (x - y) / (2 * lr)
            if not missing[i]:
                moves.append(y - x)
                changes.append(new - controls[i])
            controls[i] = new
        x = x + np.mean(moves, axis=0)
        control = control + np.sum(changes, axis=0) / NUM_CLIENTS
    state = final(fs.scaffold(lr, option="II"), timeline, EXECUTIONS[execution]())
    assert_close(state.server.params, x, 1e-12)
    assert_close(state.server.control, control, 1e-12)
    assert not np.allclose(controls.mean(0), control)  # unlike without losses


def test_late_uploads(x64):
    """FedAvg in NumPy: a late client starts from the model of two rounds before."""
    lr, (hessians, centres) = 0.2, quadratics()
    timeline = delay_uploads(KEY, rounds(), 0.5, delay=2)
    late = np.asarray(timeline.version) < np.arange(NUM_ROUNDS)[:, None]
    assert 0 < late.sum() < late.size
    models = [np.array([1.0, -2.0])]
    for t in range(NUM_ROUNDS):
        moves = []
        for i in range(NUM_CLIENTS):
            start = y = models[max(t - 2, 0) if late[t, i] else t]
            for _ in range(2):
                y = y - lr * hessians[i] @ (y - centres[i])
            moves.append(y - start)
        models.append(models[-1] + np.mean(moves, axis=0))
    assert_close(final(fs.fedavg(lr), timeline).server.params, models[-1], 1e-12)
    with pytest.raises(ValueError, match="staleness of up to 2; expected none"):
        final(fs.fedac(0.1, mu=1.0, num_steps=2), timeline)


@pytest.mark.slow
def test_delays_add_up_and_keep_buffers():
    arrivals = fs.timelines.arrivals(
        jax.random.key(0), fs.timelines.deterministic(np.array([1.0, 1.0, 5.0])),
        horizon=12.0, num_clients=3, num_steps=1,
    )  # fmt: skip
    assert arrivals.num_buffers
    once = delay_uploads(KEY, arrivals, 0.5)
    both = delay_uploads(jax.random.key(8), once, 1.0, delay=2)
    assert both.max_staleness == arrivals.max_staleness + 3
    np.testing.assert_array_equal(both.version, np.maximum(np.asarray(once.version) - 2, 0))
    execute(COUNT_ROUNDS, both, task=quadratic_task(np.ones((3, 1, 1)), np.zeros((3, 1)), 1))


@pytest.mark.slow
def test_losses_pass_through_other_transformations():
    lossy = lose_uploads(KEY, rounds(), 0.5)
    again = lose_uploads(jax.random.key(9), lossy, 0.3)
    assert (np.asarray(again.lost) >= np.asarray(lossy.lost)).all()
    twice = fs.timelines.repeat_rounds(lossy, 2)
    np.testing.assert_array_equal(twice.lost, np.repeat(lossy.lost, 2, axis=0))
    batch = fs.timelines.stacked([lossy, again[:4]])
    np.testing.assert_array_equal(batch.lost[1, :4], again.lost[:4])
    arranged = fs.timelines.arrange_by_stratum(lossy, NUM_CLIENTS, 2)
    for old, new in zip(np.asarray(lossy.lost), arranged[:].lost, strict=True):
        assert sorted(old) == sorted(new[np.asarray(arranged.mask[0])])
    with pytest.raises(ValueError, match="expected equal ones"):
        fs.timelines.stacked([lossy, rounds()])


def test_refusals():
    for function in (lose_uploads, delay_uploads):
        for value in (-0.1, 1.5, np.array([0.5, np.nan, 0, 0, 0])):
            with pytest.raises(ValueError, match=r"probability is .*expected numbers in \[0, 1\]"):
                function(KEY, rounds(), value)
        with pytest.raises(ValueError, match="probability has 3 entries; expected one per client"):
            function(KEY, rounds(), np.ones(3))
        with pytest.raises(ValueError, match=r"has shape \(2, 2\); expected one number or \[M\]"):
            function(KEY, rounds(), np.ones((2, 2)))
        with pytest.raises(ValueError, match=r"clients has shape .*expected \[T, S\]"):
            function(KEY, fs.timelines.stacked([rounds()]), 0.5)
    with pytest.raises(ValueError, match="delay is 0"):
        delay_uploads(KEY, rounds(), 0.5, delay=0)
    with pytest.raises(ValueError, match="own_models is True"):
        delay_uploads(KEY, dataclasses.replace(rounds(), own_models=True), 0.5)
    for lost, message in (
        (np.zeros((NUM_ROUNDS, 2), bool), "lost has shape"),
        (np.zeros((NUM_ROUNDS, NUM_CLIENTS)), "lost has dtype float64; expected booleans"),
    ):
        task = quadratic_task(*quadratics(), num_steps=2)
        setup = fs.Setup(task, dataclasses.replace(rounds(), lost=lost), jnp.zeros(2))
        with pytest.raises(ValueError, match=message):
            fs.run(fs.fedavg(0.1), setup, KEY)
    lossy = lose_uploads(KEY, rounds(), 0.5)
    algorithm = fs.marina(fs.fedsgd(0.1), fs.compression.random_k(0.5), 0.5)
    with pytest.raises(ValueError, match="fewer than all 5 clients"):
        fs.init(algorithm, fs.Setup(task, lossy, jnp.zeros(2)))


@pytest.mark.slow
def test_probability_is_a_setting_of_a_sweep():
    """Without losses nothing changes."""
    task = quadratic_task(*quadratics(), num_steps=2)

    def make_setup(loss):
        timeline = lose_uploads(KEY, rounds(), loss)
        return fs.Setup(task, timeline, jnp.array([[1.0, -2.0]]), lambda x: {"norm": (x**2).sum()})

    grid = {"loss": [0.0, 0.3, 0.6], "lr": [0.2]}
    result = fs.sweep(fs.fedavg, make_setup, grid, jax.random.split(KEY, 1))
    frame = result.to_frame()
    last = frame[(frame["round"] == NUM_ROUNDS) & (frame["metric"] == "norm")]
    last = last.set_index("loss")["value"]
    plain = final(fs.fedavg(0.2), rounds()).server.params
    assert last[0.0] == pytest.approx(float((plain**2).sum()), rel=1e-5)
    assert len(set(last)) == 3
