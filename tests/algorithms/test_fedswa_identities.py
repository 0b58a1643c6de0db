"""Where FedSWA, FedMoSWA and the methods beside them coincide, and where they must not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_problems import (
    assert_close,
    compiled,
    logistic_params,
    logistic_task,
    partial_timeline,
    quadratic_task,
    random_quadratics,
)

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.algorithms.fedswa import decaying

pytestmark = pytest.mark.usefixtures("x64")

# Double precision and a few rounds of contractive maps: round-off stays some digits below this.
TOLERANCE = 1e-12

NUM_CLIENTS, DIM = 6, 3
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM)
START = np.array([1.0, -2.0, 0.5])
FULL, PARTIAL = NUM_CLIENTS, 4


def state_after(algorithm, num_rounds=4, cohort_size=PARTIAL, num_steps=5, probes=None):
    """On quadratics without noise, cohorts in cyclic order; with probes the history, too."""
    task = quadratic_task(HESSIANS, CENTRES, num_steps)
    timeline = fs.timelines.cyclic(num_rounds, NUM_CLIENTS, cohort_size, num_steps)

    @compiled
    def solve(task):
        key = jax.random.key(0)
        kwargs = {} if probes is None else {"probes": probes}
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(START)), key, **kwargs)

    state, history = solve(task)
    return state if probes is None else (state, history.probes)


def stochastic(algorithm):
    """The model after four ragged, partial rounds with minibatches and dropout."""

    @compiled
    def go(task, timeline):
        key = jax.random.key(2)
        return fs.run(algorithm, fs.Setup(task, timeline, logistic_params()), key)[0].server.params

    return go(logistic_task(), partial_timeline())


def frozen(algorithm):
    """Its clients' and its server's controls kept at zero."""

    def local(message, state, oracle, work):
        (delta, change), _ = algorithm.local(message, state, oracle, work)
        return (delta, tree.zeros_like(change)), state

    return algorithm._replace(local=local)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fs.fedswa(0.2, rho=1.0, alpha=1.0), fs.fedavg(0.2)),
        (fs.fedswa(0.2, rho=1.0, alpha=0.7), fs.fedavg(0.2, optax.sgd(0.7))),
        (frozen(fs.fedmoswa(0.2)), fs.fedswa(0.2)),
        (fs.fedmoswa(0.2, rho=1.0, alpha=1.0, gamma=0.3), fs.fedmo(0.2, gamma=0.3)),
        (fs.fedacg(0.2, momentum=0.0, weight=0.0), fs.fedavg(0.2)),
        (fs.fedacg(0.2, momentum=0.0, weight=0.4), fs.fedprox(0.2, mu=0.4)),
        (fs.fedsam(0.2, radius=0.0), fs.fedavg(0.2)),
        (fs.fedasam(0.2, radius=0.0), fs.fedavg(0.2)),
        (fs.fedlesam(0.2, radius=0.0), fs.fedavg(0.2)),
        (fs.fedlesam(0.2, radius=0.0, reference="server"), fs.fedavg(0.2)),
        (fs.mofedsam(0.2, radius=0.0, mix=1.0), fs.fedavg(0.2)),
        (fs.mofedsam(0.2, radius=0.3, mix=1.0), fs.fedsam(0.2, radius=0.3)),
        (fs.fedgamma(0.2, radius=0.0), fs.scaffold(0.2)),
        (frozen(fs.fedgamma(0.2, radius=0.3)), fs.fedsam(0.2, radius=0.3)),
        (fs.fedsmoo(0.2, weight=0.4, radius=0.0), fs.feddyn(0.2, weight=0.4)),
    ],
    ids=[
        "fedswa_is_fedavg", "fedswa_is_fedavg_with_server_rate", "fedmoswa_without_controls",
        "fedmo", "fedacg", "fedacg_is_fedprox", "fedsam", "fedasam", "fedlesam",
        "fedlesam_server", "mofedsam_is_fedavg", "mofedsam_is_fedsam", "fedgamma_is_scaffold",
        "fedgamma_without_controls", "fedsmoo_is_feddyn",
    ],
)  # fmt: skip
def test_coincide(one, other):
    expected = stochastic(other)
    assert_close(stochastic(one), expected, TOLERANCE)
    moved = tree.sub(expected, jax.tree.map(np.asarray, logistic_params()))
    assert float(tree.norm(moved)) > 0.1


@pytest.mark.parametrize(
    "changed",
    [
        fs.fedswa(0.2, rho=0.3, alpha=1.0),
        fs.fedswa(0.2, rho=1.0, alpha=1.3),
        fs.fedsam(0.2, radius=0.3),
        fs.fedasam(0.2, radius=0.3),
        fs.fedlesam(0.2, radius=0.3),
        fs.fedlesam(0.2, radius=0.3, reference="server"),
        fs.mofedsam(0.2, radius=0.0, mix=0.5),
        fs.fedacg(0.2, momentum=0.5, weight=0.0),
        fs.feddyn(0.2, weight=0.3),
        # What the released programs train under the names SCAFFOLD and FedDyn: their terms are
        # added to the loss as numbers and have no gradient. Ours have one.
        fs.scaffold(0.2),
        fs.fedmo(0.2),
    ],
)
def test_terms_matter(changed):
    difference = tree.sub(stochastic(changed), stochastic(fs.fedavg(0.2)))
    assert float(tree.norm(difference)) > 1e-3


def test_released_feddyn_is_another_method():
    """Its penalties have no gradient, and its server adds a multiple of all past displacements."""
    a = 0.3
    inert = optax.chain(
        optax.GradientTransformation(
            lambda params: tree.zeros_like(params),
            lambda g, sums, params=None: (
                tree.add_scale(g, a, tree.add(sums, g)),
                tree.add(sums, g),
            ),
        ),
        optax.sgd(1.0),
    )
    released = stochastic(fs.fedavg(0.2, inert))
    for ours in (fs.feddyn(0.2, a), fs.fedavg(0.2)):
        assert float(tree.norm(tree.sub(released, stochastic(ours)))) > 1e-3


def test_first_round_of_fedmoswa_is_fedswa():
    fedswa, fedmoswa = fs.fedswa(0.1), fs.fedmoswa(0.1)
    expected = state_after(fedswa, num_rounds=1).server.params
    assert_close(state_after(fedmoswa, num_rounds=1).server.params, expected, TOLERANCE)
    second = state_after(fedswa, num_rounds=2).server.params
    assert np.abs(state_after(fedmoswa, num_rounds=2).server.params - second).max() > 1e-3


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_fedmoswa_with_full_participation_and_no_memory_is_scaffold(alpha):
    one, other = fs.fedmoswa(0.1, 1.0, alpha, gamma=1.0), fs.scaffold(0.1, server_lr=alpha)
    expected = state_after(other, cohort_size=FULL)
    actual = state_after(one, cohort_size=FULL)
    assert_close((actual.server, actual.clients), (expected.server, expected.clients), TOLERANCE)
    # The server's controls differ once some clients are absent, the model a round later.
    partly = state_after(one).server.params - state_after(other).server.params
    assert np.abs(partly).max() > 1e-3


def test_gamma_zero_is_not_fedswa():
    """The server's control stays 0, but the clients' still take their mean gradients away."""
    state = state_after(fs.fedmoswa(0.1, gamma=0.0))
    assert np.abs(state.server.control).max() == 0
    assert np.abs(state.clients).max() > 0.1
    assert np.abs(state.server.params - state_after(fs.fedswa(0.1)).server.params).max() > 1e-3


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("schedule", ["k_over_K", "k_over_Km1"])
def test_control_is_the_mean_gradient_weighted_by_rates(rho, schedule):
    """Option II, whatever the controls were: c_i - m cancels."""
    lr, num_steps = 0.1, 5

    def mean_gradient(visit):
        rates = decaying(lr, rho, jnp.array(num_steps), schedule)
        correction = visit.message.control - visit.state
        y, total = visit.message.params, jnp.zeros(DIM)
        for k in range(num_steps):
            g, eta = visit.oracle.grad(y, k), rates.at(jnp.array(k))
            y, total = y - eta * (g + correction), total + eta * g
        return total / rates.total

    probes = fs.Probes(client={"new": lambda v: v.new_state, "mean": mean_gradient})
    algorithm = fs.fedmoswa(lr, rho, 1.5, 0.4, schedule=schedule)
    values = state_after(algorithm, num_steps=num_steps, probes=probes)[1]
    assert_close(values["new"], values["mean"], TOLERANCE)
    assert np.abs(values["new"][-1]).max() > 1e-3


@pytest.mark.parametrize("num_steps", [1, 2, 5, 50])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
def test_sum_of_rates(num_steps, rho):
    at_floor = np.linspace(0.3, rho * 0.3, num_steps + 1)[:-1]
    reaching = np.linspace(0.3, rho * 0.3, num_steps)
    for schedule, rates in (("k_over_K", at_floor), ("k_over_Km1", reaching)):
        ours = decaying(0.3, rho, jnp.array(num_steps), schedule)
        assert_close(ours.at(jnp.arange(num_steps)), rates, TOLERANCE)
        assert_close(ours.total, rates.sum(), TOLERANCE)
    exact = decaying(0.3, rho, jnp.array(num_steps)).total
    trapezoid = num_steps * 0.3 * (1 + rho) / 2
    assert_close(exact / trapezoid, 1 + (1 - rho) / (num_steps * (1 + rho)), TOLERANCE)


def test_inclusive_pseudo_code_has_one_step_more():
    """k = 0..K of Algorithm 1, taken by the letter."""
    literal = 0.3 * (1 - np.arange(6) / 5) + np.arange(6) / 5 * 0.1 * 0.3
    assert_close(decaying(0.3, 0.1, jnp.array(6), "k_over_Km1").at(jnp.arange(6)), literal, 1e-13)


def test_visits_of_one_step_know_no_decay():
    expected = state_after(fs.fedavg(0.1, optax.sgd(1.5)), num_steps=1).server.params
    actual = state_after(fs.fedswa(0.1, rho=0.2), num_steps=1).server.params
    assert_close(actual, expected, TOLERANCE)


def test_rate_decayed_to_zero_keeps_controls():
    """Option II would divide by the sum of rates."""
    algorithm = fs.fedmoswa(lambda round: jnp.where(round < 2, 0.1, 0.0))
    early, late = state_after(algorithm, num_rounds=2), state_after(algorithm, num_rounds=5)
    assert_close((late.server, late.clients), (early.server, early.clients), TOLERANCE)


def test_fedacg_model_is_the_mean_of_the_clients_models():
    probes = fs.Probes(
        client={"model": lambda visit: visit.message - visit.upload},
        server={"params": lambda update: update.new_state.params},
    )
    values = state_after(fs.fedacg(0.1), probes=probes)[1]
    assert_close(values["params"], values["model"].mean(1), TOLERANCE)


def test_first_visits_of_fedlesam_are_fedavg():
    """Three rounds of two clients, nobody twice; from the fourth round on it differs."""
    fedlesam, fedavg = fs.fedlesam(0.1, radius=0.3), fs.fedavg(0.1)
    expected = state_after(fedavg, 3, cohort_size=2).server.params
    assert_close(state_after(fedlesam, 3, cohort_size=2).server.params, expected, TOLERANCE)
    fourth = state_after(fedlesam, 4, cohort_size=2).server.params
    assert np.abs(fourth - state_after(fedavg, 4, cohort_size=2).server.params).max() > 1e-3


@pytest.mark.parametrize(
    "algorithm",
    [
        fs.fedswa(0.1),
        fs.fedsam(0.1),
        fs.fedasam(0.1),
        fs.mofedsam(0.1),
        fs.fedacg(0.1),
        fs.fedlesam(0.1, reference="server"),
        fs.fedmoswa(0.1, gamma=1.0),
        fs.fedgamma(0.1),
    ],
)
def test_identical_clients_act_as_one(algorithm):
    """With controls: those of the others are one's own, and the correction vanishes."""

    def end(count):
        clients = (np.repeat(x[:1], count, axis=0) for x in (HESSIANS, CENTRES))
        task = quadratic_task(*clients, 5)
        timeline = fs.timelines.full(3, count, 5)

        @compiled
        def solve(task):
            return fs.run(
                algorithm, fs.Setup(task, timeline, jnp.asarray(START)), jax.random.key(0)
            )[0]

        return solve(task).server.params

    assert_close(end(NUM_CLIENTS), end(1), TOLERANCE)


