"""The lower-bound instance of FedAvg: constants, gradients, closed forms, the first coordinate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

import fedjax_sim as fs
from experiments.local_methods.instance import (
    Instance,
    coordinate_losses,
    hard_instance,
    initial_model,
    lower_bound_task,
    noiseless_coordinates,
)

SOME = Instance(2.0, 0.05, 0.4, 0.3)


@pytest.mark.parametrize(
    ("steps", "std", "zeta", "mu"),
    [(16, 1.0, 0.0, 0.0196863), (16, 1.0, 1.0, 0.0496063), (64, 4.0, 0.0, 0.03125)],
)
def test_mu_has_its_reference_values(steps, std, zeta, mu):
    """Printed to seven digits."""
    assert hard_instance(1.0, std, zeta, steps, 32).mu == pytest.approx(mu, abs=5e-8)


def test_mu_by_the_formula():
    """Every entry of the minima and of the maximum is attained somewhere."""
    attained = set()
    for std in (1e-4, 0.1, 0.5, 1.0, 1e4):
        for zeta in (0.0, 1e-2, 1.0, 1e4):
            for b, k, r, l in ((1.0, 4, 8, 1.0), (2.0, 1, 50, 3.0)):
                entries = np.array(
                    [
                        std * b / np.sqrt(k * r),
                        np.cbrt(l * std**2 * b**4 / (k * r**2)),
                        l * b**2,
                        zeta**2 / l,
                        np.cbrt(l * zeta**2 * b**4 / r**2),
                        l * b**2 / (k * r),
                    ]
                )
                noise, drift = entries[:3].min(), entries[[3, 4, 2]].min()
                largest = max(noise, drift, entries[5])
                attained |= set(np.flatnonzero(entries == largest).tolist())
                result = hard_instance(b, std, zeta, k, r, l)
                assert result.mu == pytest.approx(largest / (2 * b**2), rel=1e-12)
                assert result[0] == l
    assert attained == {0, 1, 2, 3, 4, 5}


def test_gradients_losses_and_heterogeneity(x64):
    """All clients by NumPy from the definition; the losses' derivatives are the gradients."""
    l, mu, _, zeta = SOME
    task = lower_bound_task(SOME, 4, 3)
    rng = np.random.default_rng(0)
    key = jax.random.key(0)
    points = rng.normal(size=(6, 4))

    @compiled
    def derivatives(client, x):
        oracle = task.oracle(client, key, 3)
        return oracle.full_grad(x), oracle.grad(x, 1), jax.grad(oracle.loss)(x, 1)

    total_gradient = compiled(jax.grad(lambda x: coordinate_losses(x, SOME).sum()))
    for x in points:
        mean = np.zeros(4)
        for client in range(4):
            full, gradient, derivative = derivatives(jnp.array(client), x)
            odd = client % 2 == 0  # the first client is number 1
            expected = np.array(
                [
                    l / 12 * x[0] if x[0] >= 0 else l / 24 * x[0],
                    mu * x[1],
                    l * x[2],
                    l / 4 * x[3] - zeta if odd else l / 8 * x[3] + zeta,
                ]
            )
            np.testing.assert_allclose(full, expected, rtol=1e-12)
            np.testing.assert_allclose(derivative, gradient, rtol=1e-12, atol=1e-15)
            mean += expected / 4
        np.testing.assert_allclose(total_gradient(x), mean, rtol=1e-12, atol=1e-15)
    at_zero = [derivatives(jnp.array(m), np.zeros(4))[0] for m in range(4)]
    assert np.mean([g @ g for g in at_zero]) == pytest.approx(zeta**2)


