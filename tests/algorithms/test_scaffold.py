"""SCAFFOLD, SCAFFOLD-M and Scaffnew against NumPy, the identities of their controls."""

import dataclasses
import itertools

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, full_timeline, task, trained
from derivations import flat, gradient, start, visits, whole_data_weights
from instance_q import LR, OPTIMUM, A, B, assert_printed, models
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, START, optimum, state_after
from small_problems import SIZES, assert_close, compiled, logistic_params, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold(option):
    state = trained(f"scaffold_{option}", current_timeline())
    expected = derivations.scaffold(
        gradient(),
        whole_data_weights(),
        visits(),
        start(),
        **ALGORITHMS[f"scaffold_{option}"][1],
        option=option,
    )
    actual = (flat(state.server.params), flat(state.server.control), flat(state.clients))
    assert_close(actual, expected, TOLERANCE)
    # From zero, under partial participation with dropout: c and the mean of c_i move together.
    assert np.abs(actual[1]).max() > 0.01
    assert_close(actual[1], actual[2].mean(0), TOLERANCE)


def test_option_two_with_one_step_keeps_the_minibatch_gradient():
    """K = 1: c_i - c + (x - y) / lr is the gradient just taken, whatever the controls were."""
    timeline = fs.timelines.cyclic(4, len(SIZES), cohort_size=3, num_steps=1)
    probes = fs.Probes(
        client={
            "control": lambda visit: visit.new_state,
            "gradient": lambda visit: visit.oracle.grad(visit.message.params, 0),
        }
    )

    @compiled
    def probed(task):
        key = jax.random.key(0)
        algorithm = fs.scaffold(0.2, option="II")
        return fs.run(algorithm, fs.Setup(task, timeline, logistic_params()), key, probes=probes)[
            1
        ].probes

    values = probed(task())
    assert_close(values["control"], values["gradient"], TOLERANCE)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort_size", [6, 2])
def test_finds_the_optimum(option, cohort_size):
    """Full gradients and heterogeneous curvature: no drift, even if few clients report."""
    state = state_after(fs.scaffold(0.1, option=option), 300, cohort_size, 10).server
    # A round contracts by 0.95^10 = 0.6 at worst; 300 of them leave round-off only, and the
    # controls are then the local gradients at the optimum, whose mean is 0.
    np.testing.assert_allclose(state.params, optimum(), rtol=0, atol=1e-10)
    np.testing.assert_allclose(state.control, 0, rtol=0, atol=1e-10)


@pytest.mark.parametrize("build", [fs.scaffold, fs.scaffold_m, fs.fedmoswa, fs.fedgamma])
def test_gradient_controls_start_at_the_local_gradients(build):
    task = quadratic_task(HESSIANS, CENTRES, 5)
    timeline = fs.timelines.full(1, NUM_CLIENTS, 5)

    @compiled
    def begin(task):
        setup = fs.Setup(task, timeline, jnp.asarray(START))
        return fs.gradient_controls(fs.init(build(0.1), setup), setup, jax.random.key(0))

    state = begin(task)
    gradients = np.einsum("mij,mj->mi", HESSIANS, START - CENTRES)
    assert_close(state.clients, gradients, TOLERANCE)
    assert_close(state.server.control, gradients.mean(0), TOLERANCE)
    assert_close(state.server.params, START, TOLERANCE)


def test_gradient_controls_have_the_weights_of_the_setup():
    """A weighting of ``max_steps`` had that of a visit of one step."""
    task = quadratic_task(HESSIANS, CENTRES, 5)
    timeline = fs.timelines.full(1, NUM_CLIENTS, 5)

    def by(work):
        return (work.client + int(work.max_steps == 5)).astype(float)

    @compiled
    def begin(task):
        setup = fs.Setup(task, timeline, jnp.asarray(START), weighting=by)
        state = fs.gradient_controls(fs.init(fs.scaffold(0.1), setup), setup, jax.random.key(0))
        return state.server.control

    gradients = np.einsum("mij,mj->mi", HESSIANS, START - CENTRES)
    weights = 1.0 + np.arange(NUM_CLIENTS)
    assert_close(begin(task), weights @ gradients / weights.sum(), TOLERANCE)


