"""FedGAMMA against NumPy, and where it coincides with SCAFFOLD and FedSAM."""

import numpy as np
import pytest
from catalogue import model, moved
from network import final, flat, gradient, mean, rounds, sam_offset, start
from quadratics import same_clients, state_after
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs
from fedjax_sim import tree

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def test_fedgamma():
    lr, radius, server_lr = 0.1, 0.3, 0.8
    x, c, controls = start(), np.zeros_like(start()), np.zeros((NUM_CLIENTS, len(start())))
    for visits in rounds():
        moves, changes = [], []
        for client, batches in visits:
            y = x
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), radius), weights)
                y = y - lr * (g - controls[client] + c)
            new = controls[client] - c + (x - y) / (len(batches) * lr)
            moves.append(y - x)
            changes.append(new - controls[client])
            controls[client] = new
        x = x + server_lr * mean(moves)
        c = c + np.sum(changes, axis=0) / NUM_CLIENTS
    state = final(fs.fedgamma(lr, radius, server_lr))
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    assert_close(actual, (x, c, controls), TOLERANCE)


def frozen(algorithm):
    """Its clients' and its server's controls kept at zero."""

    def local(message, state, oracle, work):
        (delta, change), _ = algorithm.local(message, state, oracle, work)
        return (delta, tree.zeros_like(change)), state

    return algorithm._replace(local=local)


@pytest.mark.slow
def test_without_radius_it_is_scaffold():
    expected = model("scaffold_II", server_lr=1.0)
    assert_close(model("fedgamma", radius=0.0, server_lr=1.0), expected, TOLERANCE)


def test_without_controls_it_is_fedsam():
    expected = state_after(fs.fedsam(0.1, radius=0.3)).server.params
    actual = state_after(frozen(fs.fedgamma(0.1, radius=0.3))).server.params
    assert_close(actual, expected, TOLERANCE)
    assert moved(actual, state_after(fs.fedgamma(0.1, radius=0.3)).server.params) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fs.fedgamma(0.1)])
def test_identical_clients_act_as_one(algorithm):
    several = state_after(algorithm, 3, 6, clients=same_clients(6))
    one = state_after(algorithm, 3, 1, clients=same_clients(1))
    assert_close(several.server.params, one.server.params, TOLERANCE)
