"""FedAvgM, FedAdagrad, FedAdam and FedYogi: derivations of their servers."""

import derivations
import optax
import pytest
from catalogue import ALGORITHMS, model
from derivations import flat, gradient, start, visits
from instance_q import models
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, final, same_clients
from small_problems import (
    assert_close,
)

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


SERVERS = {
    "fedavgm": derivations.momentum,
    "fedadagrad": derivations.adagrad,
    "fedadam": derivations.adam,
    "fedyogi": derivations.yogi,
}


@pytest.mark.parametrize("name", SERVERS)
def test_server(name):
    numbers = {key: value for key, value in ALGORITHMS[name][1].items() if key != "lr"}
    server = SERVERS[name](**numbers)
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, server=server)
    assert_close(flat(model(name)), expected, TOLERANCE)


def test_without_momentum_it_is_fedavg():
    assert_close(model("fedavgm", server_lr=1.0, momentum=0.0), model("fedavg"), TOLERANCE)


def test_identical_clients_act_as_one():
    expected = final(fs.fedavgm(0.2), clients=same_clients(1))
    assert_close(final(fs.fedavgm(0.2), clients=same_clients(NUM_CLIENTS)), expected, TOLERANCE)


def test_scaled_objective_with_scaled_rate():
    scaled = final(fs.fedavgm(0.1 / 3), clients=(3 * HESSIANS, CENTRES))
    assert_close(scaled, final(fs.fedavgm(0.1)), TOLERANCE)


@pytest.mark.parametrize("factory", [fs.fedavgm, fs.diloco])
def test_schedules_of_the_server_count_its_updates(factory):
    """A rate that becomes 0 after two updates: the model stays from then on."""
    schedule = optax.piecewise_constant_schedule(0.5, {2: 0.0})
    path = models(factory(0.1, server_lr=schedule), 4)
    constant = models(factory(0.1, server_lr=0.5), 4)
    assert_close(path[:2], constant[:2], 1e-6)  # optax's schedules are in float32
    assert (path[2:] == path[1]).all()
    assert abs(constant[3] - constant[1]) > 1e-3
