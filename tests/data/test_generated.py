"""Generated clients: the same results as with stored examples, and no array of their number."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_problems import assert_identical

import fedjax_sim as fs
from fedjax_sim.engine.execution import sequential, vmapped
from fedjax_sim.runs.storage.identity import arrays_digest
from fedjax_sim.runs.storage.run_functions import trace_run
from fedjax_sim.tree.repeated import Repeated

KEY = jax.random.key(3)
MANY, FEW, ROWS = 10**8, 12, 6


def generate(client, key):
    x = jax.random.normal(key, (ROWS, 3), jnp.float32)
    return {"x": x, "y": x.sum(1) + (client % 3).astype(jnp.float32)}


def losses(params, batch, key):
    del key
    return (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2


PARAMS = {"w": jnp.ones(3, jnp.float32), "b": jnp.float32(0)}


def generated(batches, num_clients=FEW) -> fs.Task:
    return fs.generated_task(losses, generate, num_clients, batches, key=KEY)


def stored(batches) -> fs.Task:
    data = fs.generated_data(generate, np.arange(FEW), key=KEY)
    return fs.empirical_task(losses, data, batches)


def lowered(function, *arguments) -> str:
    return jax.jit(function).lower(*arguments).as_text()


def test_examples_follow_from_the_key_and_the_number_of_the_client():
    data = fs.generated_data(generate, np.array([7, 2]), key=KEY)
    own = [generate(jnp.int32(i), jax.random.fold_in(KEY, i)) for i in (7, 2)]
    both = jax.tree.map(lambda *x: np.concatenate(x), *own)
    # A compiled sum of a row may round in another order.
    np.testing.assert_array_equal(data.examples["x"], both["x"])
    np.testing.assert_allclose(data.examples["y"], both["y"], 0, 1e-6)
    task = generated(fs.full_batch(1))
    params = {"w": jnp.arange(3.0), "b": jnp.float32(0.5)}  # not the ones that the labels follow
    loss = jax.jit(lambda task: task.oracle(7, KEY, 1).full_loss(params))(task)
    np.testing.assert_allclose(loss, losses(params, own[0], KEY).mean(), 1e-6)


@pytest.mark.slow
def test_an_oracle_is_that_of_the_stored_examples():
    batches = fs.epochs(2, batch_size=4)

    @jax.jit
    def values(task):
        oracle = task.oracle(7, jax.random.key(1), 4)
        return (
            [oracle.grad(PARAMS, step) for step in (0, 3)],
            oracle.full_grad(PARAMS),
            oracle.full_loss(PARAMS),
        )

    one, same = generated(batches), stored(batches)
    assert_identical(jax.tree.leaves(values(one)), jax.tree.leaves(values(same)))
    for name in ("num_examples", "num_steps"):
        mine, other = (np.asarray(getattr(task, name)) for task in (one, same))
        np.testing.assert_array_equal(mine, other, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "execution", "to_the_bit"),
    [(fs.scaffold(0.1), sequential(), True), (fs.fedavg(0.1), vmapped(), False)],
)
def test_a_run_is_that_on_the_stored_examples(algorithm, execution, to_the_bit):
    """Vmapped products may sum in another order."""
    batches = fs.epochs(2, batch_size=4)
    one, same = generated(batches), stored(batches)
    timeline = fs.timelines.uniform(KEY, 5, FEW, 4, one.num_steps)

    @jax.jit
    def run(task):
        setup = fs.Setup(task, timeline, PARAMS, weighting=fs.weight_by_examples)
        return fs.run(algorithm, setup, KEY, execution=execution)[0]

    states = [jax.tree.leaves((x.server, x.clients)) for x in (run(one), run(same))]
    if to_the_bit:
        assert_identical(*states)
    for x, y in zip(*states, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_weights_of_all_clients_are_known_where_their_numbers_are_traced():
    """SCAFFOLD's control moves by the share of the weights, of clients with equal numbers."""
    task = generated(fs.epochs(2, batch_size=4))
    timeline = fs.timelines.uniform(KEY, 2, FEW, 4, task.num_steps)

    def run(task):
        setup = fs.Setup(task, timeline, PARAMS, weighting=fs.weight_by_examples)
        return fs.run(fs.scaffold(0.1), setup, KEY)[0].round

    assert jax.eval_shape(run, task).shape == ()


def test_no_array_has_the_length_of_the_population():
    task = generated(fs.epochs(1, ROWS), MANY)
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(task.oracle.args)) < 10
    assert (task.num_clients, len(task.num_examples)) == (MANY, MANY)

    def schedule(key):
        return fs.timelines.uniform(key, 2, MANY, 3, task.num_steps)

    timeline = jax.eval_shape(schedule, KEY)
    timeline = dataclasses.replace(timeline, time=np.arange(2.0))

    def run(task, timeline):
        return fs.run(fs.fedavg(0.1), fs.Setup(task, timeline, PARAMS), KEY)

    for text in (lowered(schedule, KEY), lowered(run, task, timeline)):
        assert f"<{MANY}" not in text
        assert f"x{MANY}" not in text