@pytest.mark.parametrize("build", [fs.feddyn, fs.scaffold, fs.fedmo])
def test_corrected_methods_find_the_optimum(build):
    """Full participation, exact gradients: their fixed point is the optimum, FedAvg's is not."""
    optimum = np.linalg.solve(HESSIANS.sum(0), np.einsum("mij,mj->i", HESSIANS, CENTRES))
    weight = {"weight": 0.5} if build is fs.feddyn else {}
    found = state_after(build(0.1, **weight), 600, FULL, 10).server.params
    # The slowest of them contracts by 0.95 a round or better: 600 leave 1e-13.
    np.testing.assert_allclose(found, optimum, rtol=0, atol=1e-9)
    drifted = state_after(fs.fedavg(0.1), 600, FULL, 10).server.params
    assert np.linalg.norm(drifted - optimum) > 0.01


@pytest.mark.parametrize("build", [fs.scaffold, fs.fedmoswa, fs.fedgamma])
def test_controls_start_at_the_local_gradients(build):
    task = quadratic_task(HESSIANS, CENTRES, 5)
    timeline = fs.timelines.full(1, NUM_CLIENTS, 5)

    @compiled
    def begin(task):
        state = fs.init(build(0.1), fs.Setup(task, timeline, jnp.asarray(START)))
        return fs.gradient_controls(state, task, jax.random.key(0))

    state = begin(task)
    gradients = np.einsum("mij,mj->mi", HESSIANS, START - CENTRES)
    assert_close(state.clients, gradients, TOLERANCE)
    assert_close(state.server.control, gradients.mean(0), TOLERANCE)
    assert_close(state.server.params, START, TOLERANCE)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fs.fedswa(0.1, schedule="cosine"), "schedule is 'cosine'; expected 'k_over_K'"),
        (lambda: fs.fedmoswa(0.1, schedule="cosine"), "schedule is 'cosine'"),
        (lambda: fs.fedmoswa(0.1, option="III"), "option is 'III'; expected 'I'"),
        (lambda: fs.fedmoswa(0.1, divisor="mean"), "divisor is 'mean'; expected 'sum'"),
        (lambda: fs.fedmoswa(0.1, units="metres"), "units is 'metres'; expected 'gradient'"),
        (lambda: fs.fedlesam(0.1, reference="peer"), "reference is 'peer'; expected 'client'"),
    ],
)
def test_refuses_unknown_options(build, message):
    with pytest.raises(ValueError, match=message):
        build()
