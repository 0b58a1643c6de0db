"""FedPer against NumPy and printed figures; what it is with no and with all leaves private."""

import jax
import numpy as np
import pytest
from bilinear import COHORTS, C, by_hand, everything, head, joint, nothing, run
from instance_q import assert_printed
from small_problems import assert_close, assert_identical

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


def test_joint_steps_by_hand():
    """One round of two steps, and three rounds with absent clients, who keep their heads."""
    one = run(fs.fedper(0.1, where=head), 2)
    assert_printed(one.server.params["u"], "0.9342625")
    assert_printed(one.clients.personal["v"], "0.59471563", "0.05585937")
    state = run(fs.fedper(0.1, where=head), 3, COHORTS)
    u, heads = by_hand(joint(3), COHORTS)
    assert_close(state.server.params["u"], u, 1e-14)
    assert_close(state.clients.personal["v"], heads, 1e-14)
    assert float(state.server.params["v"]) == 0.5  # the server's head stays the initial one


def test_private_heads_fit_clients_that_one_model_cannot():
    """The claim: u v_i = c_i has solutions with heads, and no common v fits both clients."""
    rounds = np.ones((300, 2), bool)
    state = run(fs.fedper(0.1, where=head), 2, rounds)
    products = state.server.params["u"] * state.clients.personal["v"]
    np.testing.assert_allclose(products, C, atol=1e-6)
    common = run(fs.fedavg(0.1), 2, rounds).server.params
    assert np.abs(common["u"] * common["v"] - C).max() > 1.4  # the mean of c is -0.5


@pytest.mark.slow
def test_nothing_private_is_fedavg_and_everything_local_training():
    plain, none = run(fs.fedavg(0.1), 3, COHORTS), run(fs.fedper(0.1, nothing), 3, COHORTS)
    assert_identical(none.server.params, plain.server.params)
    alone = run(fs.fedper(0.1, everything), 3, COHORTS)
    assert jax.tree.map(float, alone.server.params) == {"u": 1.0, "v": 0.5}
    visit = joint(3)
    for i, c in enumerate(C):
        u, v = 1.0, 0.5
        for _ in range(COHORTS[:, i].sum()):
            u, v = visit(c, u, v)
        assert_close(
            jax.tree.map(lambda x, i=i: x[i], alone.clients.personal), {"u": u, "v": v}, 1e-14
        )