def test_equal_numbers_of_steps_give_the_same_timeline():
    timelines = [
        fs.timelines.uniform(KEY, 3, FEW, 4, steps)
        for steps in (Repeated(np.int32(5), FEW), np.full(FEW, 5), 5)
    ]
    for timeline in timelines:
        assert_identical(jax.tree.leaves(timeline), jax.tree.leaves(timelines[0]))
        assert timeline.max_steps == 5


@pytest.mark.slow
def test_cohorts_of_many_clients_are_uniform_and_distinct():
    clients = np.asarray(fs.timelines.uniform(KEY, 60, MANY, 1000, 1).clients)
    assert all(len(set(row)) == 1000 for row in clients.tolist())
    counts = np.histogram(clients, bins=50, range=(0, MANY))[0]
    assert counts.sum() == clients.size
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.chisquare(np.bincount(clients.ravel() % 16)).pvalue > 1e-3


def test_held_out_clients_are_others():
    data = fs.generated_data(generate, [2, FEW], key=KEY)
    known = fs.generated_data(generate, np.arange(FEW), key=KEY)
    np.testing.assert_array_equal(data.client(0)["x"], known.client(2)["x"])
    assert not np.isin(data.client(1)["x"], known.examples["x"]).any()


def test_population_and_key_identify_a_task():
    def objective(task):
        setup = fs.Setup(task, fs.timelines.full(1, FEW, task.num_steps), PARAMS)
        return trace_run(fs.fedavg(0.1), setup, batched=False).objective

    batches = fs.full_batch(1)
    one = generated(batches)
    changed = fs.generated_task(losses, lambda *x: generate(*x), FEW, batches, key=KEY)
    assert objective(one) == objective(changed)
    changed = fs.generated_task(losses, doubled, FEW, batches, key=KEY)
    assert objective(one) != objective(changed)
    other = fs.generated_task(losses, generate, FEW, batches, key=jax.random.key(4))
    assert objective(one) == objective(other)
    assert arrays_digest(one.oracle) != arrays_digest(other.oracle)


def doubled(client, key):
    return jax.tree.map(lambda x: 2 * x, generate(client, key))


@pytest.mark.parametrize(
    ("generate", "num_clients", "message"),
    [
        (generate, 0, "num_clients is 0; expected 1 .. 2147483647"),
        (generate, 2**31, "num_clients is 2147483648"),
        (lambda client, key: client, 3, r"generate returns arrays of shapes \[\(\)\]"),
        (lambda client, key: (jnp.ones(2), jnp.ones((3, 1))), 3, r"one n >= 1 for all"),
        (lambda client, key: jnp.ones((0, 1)), 3, "one n >= 1"),
        (lambda client, key: {}, 3, r"shapes \[\]; expected \[n, ...\]"),
        (
            lambda client: jnp.ones((2, 1)),
            3,
            r"generate takes \(client\); expected \(client, key\)",
        ),
        (
            lambda client, key: client["x"],
            3,
            r"generate fails for a client and a key \(TypeError: ",
        ),
    ],
)
def test_generated_tasks_that_are_none(generate, num_clients, message):
    with pytest.raises(ValueError, match=message):
        fs.generated_task(losses, generate, num_clients, fs.full_batch(1), key=KEY)


@pytest.mark.parametrize(
    ("objective", "y", "message"),
    [
        (fs.objectives.cross_entropy, jnp.array([1, 2]), "labels 1 .. 2; expected 0 .. 1"),
        (
            fs.objectives.squared_error,
            np.full((2, 2), np.nan, np.float32),
            r"\['y'\] has nan in example 0 of",
        ),
    ],
)
def test_generated_examples_that_do_not_fit_are_refused(objective, y, message):
    task = fs.generated_task(
        objective(lambda w, x: x @ w),
        lambda client, key: {"x": jnp.ones((2, 3)), "y": y},
        FEW,
        fs.full_batch(1),
        key=KEY,
    )
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), fs.Setup(task, fs.timelines.full(1, FEW, 1), jnp.ones((3, 2))), KEY)


def test_objectives_that_do_not_fit_are_refused():
    task = generated(fs.full_batch(1))
    timeline = fs.timelines.full(1, FEW, 1)
    with pytest.raises(ValueError, match="objective fails for parameters"):
        fs.run(fs.fedavg(0.1), fs.Setup(task, timeline, {"w": jnp.ones(2), "b": 0.0}), KEY)
    mean = fs.generated_task(lambda *x: losses(*x).mean(), generate, FEW, fs.epochs(1, 2), key=KEY)
    with pytest.raises(ValueError, match=r"of shape \(\) for 2 examples; expected \(2,\)"):
        fs.run(fs.fedavg(0.1), fs.Setup(mean, timeline, PARAMS), KEY)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], r"clients has shape \(0,\); expected \[m\]"),
        ([0, 2**31], r"clients has numbers 0 .. 2147483648; expected 0 .. 2147483647"),
        ([-1, 3], r"clients has numbers -1 .. 3; expected 0 .. 2147483647"),
        ([0.5], "clients has dtype float64; expected integers"),
    ],
)
def test_clients_without_a_number_are_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        fs.generated_data(generate, clients, key=KEY)
