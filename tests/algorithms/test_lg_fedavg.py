"""LG-FedAvg is FedPer with the other leaves private."""

import pytest
from bilinear import COHORTS, head, joint, run
from small_problems import assert_close, assert_identical

import fedjax_sim as fs
from fedjax_sim.tree.leaves import others

pytestmark = pytest.mark.usefixtures("x64")


def test_common_head_over_private_bodies():
    """By hand, with the roles of u and v exchanged; equal to FedPer with private bodies."""
    state = run(fs.lg_fedavg(0.1, where=head), 3, COHORTS)
    u, v = [1.0, 1.0], 0.5
    for row in COHORTS:
        heads = []
        for i in range(2):
            if row[i]:
                u[i], new = joint(3)((1.0, -2.0)[i], u[i], v)
                heads.append(new)
        v = sum(heads) / len(heads)
    assert_close(state.server.params["v"], v, 1e-14)
    assert_close(state.clients.personal["u"], u, 1e-14)
    same = run(fs.fedper(0.1, where=others(head)), 3, COHORTS)
    assert_identical((state.server, state.clients), (same.server, same.clients))
