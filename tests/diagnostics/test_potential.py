"""The mean model and the potential against NumPy, the paper's identities and all subsets."""

import itertools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from fedjax_sim.diagnostics.potential import client_variance, mean_model, potential

pytestmark = pytest.mark.usefixtures("x64")

SIZES = st.sampled_from([1, 2, 6])  # few shapes: every one is compiled


def models(n, seed):
    rng = np.random.default_rng(seed)
    server = {"w": rng.normal(size=(2, 3)), "b": rng.normal()}
    clients = {"w": rng.normal(size=(n, 2, 3)), "b": rng.normal(size=n)}
    return jax.tree.map(jnp.asarray, (server, clients))


def flat(server, clients):
    """Rows: the server's model, then the clients'."""
    rows = [np.append(np.ravel(server["w"]), server["b"])]
    rows += [np.append(np.ravel(w), b) for w, b in zip(clients["w"], clients["b"], strict=True)]
    return np.stack(rows)


@pytest.mark.slow
@given(n=SIZES, seed=st.integers(0, 1000))
def test_against_numpy_and_equation_77(n, seed):
    """rtol 1e-12: sums of some 50 squares in double precision."""
    server, clients = models(n, seed)
    rows = flat(server, clients)
    mu = rows.mean(0)
    mean = mean_model(server, clients)
    assert jax.tree.map(jnp.shape, mean) == jax.tree.map(jnp.shape, server)
    np.testing.assert_allclose(np.append(np.ravel(mean["w"]), mean["b"]), mu, rtol=1e-12)
    phi, variance = float(potential(server, clients)), float(client_variance(server, clients))
    np.testing.assert_allclose(phi, np.sum((rows - mu) ** 2), rtol=1e-12)
    np.testing.assert_allclose(variance, np.sum((rows[1:] - rows[0]) ** 2), rtol=1e-12)
    of_server, of_clients = np.sum((rows[0] - mu) ** 2), np.sum((rows[1:] - mu) ** 2)
    np.testing.assert_allclose(variance, (n + 2) * of_server + of_clients, rtol=1e-12)
    np.testing.assert_allclose(variance, phi + (n + 1) * of_server, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["favano", "quafl"])
@given(n=SIZES, data=st.data(), seed=st.integers(0, 1000))
def test_equation_53_for_every_cohort(method, n, data, seed):
    """A server step moves mu by -lr / (n + 1) times the progress of the contacted clients."""
    cohort = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    server, clients = models(n, seed)
    rows, s, lr = flat(server, clients), len(cohort), 0.3
    progress = np.random.default_rng(seed + 1).normal(size=rows[1:].shape)
    moved = rows[1:] - lr * progress
    after = rows.copy()
    after[0] = (rows[0] + moved[cohort].sum(0)) / (s + 1)
    for i in cohort:  # QuAFL's clients mix in the server's OLD model
        after[1 + i] = after[0] if method == "favano" else (rows[0] + s * moved[i]) / (s + 1)
    mean = np.asarray(mean_model(jnp.asarray(after[0]), jnp.asarray(after[1:])))
    expected = rows.mean(0) - lr / (n + 1) * progress[cohort].sum(0)
    np.testing.assert_allclose(mean, expected, atol=1e-13)


@pytest.mark.slow
def test_potential_of_agreeing_and_of_contacted_clients():
    server, clients = models(5, 0)
    same = jax.tree.map(lambda w: jnp.broadcast_to(w, (5, *w.shape)), server)
    # the mean of six equal numbers is off by a rounding error
    assert float(potential(server, same)) < 1e-28
    assert float(client_variance(server, same)) == 0
    rows = flat(server, clients)
    everyone = jnp.broadcast_to(jnp.asarray(rows.mean(0)), (5, 7))
    assert float(potential(everyone[0], everyone)) < 1e-28


@pytest.mark.slow
def test_expected_contraction_over_all_cohorts():
    """n = 7 and no gradients: the worst models' ratio for s = 1 .. 7, by brute force."""
    n, tabulated = 7, [0.93, 0.79, 0.64, 0.49, 0.32, 0.16, 0.0]
    rng = np.random.default_rng(0)
    ratios = jax.jit(jax.vmap(potential))
    for s, worst in enumerate(tabulated, start=1):
        cohorts = list(itertools.combinations(range(n), s))
        largest = 0.0
        for trial in range(30):
            clients = rng.normal(size=(n, 2))
            # worst: the server's model is the clients' mean
            server = clients.mean(0) if trial == 0 else rng.normal(size=2)
            start = float(potential(jnp.asarray(server), jnp.asarray(clients)))
            servers, after = [], []
            for cohort in cohorts:
                new = (server + clients[list(cohort)].sum(0)) / (s + 1)
                models_ = clients.copy()
                models_[list(cohort)] = new
                servers.append(new)
                after.append(models_)
            mean = np.mean(ratios(jnp.asarray(np.stack(servers)), jnp.asarray(np.stack(after))))
            largest = max(largest, float(mean) / start)
        assert abs(largest - worst) < 0.006  # two digits, the second one cut or rounded


@pytest.mark.slow
def test_keeps_the_precision_of_the_models_and_compiles():
    server, clients = jax.tree.map(lambda x: x.astype(jnp.float32), models(4, 1))
    mean = jax.jit(mean_model)(server, clients)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(mean))
    for function in (potential, client_variance):
        eager, compiled = function(server, clients), jax.jit(function)(server, clients)
        assert eager.dtype == jnp.float32
        np.testing.assert_allclose(compiled, eager, rtol=1e-6)  # single precision, reordered sums


def test_refuses_clients_that_do_not_fit():
    server, clients = models(3, 0)
    for function in (mean_model, potential, client_variance):
        with pytest.raises(ValueError, match=r"structure .*expected .*as the server"):
            function(server, {"w": clients["w"]})
        with pytest.raises(ValueError, match=r"shapes .*expected the shapes of the server"):
            function(server, {"w": clients["w"], "b": clients["b"][:2]})
        with pytest.raises(ValueError, match="at least 1 client"):
            function(server, jax.tree.map(lambda x: x[:0], clients))
        with pytest.raises(ValueError, match="at least 1 client"):
            function(server, server)
        with pytest.raises(ValueError, match="at least one leaf"):
            function({}, {})


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_sums_over_many_clients_in_half_precision(dtype):
    """1,000 models of 128, or squares of 128, leave the range of float16."""
    server, clients = jnp.full(2, 128.0, dtype), jnp.full((999, 2), 128.0, dtype)
    mean = mean_model(server, clients)
    assert mean.dtype == dtype
    assert mean.tolist() == [128.0, 128.0]
    np.testing.assert_allclose(client_variance(server, 0 * clients), 999 * 2 * 2.0**14, rtol=1e-6)
    mu = 128 / 1000
    expected = 2 * ((128 - mu) ** 2 + 999 * mu**2)
    np.testing.assert_allclose(potential(server, 0 * clients), expected, rtol=1e-6)
