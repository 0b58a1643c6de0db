"""Hessian eigenvalues and SAM's rise against explicit Hessians and losses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_problems as problems
from jax.flatten_util import ravel_pytree

import fedjax_sim as fs
from fedjax_sim.diagnostics.generalization import metric
from fedjax_sim.diagnostics.sharpness import client_sharpness, top_eigenvalues
from fedjax_sim.engine.evaluation import evaluator
from fedjax_sim.models.dense import mlp
from fedjax_sim.objectives import cross_entropy

KEY = jax.random.key(0)
RADIUS = 0.05


def logistic_hessian(examples, params):
    """X' diag(p (1 - p)) X / n with the column of ones of the intercept last."""
    x = np.concatenate([examples["x"], np.ones((len(examples["x"]), 1))], axis=1)
    w = np.append(params["w"], params["b"])
    p = 1 / (1 + np.exp(-x @ w))
    return (x * (p * (1 - p))[:, None]).T @ x / len(x)


def logistic_loss(examples, w):
    x = np.concatenate([examples["x"], np.ones((len(examples["x"]), 1))], axis=1)
    z = x @ w
    return np.mean(np.logaddexp(0, z) - examples["y"] * z), x.T @ (
        1 / (1 + np.exp(-z)) - examples["y"]
    ) / len(x)


def rise(loss, w, radius):
    value, gradient = loss(w)
    return loss(w + radius * gradient / np.linalg.norm(gradient))[0] - value


@pytest.mark.slow
def test_quadratics_with_known_spectrum(x64):
    hessians, centres = problems.random_quadratics(1, 6)
    eigenvalues = np.linalg.eigvalsh(hessians[0])[::-1]

    def loss(x):
        return 0.5 * (x - centres[0]) @ hessians[0] @ (x - centres[0])

    start = jnp.asarray(np.random.default_rng(1).normal(size=6))
    result = jax.jit(lambda x: top_eigenvalues(jax.grad(loss), x, KEY, num=3))(start)
    np.testing.assert_allclose(result.values, eigenvalues[:3], rtol=1e-13)  # a few roundings


@pytest.mark.slow
def test_a_stationary_point_has_no_rise():
    """And that of a quadratic is ``r ||g|| + r^2 g'Ag / (2 ||g||^2)``."""
    hessians, centres = problems.random_quadratics(1, 3)
    task = problems.quadratic_task(hessians, centres, 1)
    at_centre = client_sharpness(task, jnp.asarray(centres[0], jnp.float32), KEY, radius=0.3)
    assert at_centre.total.rise == at_centre.clients.rise[0] == 0
    g = hessians[0] @ (1 - centres[0])
    expected = 0.3 * np.linalg.norm(g) + 0.045 * (g @ hessians[0] @ g) / (g @ g)
    rise = client_sharpness(task, jnp.ones(3), KEY, radius=0.3).total.rise
    np.testing.assert_allclose(rise, expected, rtol=1e-5)  # float32


@pytest.mark.slow
@pytest.mark.parametrize("execution", [fs.execution.vmapped(), fs.execution.chunked(3), None])
def test_clients_and_total_of_logistic_regression(x64, execution):
    data, task = problems.logistic_data(), problems.logistic_task()
    params = jax.tree.map(lambda x: x.astype(jnp.float64), problems.logistic_params())
    w = np.append(params["w"], params["b"])
    by_size = np.asarray(data.sizes, float)
    measure = jax.jit(
        lambda task, params, weights: client_sharpness(
            task, params, KEY, radius=RADIUS, num=2, weights=weights, execution=execution
        )
    )
    result = measure(task, params, by_size)
    clients = [data.client(i) for i in range(data.num_clients)]
    dense = [np.linalg.eigvalsh(logistic_hessian(part, params))[:-3:-1] for part in clients]
    # Hessians of norm about 1; a client of one example has a second eigenvalue 0, to rounding.
    np.testing.assert_allclose(result.clients.eigenvalues, dense, rtol=1e-11, atol=1e-14)
    total = np.linalg.eigvalsh(logistic_hessian(data.examples, params))[:-3:-1]
    np.testing.assert_allclose(result.total.eigenvalues, total, rtol=1e-11)
    # Gauss's rule for a sigmoid over a distance of 0.05: an error below 1e-12.
    rises = [rise(lambda w, p=part: logistic_loss(p, w), w, RADIUS) for part in clients]
    np.testing.assert_allclose(result.clients.rise, rises, rtol=1e-10)
    expected = rise(lambda w: logistic_loss(data.examples, w), w, RADIUS)
    np.testing.assert_allclose(result.total.rise, expected, rtol=1e-10)


