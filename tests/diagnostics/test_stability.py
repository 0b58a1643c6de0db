"""Runs with swapped rows against runs on data sets that were really changed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_problems as problems

import fedjax_sim as fs
from fedjax_sim.diagnostics.stability import neighbours, stability

ROWS = np.array([0, 4, 12, 38])  # of clients 0, 1, 2 (its only example) and 7
RNG = np.random.default_rng(9)
NEW = {"x": RNG.normal(size=(4, problems.NUM_FEATURES)), "y": np.array([1.0, 0.0, 1.0, 1.0])}
TEST = {"x": RNG.normal(size=(6, problems.NUM_FEATURES)), "y": np.array([0.0, 1.0] * 3)}
KEY = jax.random.key(7)


def noisy_losses(params, examples, key):
    """Logistic losses with one random shift per batch, which neighbours must share."""
    shift = 0.3 * jax.random.normal(key, (), jnp.float64)
    return problems.logistic_losses({**params, "b": params["b"] + shift}, examples, key)


def start():
    return jax.tree.map(lambda x: x.astype(jnp.float64), problems.logistic_params())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "batches"),
    [
        (fs.fedavg(0.3), fs.epochs(2, 2)),
        (fs.scaffold(0.3), fs.with_replacement(3, 4)),  # client states
        (fs.fedsgd(0.5), fs.full_batch(1)),  # full gradients
    ],
    ids=["fedavg", "scaffold", "fedsgd"],
)
def test_equals_training_on_the_changed_data(x64, algorithm, batches):
    data = problems.logistic_data()
    around = neighbours(data, ROWS, NEW)
    steps = fs.empirical_task(noisy_losses, data, batches).num_steps
    timeline = fs.timelines.uniform(KEY, 5, problems.NUM_CLIENTS, 5, steps)

    @problems.compiled
    def measured(key):
        return stability(
            algorithm, noisy_losses, around, batches, timeline, start(), key, TEST, eval_every=2
        )

    result = measured(KEY)

    @problems.compiled
    def reference(examples):
        task = fs.empirical_task(noisy_losses, fs.FederatedData(examples, data.offsets), batches)

        def record(params):
            return {**params, "losses": noisy_losses(params, TEST, KEY)}

        setup = fs.Setup(task, timeline, start(), eval_fn=record, eval_every=2)
        return fs.run(algorithm, setup, KEY)[1]

    original = reference(data.examples)
    np.testing.assert_array_equal(result.round, original.round)
    assert result.round.tolist() == [2, 4, 5]
    for j in range(len(ROWS)):
        changed = around.dataset(j)
        assert not np.array_equal(changed.examples["x"], data.examples["x"])
        metrics = reference(changed.examples).metrics
        gaps = jax.tree.map(lambda a, b: np.asarray(a - b), metrics, original.metrics)
        distance = np.sqrt((gaps["w"] ** 2).sum(axis=1) + gaps["b"] ** 2)
        # float64; the difference of two models of size 1 keeps 1e-16.
        np.testing.assert_allclose(result.distance[j], distance, rtol=1e-10, atol=1e-15)
        largest = np.abs(gaps["losses"]).max(axis=1)
        np.testing.assert_allclose(result.loss_difference[j], largest, rtol=1e-10, atol=1e-15)
    assert (result.distance[:, -1] > 1e-4).sum() >= 3  # the distances are not trivial


@pytest.mark.slow
def test_the_same_example_again_changes_nothing(x64):
    data = problems.logistic_data()
    same = jax.tree.map(lambda x: x[ROWS], data.examples)
    timeline = fs.timelines.full(3, problems.NUM_CLIENTS, 2)
    result = stability(
        fs.fedavg(0.3), problems.logistic_losses, neighbours(data, ROWS, same),
        fs.with_replacement(2, 2), timeline, start(), KEY, TEST,
    )  # fmt: skip
    assert not result.distance.any()
    assert not result.loss_difference.any()


def test_one_gradient_step_by_hand(x64):
    """Mean estimation with full batches: one round moves by lr (z' - z) / (M n_i)."""
    data = fs.FederatedData({"x": np.array([1.0, 3.0, 5.0])}, np.array([0, 1, 3]))
    around = neighbours(data, [0, 2], {"x": np.array([2.0, 9.0])})

    def losses(w, batch, key):
        return 0.5 * (batch["x"] - w) ** 2

    result = stability(
        fs.fedavg(0.1), losses, around, fs.full_batch(1), fs.timelines.full(1, 2, 1),
        jnp.array(0.0), KEY, {"x": np.array([0.0, 10.0])},
    )  # fmt: skip
    np.testing.assert_allclose(result.distance[:, 0], [0.1 * 1 / 2, 0.1 * 4 / 4], rtol=1e-13)
    # l(z; w) - l(z; w') = (w - w') ((w + w') / 2 - z), largest at z = 10; w = 0.1 (1 + 4) / 2.
    w, other = 0.25, np.array([0.3, 0.35])
    expected = np.abs((w - other) * ((w + other) / 2 - 10))
    np.testing.assert_allclose(result.loss_difference[:, 0], expected, rtol=1e-12)


def test_data_are_not_copied_per_neighbour():
    """No array of the program is as large as the data of a tenth of the 20 neighbours.

    Twice the data do occur: vmap over the two clients of a branch names its operands for each.
    """
    data = fs.FederatedData({"x": np.ones((1000, 10), np.float32)}, np.arange(0, 1001, 500))
    around = neighbours(data, np.arange(20), {"x": np.zeros((20, 10), np.float32)})
    timeline = fs.timelines.full(1, 2, 1)

    def measure(key):
        return stability(
            fs.fedavg(0.1), lambda w, b, key: (b["x"] @ w - 1) ** 2, around,
            fs.with_replacement(2, 1), timeline, jnp.zeros(10), key,
            {"x": np.ones((1, 10), np.float32)},
        )  # fmt: skip

    sizes = list(result_sizes(jax.make_jaxpr(measure)(KEY).jaxpr))
    assert max(sizes) >= 21 * 10  # the models of all runs
    assert max(sizes) <= 2 * 1000 * 10


def result_sizes(jaxpr):
    """Numbers in each array that the program computes."""
    for equation in jaxpr.eqns:
        inner = [x for x in jax.tree.leaves(list(equation.params.values())) if hasattr(x, "eqns")]
        for part in inner:
            yield from result_sizes(part)
        if not inner:
            yield from (var.aval.size for var in equation.outvars)


@pytest.mark.parametrize(
    ("rows", "new", "match"),
    [
        ([39], {"x": np.zeros((1, 3)), "y": np.zeros(1)}, r"rows has 39 .. 39; expected 0 .. 38"),
        ([-1], {"x": np.zeros((1, 3)), "y": np.zeros(1)}, r"rows has -1"),
        ([0.5], {"x": np.zeros((1, 3)), "y": np.zeros(1)}, r"rows is \[0.5\]"),
        ([], {"x": np.zeros((0, 3)), "y": np.zeros(0)}, r"rows is \[\]"),
        ([1, 2], {"x": np.zeros((1, 3)), "y": np.zeros(1)}, "one example per row"),
        ([1], {"x": np.zeros((1, 3))}, "replacements is"),
        ([1], {"x": np.zeros((1, 3), np.float32), "y": np.zeros(1)}, "float32"),
    ],
)
def test_bad_neighbours_are_named(rows, new, match):
    with pytest.raises(ValueError, match=match):
        neighbours(problems.logistic_data(), np.asarray(rows), new)
