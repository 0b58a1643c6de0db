"""SCAFFOLD against its NumPy derivation, and the identities of its controls."""

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, task, trained
from derivations import flat, gradient, start, visits, whole_data_weights
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, START, final, optimum, state_after
from small_problems import SIZES, assert_close, compiled, logistic_params, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


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


@pytest.mark.parametrize("option", ["I", "II"])
def test_first_round_is_fedavg(option):
    """All controls are still zero."""
    scaffold, fedavg = fs.scaffold(0.1, option=option), fs.fedavg(0.1)
    assert_close(final(scaffold, 1), final(fedavg, 1), TOLERANCE)
    assert np.abs(final(scaffold, 2) - final(fedavg, 2)).max() > 1e-3


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


@pytest.mark.parametrize("build", [fs.scaffold, fs.fedmoswa, fs.fedgamma])
def test_gradient_controls_start_at_the_local_gradients(build):
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


def test_gradient_controls_of_random_objectives_have_draws_of_their_own():
    """Two clients of equal examples; the gradient is a random number."""
    data = fs.from_clients([{"x": np.zeros(2, np.float32)}] * 2)

    def objective(w, batch, key):
        return w * jax.random.uniform(key, batch["x"].shape, w.dtype)

    task = fs.empirical_task(objective, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(1, 2, 1), jnp.array(0.0))
    state = fs.init(fs.scaffold(0.1), setup)
    one, other = fs.gradient_controls(state, task, jax.random.key(0)).clients
    assert one != other


@pytest.mark.parametrize("option", [1, "2", "i", None])
def test_refuses_other_options(option):
    with pytest.raises(ValueError, match=r"option is .*; expected 'I' or 'II'"):
        fs.scaffold(0.1, option=option)
