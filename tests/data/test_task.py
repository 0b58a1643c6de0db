"""The empirical task: losses and gradients against NumPy, for ragged and empty clients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    assert_close,
    logistic_data,
    logistic_losses,
    logistic_params,
    logistic_task,
)

import fedjax_sim as fs
from fedjax_sim.data.task import weighted_mean


def numpy_losses(examples):
    params = logistic_params()
    z = examples["x"] @ np.asarray(params["w"]) + np.asarray(params["b"])
    return np.log1p(np.exp(z)) - examples["y"] * z


def numpy_gradient(examples):
    """Gradient of the mean loss, in NumPy."""
    params = logistic_params()
    z = examples["x"] @ np.asarray(params["w"]) + np.asarray(params["b"])
    residuals = 1 / (1 + np.exp(-z)) - examples["y"]
    return {"w": residuals @ examples["x"] / len(z), "b": residuals.mean()}


def test_sizes_and_steps():
    task = logistic_task(fs.epochs(2, 4))
    assert task.num_clients == NUM_CLIENTS
    np.testing.assert_array_equal(task.num_examples, SIZES)
    np.testing.assert_array_equal(task.num_steps, 2 * np.ceil(SIZES / 4))


@pytest.mark.slow
@pytest.mark.parametrize("client", range(NUM_CLIENTS))
def test_full_batch_is_the_mean_over_the_client(x64, client):
    oracle = logistic_task(fs.full_batch(1)).oracle(jnp.array(client), jax.random.key(0), 8)
    examples = logistic_data().client(client)
    # Fewer than ten terms a sum, in double precision.
    assert_close(oracle.loss(logistic_params(), 0), numpy_losses(examples).mean(), 1e-14)
    assert_close(oracle.grad(logistic_params(), 0), numpy_gradient(examples), 1e-13)


@pytest.mark.slow
def test_short_last_batch_is_the_mean_over_its_examples(x64):
    """5 examples by 4: the second minibatch is one example, not that example and fillers."""
    oracle = logistic_task(fs.epochs(1, 4)).oracle(jnp.array(3), jax.random.key(0), 8)
    losses = numpy_losses(logistic_data().client(3))
    batch_losses = [float(oracle.loss(logistic_params(), k)) for k in (0, 1)]
    lonely = np.argmin(np.abs(losses - batch_losses[1]))
    np.testing.assert_allclose(batch_losses[1], losses[lonely], rtol=1e-14)
    np.testing.assert_allclose(batch_losses[0], np.delete(losses, lonely).mean(), rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 2, 4, 9, 256])
def test_full_gradient_and_loss_in_blocks(x64, block):
    """Blocks that do and that do not divide the sizes, and clients smaller than one block."""
    task = fs.empirical_task(
        logistic_losses, logistic_data(), fs.epochs(1, 2), full_grad_batch=block
    )

    def both(client):
        oracle = task.oracle(client, jax.random.key(0), 8)
        return oracle.full_grad(logistic_params()), oracle.full_loss(logistic_params())

    gradients, losses = jax.jit(jax.vmap(both))(jnp.arange(NUM_CLIENTS))
    clients = [logistic_data().client(i) for i in range(NUM_CLIENTS)]
    expected = [numpy_gradient(client) for client in clients]
    assert_close(gradients, jax.tree.map(lambda *x: np.stack(x), *expected), 1e-13)
    means = [logistic_losses(logistic_params(), client, None).mean() for client in clients]
    np.testing.assert_allclose(losses, means, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [fs.epochs(2, 2), fs.full_batch(1), fs.with_replacement(2, 3)])
def test_client_without_examples_has_gradient_zero(batches):
    data = fs.from_clients([{"x": np.ones((n, 3)), "y": np.ones(n)} for n in (2, 0, 3)])
    task = fs.empirical_task(logistic_losses, data, batches)
    oracle = task.oracle(jnp.array(1), jax.random.key(0), 8)
    assert task.num_steps[1] == 0
    for gradient in (oracle.grad(logistic_params(), 0), oracle.full_grad(logistic_params())):
        assert_close(gradient, jax.tree.map(jnp.zeros_like, logistic_params()), 0)
    assert float(oracle.loss(logistic_params(), 0)) == 0
    assert float(oracle.full_loss(logistic_params())) == 0


def classifier(objective, labels, num_outputs=3):
    """A setup of a linear model on four examples of two clients."""
    data = fs.FederatedData({"x": np.eye(4, dtype=np.float32), "y": labels}, np.array([0, 1, 4]))
    task = fs.empirical_task(objective, data, fs.epochs(1, 2))
    timeline = fs.timelines.full(1, 2, task.num_steps)
    return fs.Setup(task, timeline, np.zeros((4, num_outputs), np.float32))


LINEAR = fs.objectives.cross_entropy(lambda w, x: x @ w)
REGULAR = fs.objectives.with_l2(LINEAR, 0.1)
NOISY = fs.objectives.keyed(fs.objectives.cross_entropy, lambda w, x, key: x @ w)
LOGISTIC = fs.objectives.binary_cross_entropy(lambda w, x: (x @ w)[:, 0])


@pytest.mark.parametrize(
    ("objective", "labels", "outputs", "message"),
    [
        (LINEAR, [1, 2, 3, 3], 3, r"labels 1 .. 3; expected 0 .. 2, .* outputs .* have shape \(3,"),
        (NOISY, [0, -1, 0, 1], 3, r"labels -1 .. 1; expected 0 .. 2"),
        (REGULAR, [0, 3, 0, 1], 3, r"labels 0 .. 3; expected 0 .. 2"),
        (LINEAR, [0, 1, 1, 0], 1, r"labels 0 .. 1; expected 0 .. 0, .* have shape \(1,\)"),
        (LOGISTIC, [-1, 1, 1, -1], 1, r"labels -1 .. 1; expected 0 .. 1"),
        (
            lambda w, batch, key: LINEAR(w, batch, key).mean(),
            [0, 1, 2, 0],
            3,
            r"objective returns an array of shape \(\) for 2 examples; expected \(2,\), one loss",
        ),
        (
            lambda w, batch, key: (LINEAR(w, batch, key), {}),
            [0, 1, 2, 0],
            3,
            r"objective returns a tuple for 2 examples; expected \(2,\), one loss",
        ),
        (LOGISTIC, [-1.0, 1.0, 1.0, -1.0], 1, r"labels -1\.0 .. 1\.0; expected 0 .. 1"),
        (
            lambda w, batch, key: (batch["x"] @ w).mean(0),  # over the examples; as many classes
            [0, 1, 1, 0],
            2,
            r"objective returns an array of shape \(2,\) for 3 examples; expected \(3,\), one loss",
        ),
        (
            lambda w, batch, key: LINEAR(w, batch, key).round().astype(int),
            [0, 1, 2, 0],
            3,
            "objective returns losses of dtype int32; expected a floating dtype, which has grad",
        ),
        (
            lambda w, batch, key: jax.lax.complex(*2 * [LINEAR(w, batch, key)]),
            [0, 1, 2, 0],
            3,
            "objective returns losses of dtype complex64; expected a floating dtype",
        ),
        (
            lambda w, batch, key: batch["inputs"] @ w,
            [0, 1, 2, 0],
            3,
            r"objective fails for parameters .* examples .* \(KeyError: 'inputs'\); expected a fun",
        ),
        (
            fs.objectives.cross_entropy(lambda w, x: x.flat_view @ w),
            [0, 1, 2, 0],
            3,
            r"model fails for parameters \. float32\[4, 3\] and inputs .* \(AttributeError: .*from",
        ),
    ],
)
def test_labels_and_losses_that_do_not_fit_are_refused(objective, labels, outputs, message):
    dtype = np.float32 if isinstance(labels[0], float) else np.int32
    setup = classifier(objective, np.array(labels, dtype), outputs)
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedavg(0.1), setup, jax.random.key(0))
    with pytest.raises(ValueError, match=message):
        fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0))
    one = dataclasses.replace(setup, params=setup.params[None])
    with pytest.raises(ValueError, match=message):
        fs.sweep(fs.fedavg, one, {"lr": [0.1]}, jax.random.split(jax.random.key(0), 1))


@pytest.mark.slow
def test_probabilities_and_fitting_labels_are_accepted():
    for objective, labels, outputs in [
        (LINEAR, np.array([0, 1, 2, 2], np.int32), 3),
        (LOGISTIC, np.array([0.2, 0.5, 0, 1], np.float32), 1),
    ]:
        setup = classifier(objective, labels, outputs)
        state, _ = fs.run(fs.fedavg(0.1), setup, jax.random.key(0))
        assert np.isfinite(state.server.params).all()


def test_objective_gets_a_fresh_key_every_step():
    data = logistic_data()

    def noise(params, examples, key):
        return params["b"] + jax.random.normal(key, examples["y"].shape)

    def losses(client_key, steps=(0, 1, 0)):
        oracle = fs.empirical_task(noise, data, fs.full_batch(2)).oracle(
            jnp.array(1), client_key, 8
        )
        return [float(oracle.loss(logistic_params(), k)) for k in steps]

    first, second, again = losses(jax.random.key(0))
    assert first == again
    assert len({first, second, *losses(jax.random.key(1))}) == 4


def test_blocks_of_a_full_loss_have_keys_of_their_own():
    """Row r of client i has weight 1 where r // 2 == i, so client i sees block i of its 5 rows."""
    weights = (np.arange(5)[None] // 2 == np.arange(2)[:, None]).astype(np.float32)
    data = fs.from_clients([{"weight": row} for row in weights])

    def draw(params, examples, key):
        return params * jax.random.uniform(key) * examples["weight"]

    task = fs.empirical_task(draw, data, fs.full_batch(1), full_grad_batch=2)
    key = jax.random.key(0)
    losses = [5 / 2 * task.oracle(jnp.array(i), key, 1).full_loss(jnp.array(1.0)) for i in (0, 1)]
    assert 0 < losses[0] < 1  # the sixth row, of no example, counts nothing
    assert 0 < losses[1] < 1
    assert losses[0] != losses[1]


def test_integer_leaves_stay_integers():
    """Images are kept as uint8 until the objective uses them."""
    seen = []

    def objective(params, examples, key):
        seen.append(examples["image"].dtype)
        return params * examples["image"].astype(jnp.float32).sum(axis=1)

    data = fs.FederatedData({"image": np.full((3, 2), 200, np.uint8)}, np.array([0, 1, 3]))
    oracle = fs.empirical_task(objective, data, fs.full_batch(1)).oracle(
        jnp.array(1), jax.random.key(0), 8
    )
    assert float(oracle.grad(jnp.array(1.0), 0)) == 400
    assert set(seen) == {jnp.dtype(jnp.uint8)}


def test_task_is_a_pytree_that_carries_its_data():
    """Passed to jit as an argument, the data are inputs of the program, not constants in it."""
    task = logistic_task()
    arrays = jax.tree.leaves(task)
    rows = sum(SIZES)
    assert (rows, 3) in {array.shape for array in arrays}

    @functools.partial(jax.jit)
    def loss(task):
        return task.oracle(2, jax.random.key(0), 8).loss(logistic_params(), 0)

    constants = jax.make_jaxpr(loss)(task).consts
    assert all(np.size(constant) < rows for constant in constants)
    moved = jax.tree.map(lambda x: x, task)
    assert float(loss(moved)) == float(loss(task))


def test_task_built_anew_does_not_compile_anew():
    """Equal rules are the same object, so the static parts of equal tasks are equal."""

    def structure(batches):
        return jax.tree.structure(logistic_task(batches))

    assert structure(fs.epochs(2, 3)) == structure(fs.epochs(2, 3))
    assert structure(fs.with_replacement(2, 3)) == structure(fs.with_replacement(2, 3))
    assert structure(fs.full_batch(3)) == structure(fs.full_batch(3))
    assert structure(fs.epochs(2, 3)) != structure(fs.epochs(3, 3))


FIVE, ASCENDING = {"x": np.zeros((5, 2))}, "expected non-decreasing numbers from 0"


@pytest.mark.parametrize(
    ("examples", "offsets", "options", "message"),
    [
        (FIVE, [1, 2, 5], {}, ASCENDING),
        (FIVE, [0, 3, 2, 5], {}, ASCENDING),
        (FIVE, [0], {}, ASCENDING),
        (FIVE, [[0, 5]], {}, ASCENDING),
        (FIVE, 5, {}, ASCENDING),
        (
            FIVE | {"n": np.float32(5)},
            [0, 5],
            {},
            r"examples\['n'\] is a float32 of shape \(\); exp",
        ),
        (
            FIVE | {"y": pd.Series([0] * 5)},
            [0, 5],
            {},
            r"\['y'\] is a Series .*; expected an array",
        ),
        (FIVE, [0, 2, 4], {}, r"leaves of lengths \[5\]; expected 4, the last offset"),
        (FIVE, [0, 2, 6], {}, r"leaves of lengths \[5\]; expected 6, the last offset"),
        (FIVE | {"y": np.zeros(4)}, [0, 5], {}, r"leaves of lengths \[4, 5\]; expected 5"),
        (FIVE, [0, 2, 5], {"client_ids": ("ann",)}, "client_ids has 1 names; expected 2, one per"),
        ({"x": np.ones((0, 2))}, [0, 0, 0], {}, "data has 2 clients without examples; expected at"),
        # 2^30 epochs of 5 examples, one by one; 32 bits would make them negative.
        (FIVE, [0, 5], {"batches": fs.epochs(2**30, 1)}, "5368709120; expected at most 2147483647"),
    ],
)
def test_refuses_data_that_do_not_fit(examples, offsets, options, message):
    data = fs.FederatedData(examples, np.array(offsets), options.get("client_ids"))
    with pytest.raises(ValueError, match=message):
        fs.empirical_task(logistic_losses, data, options.get("batches", fs.full_batch(1)))


@pytest.mark.slow
@pytest.mark.parametrize("batches", [fs.epochs(2, 4), fs.full_batch(3), fs.with_replacement(2, 3)])
def test_client_of_a_shared_task_is_a_client_that_owns_everything(x64, batches):
    examples = logistic_data().examples
    count = len(examples["y"])
    shared = fs.shared_task(logistic_losses, examples, 5, batches, full_grad_batch=4)
    alone = fs.FederatedData(examples, np.array([0, count]))
    alone = fs.empirical_task(logistic_losses, alone, batches, full_grad_batch=4)
    assert shared.num_clients == 5
    np.testing.assert_array_equal(shared.num_examples, [count] * 5)
    np.testing.assert_array_equal(shared.num_steps, list(alone.num_steps) * 5)
    steps = int(alone.num_steps[0])
    for client in range(5):
        mine, its = (
            task.oracle(jnp.array(i), jax.random.key(3), steps)
            for task, i in ((shared, client), (alone, 0))
        )
        for step in (0, 1, steps - 1):
            # The draws and rows are equal; constants replace arrays.
            assert_close(
                mine.grad(logistic_params(), step), its.grad(logistic_params(), step), 1e-15
            )
        assert_close(mine.full_grad(logistic_params()), numpy_gradient(examples), 1e-13)


def test_shared_task_holds_the_examples_once():
    examples = {"x": np.ones((7, 3), np.float32), "y": np.ones(7, np.float32)}
    task = fs.shared_task(logistic_losses, examples, 1000, fs.full_batch(1))
    sizes = sorted(leaf.nbytes for leaf in jax.tree.leaves(task.oracle))
    assert sizes == [2 * 4, 7 * 4, 7 * 3 * 4]  # offsets, y, x


@pytest.mark.slow
def test_clients_of_a_shared_task_draw_independently():
    """A run with two clients: their minibatches differ, between each other and between steps."""
    rows = jnp.arange(1000)
    task = fs.shared_task(lambda p, batch, key: p[batch], rows, 2, fs.with_replacement(1, 4))
    probe = fs.Probes(client={"row": lambda v: jnp.stack([row(v.oracle, k) for k in range(4)])})

    def row(oracle, step):
        return jnp.argmax(oracle.grad(jnp.zeros(1000), step))  # losses are coordinates

    timeline = fs.timelines.full(2, 2, task.num_steps)
    _, history = fs.run(
        fs.fedsgd(0.0), fs.Setup(task, timeline, jnp.zeros(1000)), jax.random.key(0), probes=probe
    )
    drawn = np.asarray(history.probes["row"])
    assert drawn.shape == (2, 2, 4)
    # 16 draws of 1,000: one repetition has probability 11 %, more than two of them 0.03 %.
    assert len(np.unique(drawn)) >= 14


@pytest.mark.parametrize(
    ("examples", "clients", "message"),
    [
        ({"x": np.ones((2, 1))}, 0, "num_clients is 0; expected at least 1"),
        ({"x": np.ones((2, 1)), "y": np.ones(3)}, 4, r"examples has leaves of lengths \[2, 3\]"),
        ({"x": np.ones((0, 1))}, 4, r"examples has leaves of lengths \[0\]"),
        ({}, 4, "examples has no arrays; expected some"),
        ({"x": np.float32(1)}, 4, "examples has a leaf that is one number"),
        ({"x": np.array(["cat", "dog"])}, 4, r"examples\['x'\] has dtype <U3; expected numbers"),
    ],
)
def test_shared_task_refuses(examples, clients, message):
    with pytest.raises(ValueError, match=message):
        fs.shared_task(logistic_losses, examples, clients, fs.full_batch(1))


def test_long_sums_of_half_precision_models():
    """512 blocks of equal values; in bfloat16 the sum would end at 256 of them."""
    examples = {"x": np.ones(1024, np.float32)}
    task = fs.shared_task(
        lambda w, batch, key: w * batch["x"].astype(w.dtype),
        examples,
        1,
        fs.full_batch(1),
        full_grad_batch=2,
    )
    oracle = task.oracle(jnp.array(0), jax.random.key(0), 1)
    one = jnp.ones((), jnp.bfloat16)
    for value in (oracle.full_loss(one), oracle.full_grad(one)):
        assert value.dtype == one.dtype
        assert float(value) == 1


def test_weighted_mean():
    values, weights = jnp.array([1.0, 2.0, 6.0]), jnp.array([1.0, 3.0, 0.0])
    assert float(weighted_mean(values, weights)) == 1.75
    assert float(weighted_mean(values, jnp.zeros(3))) == 0
    # A weight of 0 must not let an infinite loss through the derivative either.
    assert np.isfinite(jax.grad(weighted_mean)(values, jnp.zeros(3))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "mse"}, "objective is 'mse'; expected a function"),
        ({"data": {"x": np.ones(3)}}, "data is a dict; expected FederatedData"),
        ({"batches": 20}, "batches is 20; expected a minibatch rule, such as fs.epochs"),
        ({"batches": fs.epochs}, "batches is .*; expected a minibatch rule"),
        (
            {"objective": lambda w, b: b["x"]},
            r"objective takes \(w, b\); expected \(params, exampl",
        ),
    ],
)
def test_arguments_of_other_kinds_are_refused(change, message):
    data = fs.FederatedData({"x": np.ones(3)}, np.array([0, 1, 3]))
    good = {"objective": lambda w, b, key: b["x"] * w, "data": data, "batches": fs.full_batch(1)}
    with pytest.raises(ValueError, match=message):
        fs.empirical_task(**good | change)