def test_noise_is_gaussian_and_differs_between_steps_and_visits():
    """Only the first coordinate has it; 2,000 draws, 5 standard errors."""
    task = lower_bound_task(SOME, 2, 4)

    @compiled
    def noise(keys):
        def one(key, step):
            oracle = task.oracle(jnp.array(0), key, 4)
            return oracle.grad(jnp.ones(4), step) - oracle.full_grad(jnp.ones(4))

        steps = jnp.arange(4, dtype=jnp.int32)
        return jax.vmap(lambda key: jax.vmap(lambda k: one(key, k))(steps))(keys)

    draws = np.asarray(noise(jax.random.split(jax.random.key(0), 500)))
    np.testing.assert_array_equal(draws[..., 1:], 0)
    first = draws[..., 0]
    assert len(np.unique(first)) > 1990  # of 2,000 in float32, few coincide
    assert abs(first.mean()) < 5 * SOME.std / 2000**0.5
    assert abs(first.std() - SOME.std) < 5 * SOME.std / 4000**0.5


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "rounds", "lr"), [(3, 5, 0.1), (7, 4, 0.6)])
def test_closed_forms_against_fedavg(x64, steps, rounds, lr):
    """Double precision: rounding of a few dozen steps."""
    task = lower_bound_task(SOME, 4, steps)
    timeline = fs.timelines.full(rounds, 4, steps)

    @compiled
    def run(task):
        return fs.run(
            fs.fedavg(lr), fs.Setup(task, timeline, initial_model(1.5)), jax.random.key(0)
        )[0].server.params

    result = noiseless_coordinates(SOME, lr, 1.5, steps, rounds)
    np.testing.assert_allclose(result, run(task)[1:], rtol=1e-11)


def test_closed_form_of_the_fourth_coordinate(x64):
    """The reference is printed to 11 digits; many steps lead to the mean of the local optima; the
    thesis' claim about b = x_4 / zeta after one round, with the constant that holds.
    """
    result = noiseless_coordinates(Instance(1.0, 0.0, 0.0, 0.3), 0.05, 1.0, 16, 50)
    assert float(result[2]) == pytest.approx(-0.03710199813, abs=5e-12)
    many = noiseless_coordinates(Instance(2.0, 0.0, 0.0, 0.3), 0.5, 1.0, 10_000, 1)
    assert float(many[2]) == pytest.approx(-2 * 0.3 / 2)
    for lr in np.geomspace(1e-3, 2, 12):
        for steps in (2, 5, 40):
            b = float(noiseless_coordinates(Instance(1.0, 0.0, 0.0, 1.0), lr, 1.0, steps, 1)[2])
            assert b <= -0.0156 * min(1, (lr * steps) ** 2)


@pytest.mark.slow
def test_first_coordinate_drifts_to_the_negative_side():
    """Mean and mean value against a NumPy simulation: 5 standard errors of both together."""
    clients, steps, rounds, lr, count = 2, 16, 12, 0.3, 2000
    constants = hard_instance(1.0, 1.0, 0.0, steps, rounds)
    task = lower_bound_task(constants, clients, steps)
    timeline = fs.timelines.full(rounds, clients, steps)

    @compiled
    def finals(task, keys):
        def one(key):
            final, _ = fs.run(
                fs.fedavg(lr),
                fs.Setup(task, timeline, initial_model(1.0)),
                key,
                execution=fs.execution.vmapped(),
            )
            return final.server.params

        return jax.vmap(one)(keys)

    models = finals(task, jax.random.split(jax.random.key(0), count))
    result = np.stack([models[:, 0], coordinate_losses(models, constants)[:, 0]])
    rng = np.random.default_rng(1)
    x = np.zeros((count, 1))
    for _ in range(rounds):
        y = np.repeat(x, clients, 1)
        for _ in range(steps):
            y = y - lr * (np.where(y >= 0, 1 / 12, 1 / 24) * y + rng.normal(size=y.shape))
        x = y.mean(1, keepdims=True)
    expected = np.concatenate([x, np.where(x >= 0, 1, 0.5) * x**2 / 24], 1).T
    errors = np.sqrt((result.var(1) + expected.var(1)) / count)
    assert (np.abs(result.mean(1) - expected.mean(1)) < 5 * errors).all()
    assert result[0].mean() < -5 * errors[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hard_instance(0.0, 1.0, 1.0, 1, 1), "distance is 0.0; expected"),
        (lambda: hard_instance(1.0, 1.0, 1.0, 0, 1), "num_steps is 0; expected"),
        (lambda: hard_instance(1.0, -1.0, 1.0, 1, 1), "std is -1.0; expected"),
        (lambda: hard_instance(1.0, 1.0, -1.0, 1, 1), "zeta_star is -1.0; expected"),
        (lambda: lower_bound_task(SOME, 3, 1), "num_clients is 3; expected an even"),
        (lambda: lower_bound_task(SOME, 0, 1), "num_clients is 0; expected an even"),
        (lambda: lower_bound_task(SOME, 2, 0), "num_steps is 0; expected"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
