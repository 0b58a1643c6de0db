"""Per-FedAvg against NumPy, its figures, and the minimiser of the loss after adaptation."""

import instance_q
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import A, B, assert_printed
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps


def in_numpy(lr, adapt_lr, delta=None):
    x = start()
    for cohort in visits():
        models = []
        for _, batches in cohort:
            y, count = x, 2 if delta is None else 3
            for j in range(len(batches) // count):
                first, second, *third = batches[count * j : count * (j + 1)]
                g = gradient()(y - adapt_lr * gradient()(y, first), second)
                direction = g
                if third:
                    above = gradient()(y + delta * g, third[0])
                    below = gradient()(y - delta * g, third[0])
                    direction = g - adapt_lr * (above - below) / (2 * delta)
                y = y - lr * direction
            models.append(y)
        x = np.mean(models, axis=0)
    return x


@pytest.mark.parametrize("hessian", ["FO", "HF"])
def test_perfedavg(hessian):
    """Some visits are too short for a meta-step of HF; they report the model that they received."""
    name = f"perfedavg_{hessian}"
    state = trained(name, current_timeline())
    assert_close(flat(state.server.params), in_numpy(**ALGORITHMS[name][1]), TOLERANCE)


# Five meta-steps each.
STEPS = {"FO": 10, "HF": 15, "exact": 15}
FIGURES = {
    "FO": ("0.3461471801", "0.6480565823"),
    "HF": ("0.2742045635", "0.6141875098"),
    "exact": ("0.2742045635", "0.6141875098"),
}


@pytest.mark.parametrize("hessian", ["FO", "HF", pytest.param("exact", marks=pytest.mark.slow)])
def test_figures_on_instance_q(hessian):
    x = instance_q.models(fs.perfedavg(0.1, hessian=hessian), 80, num_steps=STEPS[hessian])
    assert_printed(x[[0, -1]], *FIGURES[hessian])


def test_without_adaptation_it_is_fedavg():
    x = instance_q.models(fs.perfedavg(0.1, 0.0, "HF"), 80, num_steps=15)
    assert_printed(x[[0, 1, -1]], "0.415965", "0.5737322052", str(instance_q.FEDAVG))


@pytest.mark.parametrize("step", [0.1, 0.01])
def test_difference_of_gradients_approaches_the_hessian(step):
    """A visit on F(x) = x^4 / 4, where the difference exceeds the product by step^2 G^3 exactly."""
    oracle = fs.Oracle(lambda x, k: x**3, lambda x, k: x**4 / 4, lambda x: x**3)
    work = fs.Work(0, 0, jnp.array(3), 1, 0, None, max_steps=3)
    exact, approximate = (
        float(fs.perfedavg(0.1, 0.2, kind, delta=step).local(jnp.array(1.5), (), oracle, work)[0])
        for kind in ("exact", "HF")
    )
    g = (1.5 - 0.2 * 1.5**3) ** 3
    np.testing.assert_allclose(exact, 0.1 * (g - 0.2 * 3 * 1.5**2 * g), rtol=1e-12)
    np.testing.assert_allclose(exact - approximate, 0.1 * 0.2 * g * (step * g) ** 2, rtol=1e-8)


@pytest.mark.parametrize("delta", [1e-3, 1.0, 50.0])
def test_differences_of_gradients_are_exact_on_quadratics(delta):
    """F(x) = 3 / 2 (x - 1)^2: one meta-step from 0 is one of a (1 - 0.1 a)^2 (x - 1), a = 3."""
    oracle = fs.Oracle(lambda x, k: 3 * (x - 1), lambda x, k: x, lambda x: x)
    work = fs.Work(0, 0, jnp.array(3), 1, 0, None, max_steps=3)
    upload, _ = fs.perfedavg(0.1, 0.1, "HF", delta=delta).local(jnp.array(0.0), (), oracle, work)
    np.testing.assert_allclose(upload, -0.1 * 3 * 0.7**2, rtol=1e-12)


def test_minimises_the_loss_after_one_step():
    """One meta-step per round: the claim of the paper; FO's limit and FedAvg's are worse."""
    a = 0.1

    def adapted_loss(x):
        return np.mean(A / 2 * (x - a * A * (x - B) - B) ** 2)

    curvature = A * (1 - a * A) ** 2
    best = (curvature * B).sum() / curvature.sum()
    exact = instance_q.models(fs.perfedavg(0.1, a, "HF"), 250, num_steps=3)[-1]
    np.testing.assert_allclose(exact, best, rtol=1e-9)
    first_order = instance_q.models(fs.perfedavg(0.1, a, "FO"), 250, num_steps=2)[-1]
    slopes = A * (1 - a * A)
    np.testing.assert_allclose(first_order, (slopes * B).sum() / slopes.sum(), rtol=1e-9)
    # FedAvg with one step per round finds the minimiser of the mean.
    losses = [adapted_loss(x) for x in (exact, first_order, instance_q.OPTIMUM)]
    assert losses[0] < losses[1] < losses[2]


def test_personal_model_is_adapted_on_the_clients_data():
    """Two steps x <- x - 0.1 * 3 (x - 1) from 0."""
    algorithm = fs.perfedavg(0.5, 0.1, adapt_steps=2)
    oracle = instance_q.task().oracle(1, jax.random.key(0), 2)
    work = fs.Work(0, 1, jnp.array(5), 1, 0, None, max_steps=5)
    model = algorithm.personal(jnp.zeros(1), (), oracle, work)
    np.testing.assert_allclose(model, 1 - 0.7**2, rtol=1e-14)


def test_refuses_other_hessians_and_short_visits():
    with pytest.raises(ValueError, match="hessian is 'SO'; expected 'FO', 'HF' or 'exact'"):
        fs.perfedavg(0.1, hessian="SO")
    with pytest.raises(ValueError, match="delta is 0; expected a positive number"):
        fs.perfedavg(0.1, delta=0)
    message = r"timeline.max_steps is 2; expected at least 3 local steps, .* \(hessian='HF'\)"
    with pytest.raises(ValueError, match=message):
        fs.init(fs.perfedavg(0.1, hessian="HF"), instance_q.setup(num_steps=2))
