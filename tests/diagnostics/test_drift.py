"""The shadow sequence against runs, and bounds with measured constants."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled, logistic_data, logistic_losses

import fedjax_sim as fs
from fedjax_sim.diagnostics.constants import measure
from fedjax_sim.diagnostics.drift import shadow_probes, shadowed
from fedjax_sim.diagnostics.gradient_moments import batch_moments
from fedjax_sim.diagnostics.linear_models import LOGISTIC, linear_model_bounds
from fedjax_sim.diagnostics.optimum import mean_loss, optimum
from fedjax_sim.local import local_path, sgd
from fedjax_sim.objectives import with_l2
from fedjax_sim.theory.fedavg import bound, drift_bound, shadow_bound

KEY = jax.random.key(0)


@pytest.mark.slow
def test_shadow_probes_against_all_iterates(x64):
    """Equal to the numbers from all clients' iterates; the models are those of FedAvg."""
    data = logistic_data()
    task = fs.empirical_task(logistic_losses, data, fs.with_replacement(2, 4))
    params = {"w": jnp.array([0.3, -0.2, 0.1]), "b": jnp.array(0.05)}
    setup = fs.Setup(task, fs.timelines.full(3, 8, 4), params)
    loss = mean_loss(logistic_losses, data)

    def path(visit):
        return local_path(sgd(0.3, visit.oracle.grad), visit.message, visit.work)

    @compiled
    def everything(setup, loss):
        probes = shadow_probes(loss)._replace(client={"path": path})
        state, history = fs.run(shadowed(0.3), setup, KEY, probes=probes)
        plain, _ = fs.run(fs.fedavg(0.3), setup, KEY)
        return state.server.params, plain.server.params, history.probes

    result, plain, probed = everything(setup, loss)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    paths = probed["path"]
    flat = np.concatenate([paths["w"], paths["b"][..., None]], axis=-1)  # [3, 8, 5, 4]
    shadow = flat.mean(axis=1)
    models = {"w": shadow[:, 1:, :3].reshape(12, 3), "b": shadow[:, 1:, 3].ravel()}
    for name, expected in (
        ("shadow_loss", jax.vmap(loss)(models).reshape(3, 4).mean(axis=1)),
        ("drift", ((flat - shadow[:, None]) ** 2).sum(axis=-1)[..., :-1].mean(axis=(1, 2))),
        ("drift_from_start", ((flat - flat[:, :, :1]) ** 2).sum(axis=-1)[..., :-1].mean((1, 2))),
    ):
        np.testing.assert_allclose(probed[name], expected, rtol=1e-9)
    assert probed["drift"].min() > 1e-3


def test_empty_slots_do_not_reduce_the_drift():
    """Clients at 0, 4 and 10; the third one is not in the round."""
    data = fs.FederatedData({"x": np.array([0.0, 4.0, 10.0], np.float32)}, np.arange(4))
    task = fs.empirical_task(
        lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2, data, fs.full_batch(2)
    )
    mask = np.array([[True, True, False]])
    timeline = dataclasses.replace(fs.timelines.full(1, 3, 2), mask=mask)
    setup = fs.Setup(task, timeline, jnp.array(6.0))
    _, history = fs.run(shadowed(0.5), setup, KEY, probes=shadow_probes())
    # Steps halve the distance to the client's example: 6, 3, 3/2 and 6, 5, 9/2.
    np.testing.assert_allclose(history.probes["drift_from_start"], [(0 + (9 + 1) / 2) / 2])
    np.testing.assert_allclose(history.probes["drift"], [(0 + 1) / 2])


