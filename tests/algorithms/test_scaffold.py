"""SCAFFOLD against its NumPy derivation, and the identities of its control variates."""

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, exact_task, hyper, program
from small_problems import (
    NUM_CLIENTS,
    SIZES,
    assert_close,
    compiled,
    logistic_data,
    logistic_params,
    logistic_task,
    partial_timeline,
    quadratic_task,
    random_quadratics,
    recorded_rounds,
)

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over four rounds, round-off stays some digits below this.
TOLERANCE = 1e-12


def flat(params):
    """[..., d]: the model of the derivations."""
    return np.concatenate([params["w"], np.asarray(params["b"])[..., None]], axis=-1)


def whole_data_weights():
    """[M, N]: the mean over each client's examples."""
    owners = logistic_data().owners()
    return (owners == np.arange(NUM_CLIENTS)[:, None]) / SIZES[:, None]


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("minibatches", [False, True])
def test_derivation(option, minibatches):
    timeline, key, name = partial_timeline(), jax.random.key(2), f"scaffold_{option}"
    task = logistic_task() if minibatches else exact_task()
    rule = fs.epochs(2, 2) if minibatches else fs.full_batch(timeline.max_steps)
    state = program(name)(hyper(name), task, timeline, key)
    examples = logistic_data().examples
    expected = derivations.scaffold(
        derivations.logistic_gradient(examples["x"], examples["y"]),
        whole_data_weights(),
        recorded_rounds(SIZES, rule, timeline, key),
        flat(logistic_params()),
        **ALGORITHMS[name][1],
        option=option,
    )
    actual = (flat(state.server.params), flat(state.server.control), flat(state.clients))
    assert_close(actual, expected, TOLERANCE)


@pytest.mark.parametrize("option", ["I", "II"])
def test_server_control_is_the_mean_of_all_controls(option):
    """From zero, under partial participation with dropout: c and mean c_i move together."""
    name = f"scaffold_{option}"
    state = program(name)(hyper(name), exact_task(), partial_timeline(), jax.random.key(2))
    control = flat(state.server.control)
    assert np.abs(control).max() > 0.01
    assert_close(control, flat(state.clients).mean(0), TOLERANCE)


HESSIANS, CENTRES = random_quadratics(6, 3)
START = jnp.array([1.0, -2.0, 0.5])


def state_after(algorithm, num_steps, num_rounds, cohort_size=6):
    task = quadratic_task(HESSIANS, CENTRES, num_steps)
    timeline = fs.timelines.cyclic(num_rounds, 6, cohort_size, num_steps)

    @compiled
    def solve(task):
        start = jnp.asarray(START, jnp.result_type(float))
        return fs.run(algorithm, fs.Setup(task, timeline, start), jax.random.key(0))[0]

    return solve(task)


@pytest.mark.parametrize("option", ["I", "II"])
def test_first_round_is_fedavg(option):
    """All controls are still zero."""
    expected = state_after(fs.fedavg(0.1), 5, num_rounds=1).server.params
    actual = state_after(fs.scaffold(0.1, option=option), 5, num_rounds=1).server.params
    assert_close(actual, expected, TOLERANCE)
    second = state_after(fs.fedavg(0.1), 5, num_rounds=2).server.params
    other = state_after(fs.scaffold(0.1, option=option), 5, num_rounds=2).server.params
    assert np.abs(other - second).max() > 1e-3


def test_option_two_with_one_step_keeps_the_minibatch_gradient():
    """K = 1: c_i - c + (x - y) / lr is the gradient just taken, whatever the controls were."""
    task = logistic_task()
    timeline = fs.timelines.cyclic(4, NUM_CLIENTS, cohort_size=3, num_steps=1)
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

    values = probed(task)
    assert_close(values["control"], values["gradient"], TOLERANCE)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("cohort_size", [6, 2])
def test_converges_where_fedavg_does_not(option, cohort_size):
    """Full gradients and heterogeneous curvature: no drift, even if few clients report."""
    optimum = np.linalg.solve(HESSIANS.sum(0), np.einsum("mij,mj->i", HESSIANS, CENTRES))
    corrected = state_after(fs.scaffold(0.1, option=option), 10, 300, cohort_size).server
    drifting = state_after(fs.fedavg(0.1), 10, 300, cohort_size).server
    # A round contracts by 0.95^10 = 0.6 at worst; 300 of them leave round-off only, and the
    # controls are then the local gradients at the optimum, whose mean is 0.
    np.testing.assert_allclose(corrected.params, optimum, rtol=0, atol=1e-10)
    np.testing.assert_allclose(corrected.control, 0, rtol=0, atol=1e-10)
    assert np.linalg.norm(drifting.params - optimum) > 0.01


@pytest.mark.parametrize("option", [1, "2", "i", None])
def test_refuses_other_options(option):
    with pytest.raises(ValueError, match=r"option is .*; expected 'I' or 'II'"):
        fs.scaffold(0.1, option=option)