@pytest.mark.slow
def test_uniform_weights_are_the_default(x64):
    hessians, centres = problems.random_quadratics(5, 4)
    task = problems.quadratic_task(hessians, centres, 1)
    result = jax.jit(lambda task: client_sharpness(task, jnp.zeros(4), KEY, num=4))(task)
    dense = np.linalg.eigvalsh(hessians.mean(axis=0))[::-1]
    np.testing.assert_allclose(result.total.eigenvalues, dense, rtol=1e-12)
    assert result.clients.eigenvalues.shape == (5, 4)
    # Convergence in d steps: residuals of rounding only.
    assert result.clients.residuals.max() < 1e-12


@pytest.mark.slow
def test_small_network_against_its_explicit_hessian(x64):
    model = mlp(4, hidden=(5,), num_classes=3, activation=jnp.tanh)
    rng = np.random.default_rng(2)
    examples = {"x": rng.normal(size=(20, 4)), "y": rng.integers(0, 3, 20).astype(np.int32)}
    initial = problems.compiled(model.init)(jax.random.key(3))
    params = jax.tree.map(lambda x: x.astype(jnp.float64), initial)
    objective = cross_entropy(model.apply)
    evaluate = evaluator(lambda p, e: {"loss": objective(p, e, None)}, examples, batch_size=6)
    loss = metric(evaluate, "loss")
    flat, unravel = ravel_pytree(params)

    def mean(v):
        return objective(unravel(v), examples, None).mean()

    @jax.jit
    def measured(loss, params):
        gradient = jax.grad(loss)
        full = top_eigenvalues(gradient, params, KEY, num=5, iterations=flat.size)
        few = top_eigenvalues(gradient, params, KEY, iterations=8)
        return full, few

    result, few = measured(loss, params)
    dense = np.linalg.eigvalsh(problems.compiled(jax.hessian(mean))(flat))[::-1]
    np.testing.assert_allclose(result.values, dense[:5], rtol=1e-10)  # about 1e3 operations
    # Few iterations: the largest from below, within its residual.
    assert dense[0] - few.residuals[0] <= few.values[0] <= dense[0] * (1 + 1e-12)


def test_errors():
    gradient = jax.grad(lambda x: jnp.sum(x**2))
    for num, iterations in ((0, 5), (4, 5), (3, 2)):
        with pytest.raises(ValueError, match=f"num is {num}; expected at least 1"):
            top_eigenvalues(gradient, jnp.ones(3), KEY, num, iterations)
    with pytest.raises(ValueError, match=r"num is 1\.0; expected an integer"):
        top_eigenvalues(gradient, jnp.ones(3), KEY, 1.0)
    task = problems.quadratic_task(*problems.random_quadratics(2, 3), 1)
    with pytest.raises(ValueError, match=r"radius is -1\.0; expected at least 0"):
        client_sharpness(task, jnp.ones(3), KEY, radius=-1.0)
    with pytest.raises(ValueError, match=r"radius has shape \(2,\); expected one number"):
        client_sharpness(task, jnp.ones(3), KEY, radius=jnp.ones(2))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\); expected \(2,\)"):
        client_sharpness(task, jnp.ones(3), KEY, weights=[1, 1, 1])
    for weights, message in (([1, -2], "expected at least 0"), ([0, 0], "positive, finite sum")):
        with pytest.raises(ValueError, match=f"weights is .*{message}"):
            client_sharpness(task, jnp.ones(3), KEY, weights=weights)
    empty = dataclasses.replace(task, num_examples=np.array([1, 0]))
    with pytest.raises(ValueError, match="task has 1 clients without examples, the first is 1"):
        client_sharpness(empty, jnp.ones(3), KEY)
