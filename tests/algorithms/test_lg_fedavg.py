"""LG-FedAvg is FedPer with the other leaves private."""

import jax
import jax.numpy as jnp
import pytest
from bilinear import COHORTS, head, joint, run
from small_problems import assert_close, assert_identical

import fedjax_sim as fs
from fedjax_sim.tree.counting import bits_of_arrays
from fedjax_sim.tree.leaves import others
from fedjax_sim.wrappers.received import dry_visit

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


def test_a_round_sends_the_head_only():
    """The claim: communication is that of the common part, in both directions."""
    params = {"u": jnp.ones(1000), "v": jnp.ones(3)}
    shapes = lambda algorithm: jax.eval_shape(lambda x: dry_visit(algorithm, x, 2, 1)[:2], params)  # noqa: E731
    sizes = [bits_of_arrays(part) for part in shapes(fs.lg_fedavg(0.1, where=head))]
    assert sizes == [3 * 64, 3 * 64]
    assert [bits_of_arrays(part) for part in shapes(fs.fedavg(0.1))] == [1003 * 64, 1003 * 64]
