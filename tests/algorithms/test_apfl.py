"""APFL against NumPy, its figures and identities, and the weights that adapt."""

import instance_q
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import assert_printed
from small_problems import SIZES, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps


def in_numpy(lr, alpha, adaptive, after):
    x = start()
    v, a = np.tile(x, (len(SIZES), 1)), np.full(len(SIZES), alpha)
    for cohort in visits():
        models = []
        for i, batches in cohort:
            y = x
            for weights in batches:
                new = y - lr * gradient()(y, weights)
                other = new if after else y
                g = gradient()(a[i] * v[i] + (1 - a[i]) * other, weights)
                slope = (v[i] - other) @ g
                v[i] = v[i] - lr * a[i] * g
                if adaptive:
                    a[i] = min(max(a[i] - lr * slope, 0), 1)
                y = new
            models.append(y)
        x = np.mean(models, axis=0)
    return x, v, a


@pytest.mark.parametrize(("name", "adaptive"), [("apfl", False), ("apfl_adaptive", True)])
def test_apfl(name, adaptive):
    state = trained(name, current_timeline())
    x, v, a = in_numpy(**ALGORITHMS[name][1], adaptive=adaptive, after=adaptive)
    actual = flat(state.server.params), flat(state.clients.params), state.clients.alpha
    assert_close(actual, (x, v, a), TOLERANCE)
    assert (np.ptp(a) > 0.01) == adaptive
    assert_close(state.server.params, trained("fedavg").server.params, TOLERANCE)


@pytest.mark.parametrize(("order", "v"), [("before", "0.49251861"), ("after", "0.44160691")])
def test_figures_on_instance_q(order, v):
    state, x = instance_q.final_state(fs.apfl(0.1, 0.5, order=order), instance_q.setup(rounds=1))
    assert_printed(state.clients.params, "0", v)
    assert_printed(x, "0.415965")


def test_the_ends_are_fedavg_and_local_training():
    state, x = instance_q.final_state(fs.apfl(0.1, 0.0), instance_q.setup(rounds=2))
    assert_printed(x, "0.415965", "0.5737322052")
    np.testing.assert_array_equal(state.clients.params, 0)
    state, x = instance_q.final_state(fs.apfl(0.1, 1.0), instance_q.setup(rounds=2))
    assert_printed(x, "0.415965", "0.5737322052")
    alone = instance_q.B * (1 - (1 - 0.1 * instance_q.A) ** 10)
    np.testing.assert_allclose(state.clients.params[:, 0], alone, rtol=1e-14)


def test_personal_model_is_the_mixture_with_the_current_model():
    algorithm = fs.apfl(0.1, alpha=0.25)
    state = algorithm.init_client({"w": jnp.array([8.0])})
    mixed = algorithm.personal({"w": jnp.array([4.0])}, state, None, None)
    assert mixed["w"].tolist() == [5.0]


def test_weights_adapt_to_how_different_a_client_is():
    """The claim: the further a client's optimum from the others', the more personal its model.

    Clients whose optima are 0, 0, 0, 1, 4, whose mean the server's model finds, one step per visit:
    the fourth client needs no model of its own, the last one takes nothing else.
    """
    b = np.array([0.0, 0.0, 0.0, 1.0, 4.0])
    setup = instance_q.setup(rounds=40, clients=(np.ones(5), b), num_steps=1)
    state, x = instance_q.final_state(fs.apfl(0.1, alpha=0.3, adaptive=True), setup)
    v, alpha = state.clients.params[:, 0], np.asarray(state.clients.alpha)
    distance = np.abs(b - x[-1])
    assert alpha[3] == 0
    assert (alpha[:3] > 0.7).all()
    assert (alpha[:3] < 0.8).all()
    assert alpha[4] == 1
    mixed = alpha * v + (1 - alpha) * x[-1]
    assert (np.abs(mixed - b)[[0, 4]] < 0.1 * distance[[0, 4]]).all()


def test_refuses_other_weights_and_orders():
    with pytest.raises(ValueError, match="alpha is 2; expected at most 1"):
        fs.apfl(0.1, alpha=2)
    with pytest.raises(ValueError, match="order is 'first'; expected 'before' or 'after'"):
        fs.apfl(0.1, order="first")
