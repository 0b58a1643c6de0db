"""Proofs from the text of programs: a wrong yes is an error, a wrong no is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_sim as fs
from fedjax_sim.data.batches import Batches
from fedjax_sim.studies.advice.affine import is_affine
from fedjax_sim.studies.advice.measurement import measure_constants
from fedjax_sim.studies.advice.structure import has_full_gradients, is_quadratic

MATRIX = jnp.arange(9.0).reshape(3, 3)
INDICES = jnp.array([2, 0])


@jax.custom_vjp
def passed_on(x):
    return x


passed_on.defvjp(lambda x: (x, None), lambda _, cotangent: (jnp.sign(cotangent),))


def through_a_reference(x):
    cell = jax.new_ref(jnp.zeros(3))
    cell[...] = jnp.abs(x)
    return cell[...]


AFFINE = {
    "constant": lambda x: MATRIX[0],
    "matrix": lambda x: MATRIX @ x - 1,
    "division": lambda x: x / 3 - x[::-1],
    "constant predicate": lambda x: jnp.where(MATRIX[0] > 1, x, -x),
    "rows": lambda x: x[INDICES].sum() + x.at[INDICES].add(2 * x[INDICES]).at[1].set(x[0]),
    "scan": lambda x: lax.scan(lambda c, row: (c + row * x, c), x, MATRIX)[0],
    "fori_loop": lambda x: lax.fori_loop(0, INDICES[0], lambda i, c: c + i * x, x),
    "cond": lambda x: lax.cond(INDICES[0] > 1, lambda x: x, lambda x: 2 * x, x),
    "checkpoint": jax.checkpoint(lambda x: MATRIX @ x),
    "custom_vjp": lambda x: passed_on(x),
    "an unused value": lambda x: (jnp.abs(x), 3 * x)[1],
    "convolution": lambda x: jnp.convolve(x, MATRIX[0]),
}
NOT_AFFINE = {
    "abs": jnp.abs,
    "relu": jax.nn.relu,
    "step": lambda x: (x > 1).astype(float),
    "sign": jnp.sign,
    "floor": jnp.floor,
    "rounded": lambda x: x.astype(jnp.int32).astype(float),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "largest": lambda x: x * 0 + x.max(),
    "sorted": jnp.sort,
    "square": lambda x: x * x,
    "inverse": lambda x: 1 / x,
    "quadratic form": lambda x: x @ MATRIX @ x,
    "predicate": lambda x: jnp.where(x > 1, x, -x),
    "index": lambda x: x[jnp.argmax(x)],
    "position": lambda x: jnp.zeros(3).at[jnp.argmax(x)].set(1.0),
    "branch": lambda x: lax.cond(x[0] > 1, lambda x: x, lambda x: 2 * x, x),
    "number of steps": lambda x: lax.while_loop(lambda c: c[0] < x[0], lambda c: c + 1, x * 0),
    "product over steps": lambda x: lax.scan(lambda c, _: (c * x, None), MATRIX[1], length=2)[0],
    "late product": lambda x: lax.scan(lambda c, _: ((x, c[0] * x), None), (x * 0, x), length=2)[0],
    "inside jit": jax.jit(jnp.abs),
    "inside checkpoint": jax.checkpoint(jnp.abs),
    "reference": through_a_reference,
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_proven(name):
    function = AFFINE[name]
    assert is_affine(function, jnp.ones(3))
    # f(a + b) + f(0) = f(a) + f(b); a few operations with small numbers in float32.
    a, b = jnp.array([1.0, -2.0, 4.0]), jnp.array([-3.0, 5.0, 2.0])
    left = function(a + b) + function(0 * a)
    np.testing.assert_allclose(left, function(a) + function(b), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_no_other_function_is_affine(name):
    assert not is_affine(NOT_AFFINE[name], jnp.ones(3))


def sq(w, batch):
    return (batch["x"] @ w - 1) ** 2


LOSSES = {
    "squares": (True, lambda w, batch, key: sq(w, batch) + 0.05 * jnp.sum(w**2)),
    "half squares by dot": (True, lambda w, batch, key: sq(w, batch) + 0.5 * jnp.dot(w, w)),
    "linear": (True, lambda w, batch, key: batch["x"] @ w),
    "hinge": (False, lambda w, batch, key: jax.nn.relu(1 - batch["x"] @ w) + 0.05 * w @ w),
    "hinge by maximum": (False, lambda w, batch, key: jnp.maximum(1 - batch["x"] @ w, 0)),
    "absolute residual": (False, lambda w, batch, key: jnp.abs(batch["x"] @ w - 1)),
    "lasso": (False, lambda w, batch, key: sq(w, batch) + jnp.sum(jnp.abs(w))),
    "Huber": (False, lambda w, batch, key: jnp.clip(batch["x"] @ w, -1, 1) ** 2),
}


@pytest.mark.parametrize("minibatches", [fs.full_batch(1), fs.with_replacement(2, 3)])
@pytest.mark.parametrize("name", LOSSES)
def test_quadratic_losses(name, minibatches):
    expected, loss = LOSSES[name]
    data = fs.FederatedData({"x": jnp.ones((4, 3))}, jnp.array([0, 1, 4]))
    task = fs.empirical_task(loss, data, minibatches)
    assert is_quadratic(task, jnp.ones(3)) == expected


def picks(first_of_step):
    """A minibatch rule of the user's own, without a key."""

    def draw(key, size, max_size, max_steps):
        rows = jnp.arange(2, dtype=jnp.int32)
        return lambda step: ((first_of_step(step) + rows) % size, jnp.ones(2, bool))

    return Batches(lambda sizes: np.full(len(sizes), 3), draw)


