"""Runs in the context of a mesh of the user's, set by ``jax.set_mesh``."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from small_problems import KEY, NUM_CLIENTS

import fedjax_sim as fs
from fedjax_sim.engine.execution import placement, strategies

EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def mesh(kind):
    devices = jax.devices()[:2]
    return jax.make_mesh((2,), ("clients",), devices=devices, axis_types=(kind,))


@pytest.mark.parametrize("kind", [EXPLICIT, AUTO])
def test_auto_uses_no_mesh_beside_the_one_that_is_set(kind, monkeypatch):
    """A program has one mesh, so the host devices do not divide the clients of a round."""
    monkeypatch.setattr(strategies, "workers", lambda: jax.devices()[:2])

    def local(shared, slot):
        return jnp.full(100, slot), ()

    with jax.set_mesh(mesh(kind)):
        mean, _ = jax.jit(lambda x: strategies.auto()(local, (), x, x))(jnp.ones(4))
    assert mean.tolist() == [1.0] * 100


@pytest.mark.parametrize(
    "build",
    [
        lambda set_mesh: (None, strategies.sharded(set_mesh)),
        lambda set_mesh: (placement.by_client(NUM_CLIENTS, set_mesh), None),
    ],
)
def test_divided_clients_refuse_explicit_axes(build):
    set_mesh = mesh(EXPLICIT)
    where, execution = build(set_mesh)
    data = fs.from_clients([{"x": jnp.ones(1)}] * NUM_CLIENTS)
    task = fs.empirical_task(
        lambda w, batch, key: (w - batch["x"]) ** 2, data, fs.full_batch(1), placement=where
    )
    setup = fs.Setup(task, fs.timelines.full(1, NUM_CLIENTS, 1), jnp.zeros(()))
    with jax.set_mesh(set_mesh), pytest.raises(ValueError, match=r"axes \('clients',\) of type Ex"):
        fs.run(fs.fedavg(0.1), setup, KEY, execution=execution)