def test_gradient_controls_of_a_task_are_refused():
    task = quadratic_task(HESSIANS, CENTRES, 5)
    setup = fs.Setup(task, fs.timelines.full(1, NUM_CLIENTS, 5), jnp.asarray(START))
    state = fs.init(fs.scaffold(0.1), setup)
    with pytest.raises(ValueError, match=r"setup is a Task; expected a fedjax_sim\.Setup"):
        fs.gradient_controls(state, task, jax.random.key(0))  # pyright: ignore


@pytest.mark.parametrize(
    "build", [fs.fedavg, fs.mime, lambda lr: fs.average_rounds(fs.scaffold(lr))]
)
def test_gradient_controls_of_states_without_controls_are_refused(build):
    """Mime's server has a control, which it replaces, and its clients have none."""
    task = quadratic_task(HESSIANS, CENTRES, 5)
    timeline = fs.timelines.repeat_rounds(fs.timelines.full(1, NUM_CLIENTS, 5), 2)
    setup = fs.Setup(task, timeline, jnp.asarray(START))
    state = fs.init(build(0.1), setup)
    with pytest.raises(ValueError, match=r"state has the server .*; expected .* a control at"):
        fs.gradient_controls(state, setup, jax.random.key(0))


def test_gradient_controls_of_random_objectives_have_draws_of_their_own():
    """Two clients of equal examples; the gradient is a random number."""
    data = fs.from_clients([{"x": np.zeros(2, np.float32)}] * 2)

    def objective(w, batch, key):
        return w * jax.random.uniform(key, batch["x"].shape, w.dtype)

    task = fs.empirical_task(objective, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(1, 2, 1), jnp.array(0.0))
    state = fs.init(fs.scaffold(0.1), setup)
    one, other = fs.gradient_controls(state, setup, jax.random.key(0)).clients
    assert one != other


# ---- SCAFFOLD-M


def test_scaffold_m():
    lr, server_lr, mix = ALGORITHMS["scaffold_m"][1].values()
    x, direction = start(), np.zeros_like(start())
    controls = np.zeros((len(SIZES), len(x)))
    for cohort in visits():
        mean, deltas, directions, new = controls.mean(0), [], [], controls.copy()
        for client, batches in cohort:
            y, gradients = x, []
            for weights in batches:
                gradients.append(gradient()(y, weights))
                own = gradients[-1] - controls[client] + mean
                y = y - lr * (mix * own + (1 - mix) * direction)
            new[client] = np.mean(gradients, axis=0)
            deltas.append(x - y)
            directions.append((x - y) / (len(batches) * lr))
        controls = new
        x, direction = x - server_lr * np.mean(deltas, axis=0), np.mean(directions, axis=0)
    state = trained("scaffold_m")
    assert_close(flat(state.server.params), x, TOLERANCE)
    assert_close(flat(state.server.direction), direction, TOLERANCE)
    assert_close(flat(state.clients), controls, TOLERANCE)
    assert_close(flat(state.server.control), controls.mean(0), TOLERANCE)


@pytest.mark.slow
def test_scaffold_on_instance_q():
    """As is Scaffnew with visits of five steps."""
    for algorithm in (fs.scaffold_m(LR, mix=1.0), fs.scaffnew(LR, 1 / 5)):
        assert_printed(models(algorithm), "0.415965", "0.6287227782", "0.7150249370")


def test_momentum_without_bias():
    """The paper's claim: the limit is the optimum, FedCM's is not."""
    path = models(fs.scaffold_m(LR), 1500)
    assert_printed(path[:3], "0.0706329871", "0.1969927476", "0.3594951659")
    np.testing.assert_allclose(path[-1], OPTIMUM, atol=1e-10)


# ---- Scaffnew