@pytest.mark.slow
def test_shadow_loss_of_a_round_without_uploads_is_that_of_the_model():
    """F(w) = (w - 2)^2 / 2 + 2 with clients at 0 and 4; a step of 1 / 2 halves w - 2."""
    data = fs.FederatedData({"x": np.array([0.0, 4.0], np.float32)}, np.array([0, 1, 2]))
    task = fs.empirical_task(
        lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2, data, fs.full_batch(2)
    )
    present = np.array([[True, True], [False, False], [True, True]])
    timeline = dataclasses.replace(fs.timelines.full(3, 2, 2), mask=present)
    setup = fs.Setup(task, timeline, jnp.array(6.0))
    probes = shadow_probes(lambda w: (w - 2) ** 2 / 2 + 2)
    _, history = fs.run(shadowed(0.5), setup, KEY, probes=probes)
    # w - 2 is 4, 2, 1 in round 0, stays 1 in round 1, and is 1, 1/2, 1/4 in round 2.
    expected = [2 + (4 + 1) / 4, 2 + 1 / 2, 2 + (1 / 4 + 1 / 16) / 4]
    np.testing.assert_allclose(history.probes["shadow_loss"], expected, rtol=1e-6)  # float32
    assert history.probes["drift"][1] == history.probes["drift_from_start"][1] == 0
    probes = shadow_probes(lambda w: (w - 2) ** 2 / 2 + 2, at="start")
    _, history = fs.run(shadowed(0.5), setup, KEY, probes=probes)
    expected = [2 + (16 + 4) / 4, 2 + 1 / 2, 2 + (1 + 1 / 4) / 4]
    np.testing.assert_allclose(history.probes["shadow_loss"], expected, rtol=1e-6)
    with pytest.raises(ValueError, match="at is 'middle'; expected 'start' or 'end'"):
        shadow_probes(at="middle")
    stale = dataclasses.replace(timeline, max_staleness=1)
    with pytest.raises(ValueError, match="clients that started from one model"):
        fs.run(shadowed(0.5), dataclasses.replace(setup, timeline=stale), KEY)


@pytest.mark.slow
def test_bounds_with_measured_constants_hold_for_the_run():
    """Equation 2.1 and Lemma 2.3 for the mean of 20 runs; constants at the visited models."""
    data = logistic_data()
    objective = with_l2(logistic_losses, 0.05)
    K, R, lr = 4, 30, 0.1
    task = fs.empirical_task(objective, data, fs.with_replacement(1, K))
    loss = mean_loss(objective, data)
    start = {"w": jnp.array([2.0, -2.0, 1.0]), "b": jnp.array(0.0)}
    result = optimum(loss, start)
    timeline = fs.timelines.full(R, 8, K)

    @compiled
    def runs(task, loss, keys):
        def one(key):
            probes = shadow_probes(loss)
            probes.server["model"] = lambda update: update.state.params
            return fs.run(
                shadowed(lr),
                fs.Setup(task, timeline, start),
                key,
                execution=fs.execution.vmapped(),
                probes=probes,
            )[1].probes

        return jax.vmap(one)(keys)

    probed = runs(task, loss, jax.random.split(KEY, 20))
    points = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:: R // 5], probed["model"])
    moments = batch_moments(objective, data, points, 1)
    constants = measure(task, points, KEY, moments=moments, found=result, loss=loss)
    bounds = linear_model_bounds(data.examples["x"], data.offsets, LOGISTIC, l2=0.05)
    assert constants.L <= bounds.L
    assert constants.mu >= bounds.mu
    gaps = np.asarray(probed["shadow_loss"], float).mean(axis=1) - result.value
    slack = 4 * gaps.std() / np.sqrt(len(gaps))
    constants = constants._replace(L=bounds.L)
    visit = {"lr": lr, "local_steps": K}
    most = float(bound(constants, "convex", **visit, rounds=R, clients=8))
    drift = probed["drift"].mean()
    measured = float(shadow_bound(constants, drift=drift, **visit, rounds=R, clients=8))
    assert 0 < gaps.mean() <= measured + slack
    assert measured < most
    assert gaps.mean() > 0.05 * measured  # the lemma is not vacuous here
    assert drift <= float(drift_bound(constants, **visit))
