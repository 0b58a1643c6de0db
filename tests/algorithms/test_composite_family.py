"""Properties of all composite methods, and where they differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composite_problems import BALL, CENTRES, HESSIANS, L1, NUM_CLIENTS, START, final, linear_task
from quadratics import state_after
from small_problems import assert_close, compiled, quadratic_task

import fedjax_sim as fs
from fedjax_sim import prox
from fedjax_sim.engine import Probes

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, a few dozen steps of maps that do not expand: round-off does not accumulate.
TOLERANCE = 1e-12


NONE = prox.composite(prox.Zero())


FAMILY = {
    "fedmid": fs.fedmid,
    "fedmid_osp": fs.fedmid_osp,
    "feddualavg": fs.feddualavg,
    "feddualavg_osp": fs.feddualavg_osp,
}


@pytest.mark.parametrize("name", [*FAMILY, "fedavg_subgradient", "averaged_feddualavg"])
def test_a_regulariser_alone_is_no_composite(name):
    with pytest.raises(ValueError, match=r"composite is L1\(.*; expected prox.composite"):
        getattr(fs, name)(0.1, prox.L1(0.2))


@pytest.mark.parametrize("name", FAMILY)
def test_without_regulariser_all_are_fedavg(name):
    task, timeline = quadratic_task(HESSIANS, CENTRES, 5), fs.timelines.cyclic(4, NUM_CLIENTS, 4, 5)

    def models(factory):
        def go(server_lr):
            setup = fs.Setup(task, timeline, jnp.asarray(START))
            return fs.run(factory(server_lr), setup, jax.random.key(0))[0].server.params

        return compiled(jax.vmap(go))(jnp.array([0.4, 1.0, 2.0]))

    expected = models(lambda server_lr: fs.fedavgm(0.2, server_lr, momentum=0.0))
    assert_close(models(lambda server_lr: FAMILY[name](0.2, NONE, server_lr)), expected, TOLERANCE)
    assert np.abs(expected - START).max() > 0.1


def test_theorem_4_3_is_false_for_fedmid():
    """Started at the optimum, without noise, it should stay: the bound is 0. OSP and duals do."""
    task = linear_task(np.array([[3.0], [-1.0]]), 1)
    positive = prox.composite(prox.Box(0.0))

    def visited(algorithm):
        probes = Probes(server={"model": lambda update: update.new_state.params})
        start = np.zeros(1)
        _, probed = state_after(algorithm, 3, 4, 1, clients=task, start=start, probes=probes)
        return np.ravel(probed["model"])

    small, eta = 1e-6, 0.25
    for factory in (fs.feddualavg, fs.fedmid_osp):
        assert_close(visited(factory(small * eta, positive, 1 / small)), np.zeros(3), TOLERANCE)
    # Only the second client moves, by eta / 2; then the mean slope 1 moves the model back by eta.
    moves = visited(fs.fedmid(small * eta, positive, 1 / small))
    assert_close(moves, [eta / 2, 0.0, eta / 2], 1e-9)  # rates a million apart lose digits


@pytest.mark.parametrize("name", FAMILY)
def test_scaling_loss_and_regulariser_against_the_rate(name):
    factory = FAMILY[name]
    base = final(factory(0.2, L1, 0.8), 5)
    scaled = quadratic_task(4 * HESSIANS, CENTRES, 5)
    other = factory(0.05, prox.composite(prox.L1(1.2)), 0.8)
    assert_close(final(other, 5, task=scaled), base, TOLERANCE)


@pytest.mark.parametrize("name", FAMILY)
def test_models_of_a_constraint_stay_inside(name):
    """The server's models after every round, also for rates that overshoot."""
    probes = Probes(server={"l1": lambda update: jnp.sum(jnp.abs(update.new_state.params))})
    algorithm = FAMILY[name](0.2, BALL, 1.5)
    clients = HESSIANS, CENTRES
    _, probed = state_after(algorithm, 6, 4, 5, clients=clients, start=START, probes=probes)
    assert np.max(probed["l1"]) <= 1 + TOLERANCE
