"""IFCA against NumPy, its figures and identities, and clusters that it recovers."""

import instance_q
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import assert_printed
from small_problems import SIZES, assert_close, logistic_data, logistic_params

import fedjax_sim as fs
from fedjax_sim.algorithms.ifca import IfcaUpload, permuted_copies

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps


def losses(model, client):
    examples = logistic_data().client(client)
    z = examples["x"] @ model[:-1] + model[-1]
    return np.mean(np.log1p(np.exp(z)) - examples["y"] * z)


def test_ifca():
    """Both clusters have clients, so the means are over some of the reports."""
    state = trained("ifca", current_timeline())
    models = flat(permuted_copies(logistic_params(), 2))
    np.testing.assert_array_equal(models[0], start())
    choices = set()
    for cohort in visits():
        trained_models = [[], []]
        for client, batches in cohort:
            j = int(np.argmin([losses(model, client) for model in models]))
            y = models[j]
            for weights in batches:
                y = y - 0.2 * gradient()(y, weights)
            trained_models[j].append(y)
            choices.add((client, j))
        models = np.stack(
            [np.mean(new, axis=0) if new else old
             for new, old in zip(trained_models, models, strict=True)]
        )  # fmt: skip
    assert len({j for _, j in choices}) == 2
    assert len(choices) >= len(SIZES) - 1
    assert_close(flat(state.server.models), models, TOLERANCE)
    assert_close(flat(state.server.params), models[0], TOLERANCE)


def spread(*offsets):
    return lambda x: x + jnp.array(offsets)[:, None]


def trained_on_q(rounds=1, starts=(0.4, 0.6), wrap=lambda algorithm: algorithm, **options):
    algorithm = wrap(fs.ifca(0.1, len(starts), initial_models=spread(*starts), **options))
    state, _ = instance_q.final_state(algorithm, instance_q.setup(rounds=rounds))
    return np.asarray(state.server.models)[:, 0]


@pytest.mark.parametrize("losses", ["all", "minibatches"])
def test_figures_on_instance_q(losses):
    assert_printed(trained_on_q(losses=losses), "0.236196", "0.932772")


def test_codecs_encode_the_model_of_the_cluster_only():
    """A sign with the mean magnitude is exact for one entry, not for k of them."""
    codec = fs.compression.scaled_sign()
    models = trained_on_q(starts=(0.4, 0.6, 9.0), wrap=lambda plain: fs.compressed(plain, codec))
    assert_printed(models[:2], "0.236196", "0.932772")
    assert models[2] == 9
    upload = IfcaUpload(np.zeros(5), {"w": np.zeros((5, 7, 2), np.float32)})
    bits = fs.compressed(fs.ifca(0.1, num_models=5), codec).requires.bits.upload(upload)
    assert bits == 14 + 32 + 3


def test_one_model_is_fedavg():
    assert_printed(trained_on_q(2, [0.0]), "0.5737322052")


def test_equal_models_and_models_that_diverged():
    """All clients choose the first of two equal models, and none that has no loss."""
    np.testing.assert_allclose(trained_on_q(1, [0.0, 0.0]), [0.415965, 0], rtol=1e-12)
    with jax.debug_nans(False):
        models = trained_on_q(1, [np.nan, 0.0])
    assert np.isnan(models[0])
    assert_printed(models[1], "0.415965")


@pytest.mark.parametrize(("losses", "nearest"), [("minibatches", 0), ("all", 1)])
def test_losses_of_one_visit_and_of_all_examples(losses, nearest):
    """Two minibatches are nearer to model 0, all examples to model 9; no steps, no choice."""
    oracle = fs.Oracle(
        lambda x, k: x, lambda x, k: jnp.abs(x - jnp.asarray(k, float)), lambda x: x - 9
    )
    oracle = oracle._replace(full_loss=lambda x: jnp.abs(x - 9))
    algorithm = fs.ifca(0.1, losses=losses, initial_models=lambda x: jnp.array([0.0, 9.0]))
    message = algorithm.broadcast(algorithm.init(jnp.array(0.0)), None)  # pyright: ignore
    work = fs.Work(0, 0, jnp.array(2), 1, 0, None, max_steps=2)
    assert algorithm.personal(message, (), oracle, work) == 9 * nearest
    assert algorithm.local(message, (), oracle, work)[0].chosen[nearest] == 1
    absent = work._replace(num_steps=jnp.array(0))
    assert not algorithm.local(message, (), oracle, absent)[0].chosen.any()


def test_averaged_gradients_are_not_divided_by_the_share_of_the_cluster():
    """Clients choose (0, 1); each has half of the mean: theta - 0.1 / 2 a (theta - b)."""
    expected = [0.4 - 0.05 * 0.4, 0.6 + 0.05 * 3 * 0.4]
    np.testing.assert_allclose(trained_on_q(average="gradients"), expected, rtol=1e-14)


@pytest.mark.slow
def test_recovers_clusters_from_models_near_them():
    """Clients with optima around -2 and 2: each model finds its cluster's, FedAvg's fits none."""
    rng = np.random.default_rng(0)
    centres = np.repeat([-2.0, 2.0], 5)[:, None] + rng.normal(size=(10, 3)) / 4
    setup = instance_q.setup(rounds=12, clients=(np.ones((10, 3)), centres))
    algorithm = fs.ifca(0.1, initial_models=spread(0.3, -0.1))
    state, _ = instance_q.final_state(algorithm, setup)
    true = np.stack([centres[5:].mean(0), centres[:5].mean(0)])
    np.testing.assert_allclose(state.server.models, true, rtol=1e-2)
    for client in (0, 9):
        oracle = setup.task.oracle(client, jax.random.key(0), 5)
        work = fs.Work(0, client, jnp.array(5), 1, 0, None, max_steps=5)
        message = algorithm.broadcast(state.server, None)
        model = algorithm.personal(message, (), oracle, work)
        np.testing.assert_array_equal(model, state.server.models[int(client < 5)])


def test_an_upload_is_one_model_and_the_number_of_its_cluster():
    algorithm = fs.ifca(0.1, num_models=5)
    upload = IfcaUpload(np.zeros(5), {"w": np.zeros((5, 7, 2)), "b": np.zeros(5, np.float32)})
    bits = algorithm.requires.bits.upload(upload)
    assert bits == 14 * 64 + 32 + 3


@pytest.mark.slow
def test_oracles_without_a_loss():
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: x @ x, lambda x: x)
    work = fs.Work(0, 0, jnp.array(1), 1, 0, None, max_steps=1)
    algorithm = fs.ifca(0.1)
    with pytest.raises(ValueError, match="oracle has no full_loss; expected a task with one, or"):
        algorithm.local(algorithm.init(jnp.ones(2)), (), oracle, work)