def test_scaffnew():
    lr, p = ALGORITHMS["scaffnew"][1].values()
    x = start()
    controls = np.zeros((len(SIZES), len(x)))
    for cohort in visits(full_timeline()):
        models = np.empty_like(controls)
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * (gradient()(y, weights) - controls[client])
            models[client] = y
        x = models.mean(0)
        next_controls = controls + p / lr * (x - models)
        last, controls = controls, next_controls
    state = trained("scaffnew")
    assert_close(flat(state.server.params), x, TOLERANCE)
    # Clients correct their controls at the next visit, by the model that they receive then.
    assert_close(flat(state.clients.control), last, TOLERANCE)
    assert_close(flat(state.clients.sent), models, TOLERANCE)


def steps_of(lr, p, coins):
    """ProxSkip on instance Q, step by step: models, controls and Psi after the coins.

    ``lr`` may be an array with the rate of every step.
    """
    y, h = np.zeros(2), np.zeros(2)
    for rate, communicates in np.broadcast(lr, coins):
        moved = y - rate * (A * (y - B) - h)
        y = np.full(2, moved.mean()) if communicates else moved
        h = h + p / rate * (y - moved)
    best = A * (OPTIMUM - B)
    return y, h, np.sum((y - OPTIMUM) ** 2) + (lr / p) ** 2 * np.sum((h - best) ** 2)


def test_lyapunov_function():
    """The paper's claim: it contracts by 1 - min(lr mu, p^2) per step in expectation."""
    lr, p = 1 / 3, 3**-0.5
    expected = sum(
        p ** sum(coins) * (1 - p) ** (6 - sum(coins)) * steps_of(lr, p, coins)[2]
        for coins in itertools.product((0, 1), repeat=6)
    )
    psi = steps_of(lr, p, ())[2]
    assert_printed(psi, "1.5")
    assert_printed(expected, "0.0122944292")
    assert expected <= (1 - min(lr * A.min(), p**2)) ** 6 * psi


def test_rounds_are_the_steps_between_communications():
    lr, p, counts = 1 / 3, 0.4, [3, 1, 4, 2]
    coins = [k == count - 1 for count in counts for k in range(count)]
    timeline = fs.timelines.full(4, 2, 4)
    steps = jnp.broadcast_to(jnp.array(counts, jnp.int32)[:, None], (4, 2))
    path = models(fs.scaffnew(lr, p), timeline=dataclasses.replace(timeline, num_steps=steps))
    np.testing.assert_allclose(path[-1], steps_of(lr, p, coins)[0][0], rtol=1e-12)


def test_schedule_of_rates():
    """The control changes by p / eta with the rate of the steps that it corrects."""
    rates, p, num_steps = [0.3, 0.1, 0.05, 0.2], 0.4, 3
    path = models(fs.scaffnew(lambda round: jnp.array(rates)[round], p), 4, num_steps=num_steps)
    for t in range(4):
        coins = [k == num_steps - 1 for _ in range(t + 1) for k in range(num_steps)]
        expected = steps_of(np.repeat(rates[: t + 1], num_steps), p, coins)[0][0]
        np.testing.assert_allclose(path[t], expected, rtol=1e-12)


def test_communication_after_every_step_is_gradient_descent():
    path = models(fs.scaffnew(LR, 1.0), num_steps=1)
    x, expected = 0.0, []
    for _ in path:
        x = x - LR * np.mean(A * (x - B))
        expected.append(x)
    assert_close(path, np.array(expected), TOLERANCE)


@pytest.mark.slow
def test_local_steps_save_communication():
    """Rounds to a relative error of 1e-6 with diagonal Hessians of condition 100."""
    hessians = np.array([[1, 0.01, 0.3], [0.8, 0.02, 0.01]])
    centres = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 2.0]])
    best = (hessians * centres).sum(0) / hessians.sum(0)
    for num_steps, expected in [(1, 910), (10, 108)]:
        path = models(
            fs.scaffnew(1.0, 1 / num_steps),
            expected + 5,
            clients=(hessians, centres),
            num_steps=num_steps,
        )
        errors = np.linalg.norm(path - best, axis=1) / np.linalg.norm(best)
        assert np.argmax(errors < 1e-6) + 1 == expected