RULES = {
    "full batch": fs.full_batch(3),
    "fixed order": picks(lambda step: 2 * step),
    "first two": picks(lambda step: 0),
    "draws": fs.with_replacement(2, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "rows", "noiseless"),
    [
        ("full batch", 4, True),
        ("fixed order", 4, False),
        ("first two", 4, False),
        ("first two", 2, True),
        ("draws", 4, False),
    ],
)
def test_only_full_gradients_have_no_noise(rule, rows, noiseless):
    x = np.arange(2.0 * rows, dtype=np.float32)
    data = fs.FederatedData(x, np.array([0, rows, 2 * rows]))
    task = fs.empirical_task(lambda w, x, key: (w - x) ** 2, data, RULES[rule])
    result = measure_constants(task, jnp.array(0.5), jax.random.key(0), num_samples=16)
    assert result.deterministic == noiseless
    assert result.sources["sigma"].kind == ("exact" if noiseless else "estimate")
    assert (result.constants.sigma == 0) == noiseless


@pytest.mark.slow
def test_constants_of_a_hinge_are_estimates():
    """At 1.1 and the optimum 1 the Hessian is 1, but the gradient jumps from 1 to 31 at 1."""
    rows = fs.FederatedData({"x": np.ones(2, np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(
        lambda w, batch, key: 0.5 * w**2 + 30 * jax.nn.relu(batch["x"] * w - 1),
        rows,
        fs.full_batch(1),
    )
    setup = fs.Setup(task, fs.timelines.full(1, 2, num_steps=1), jnp.array(1.1))
    chosen = [theorem for theorem in fs.advice.THEOREMS if theorem.name == "FedAvg, convex"]
    advice = fs.advise(setup, local_steps=[1], theorems=chosen)
    assert {advice.sources[name].kind for name in ("L", "mu", "Q")} == {"estimate"}
    assert any(text.startswith("L is at most") for text in advice.predictions[0].undecided)


def test_leaves_of_one_shape_are_equal_at_no_model_that_is_tried():
    """Steps take 0 and 2 times the full gradient, which is 0 where both leaves are equal."""

    def oracle(client, key, max_steps):
        def grad(x, step):
            difference = jnp.where(step % 2 == 0, 0.0, 2.0) * (x["a"] - x["b"])
            return {"a": difference, "b": -difference}

        def full_grad(x):
            return {"a": x["a"] - x["b"], "b": x["b"] - x["a"]}

        return fs.Oracle(grad, None, full_grad)

    two = np.full(2, 2, np.int32)
    task = fs.Task(jax.tree_util.Partial(oracle), two, two)
    points = {"a": jnp.ones((1, 3)), "b": jnp.ones((1, 3))}
    assert not has_full_gradients(task, points, jax.random.key(0))
