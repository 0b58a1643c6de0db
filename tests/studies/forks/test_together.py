"""All alternatives in one program, beside the same alternatives one by one."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.forks import together
from fedjax_sim.timelines import lose_uploads_of, remove_clients

ROUNDS, AT, SEEDS = 6, 4, 3
KEYS = jax.random.split(jax.random.key(0), SEEDS)


def oracle(client, key, max_steps):
    """F_i(x) = |x - i|^2 / 2 with noise that is drawn per visit."""
    del max_steps
    noise = jax.random.normal(key, ()) / 10

    def grad(x, step):
        del step
        return x - client.astype(x.dtype) + noise

    return fs.Oracle(grad, lambda x, step: x.sum() ** 2, lambda x: grad(x, 0))


def setup_of(shape=(), steps=2):
    """Three clients; with a model of four axes the runs take turns on a CPU."""
    task = fs.Task(oracle, np.ones(3, np.int32), np.full(3, steps))
    timeline = fs.timelines.full(ROUNDS, 3, steps)
    params = np.zeros((SEEDS, *shape), np.float32)
    return fs.Setup(task, timeline, params, lambda x: {"x": x.sum()}, eval_every=2)


def begun(algorithm, setup):
    return fs.simulate(algorithm, dataclasses.replace(setup, timeline=setup.timeline[:AT]), KEYS)


ALTERNATIVES = {
    "same": fs.Alternative(fs.scaffold, numbers={"lr": 0.1}),
    "slower": fs.Alternative(fs.scaffold, numbers={"lr": 0.05}),
    "without 2": fs.Alternative(
        fs.scaffold, lambda rest: remove_clients(rest, 2), numbers={"lr": 0.1}
    ),
    "lost 2": fs.Alternative(fs.scaffold(0.1), lambda rest: lose_uploads_of(rest, 2)),
    "fedadam": fs.Alternative(fs.fedadam(0.1, 0.5), restart=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (1, 1, 1, 2)], ids=["vmapped", "in turn"])
def test_results_are_those_of_separate_programs(shape):
    setup = setup_of(shape)
    start = begun(fs.scaffold(0.1), setup)
    apart = fs.fork(start, ALTERNATIVES, setup, KEYS)
    joined = fs.fork(start, ALTERNATIVES, setup, KEYS, one_program=True)
    assert list(joined.histories) == list(apart.histories)
    # One more axis changes the order of sums of three uploads: a few units in the last place.
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-6, atol=2e-6),
        (joined.histories, joined.states),
        (apart.histories, apart.states),
    )
    assert joined.histories["same"].round.tolist() == [[AT, ROUNDS]] * SEEDS
    slower = joined.differences("x").set_index(["alternative", "round"])["mean"]
    assert slower["slower", ROUNDS] != 0


@pytest.mark.slow
def test_rates_and_timelines_are_one_group():
    """The function is traced for all of them together, and the program is one."""
    setup, traced = setup_of(), []

    def factory(lr):
        traced.append(lr)
        return fs.fedavg(lr)

    start = begun(fs.fedavg(0.1), setup)
    many = {
        f"{lr} {client}": fs.Alternative(
            factory, lambda rest, i=client: remove_clients(rest, i), numbers={"lr": lr}
        )
        for lr in (0.1, 0.2, 0.3)
        for client in range(3)
    }
    result = fs.fork(start, many, setup, KEYS, one_program=True)
    # In the program, and in the traces of the first state, a round and an evaluation.
    assert sum(isinstance(lr, jax.core.Tracer) for lr in traced) == 4
    last = {name: history.metrics["x"][:, -1] for name, history in result.histories.items()}
    assert len({tuple(map(float, values)) for values in last.values()}) == 9


@pytest.mark.slow
def test_one_key_without_evaluation():
    setup = dataclasses.replace(setup_of(), params=np.float32(0), eval_fn=None)
    begin = dataclasses.replace(setup, timeline=setup.timeline[:AT])
    start = fs.simulate(fs.fedavg(0.1), begin, KEYS[0]).state
    alternatives = {"same": fs.fedavg(0.1), "prox": fs.fedprox(0.1, mu=1.0)}
    apart = fs.fork(start, alternatives, setup, KEYS[0])
    joined = fs.fork(start, alternatives, setup, KEYS[0], one_program=True)
    for name in alternatives:
        x, y = (float(of.states[name].server.params) for of in (joined, apart))
        np.testing.assert_allclose(x, y, rtol=2e-6)
        assert int(joined.states[name].round) == ROUNDS
    assert joined.histories["same"].metrics == {}


def test_groups():
    """Equal functions, names of numbers and shapes; not equal values."""
    setup = setup_of()
    state = fs.RunState(np.zeros(SEEDS), np.zeros(SEEDS), (), (), np.zeros(SEEDS))
    other = dataclasses.replace(setup, timeline=setup.timeline[:2])

    def member(factory, setup=setup, **numbers):
        return together.Continuation(factory, numbers, setup, state, setup.timeline[:1])

    parts = {
        "a": member(fs.fedavg, lr=0.1),
        "b": member(fs.fedavg, lr=0.2),
        "c": member(fs.fedprox, lr=0.1, mu=1.0),
        "d": member(fs.fedavg, other, lr=0.1),
    }
    assert [list(group) for group in together._alike(parts, batched=True)] == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]


@pytest.mark.parametrize(
    ("alternative", "message"),
    [
        (fs.Alternative(fs.fedavg(0.1), numbers={"lr": 0.1}), "an algorithm that has its own"),
        (fs.Alternative(fs.fedavg, numbers={"rate": 0.1}), r"has numbers \['rate'\]"),
        (fs.Alternative(fs.scaffold), r"has numbers \[\]"),
        (fs.Alternative(0.1), "is 0.1; expected an algorithm"),  # pyright: ignore
    ],
)
def test_refused(alternative, message):
    setup = setup_of()
    state = fs.RunState(np.full(SEEDS, AT), fs.fedavg(0.1), (), (), np.zeros(SEEDS))
    with pytest.raises(ValueError, match=message):
        fs.fork(state, {"a": alternative}, setup, KEYS)  # pyright: ignore
