"""FAVANO, QuAFL, FedAsync and FedBuff: identities, potentials and timelines."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from async_problems import (
    ALPHA,
    CENTRES,
    DIM,
    HESSIANS,
    KEY,
    NO_ROUND,
    START,
    K,
    N,
    contacts,
    everyone_done,
    history,
    path,
    task,
    visit,
)
from small_problems import assert_close, assert_identical, compiled, quadratic_task

import fedjax_sim as fs
from fedjax_sim import timelines
from fedjax_sim.algorithms import async_sgd, favano, fedasync, fedbuff, quafl
from fedjax_sim.algorithms.staleness import expected_steps, realised_steps
from fedjax_sim.compression import lattice
from fedjax_sim.diagnostics.client_updates import model_change
from fedjax_sim.diagnostics.potential import client_variance, mean_model, potential
from fedjax_sim.theory import step_counts

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps: round-off does not accumulate

# ---- FAVANO


@pytest.mark.parametrize(
    "alpha",
    [lambda k: expected_steps(jnp.full(N, float(k))), lambda k: realised_steps(jnp.ones(N))],
    ids=["expected", "realised"],
)
@pytest.mark.parametrize("num_steps", [K, 1])
def test_favano_of_a_full_cohort_is_fedavg_with_a_server_rate(alpha, num_steps):
    """Everyone is contacted and has done K steps: rate n / ((n + 1) K)."""
    timeline = everyone_done()
    assert timeline.max_staleness == 0
    timeline = dataclasses.replace(timeline, num_steps=jnp.full_like(timeline.clients, num_steps))
    full = fs.timelines.full(4, N, num_steps=num_steps)
    algorithm = favano(0.2, alpha(num_steps))
    averaged = fs.fedavg(0.2, optax.sgd(N / ((N + 1) * num_steps)))
    expected = path(averaged, full)
    assert_close(path(algorithm, timeline), expected, TOLERANCE)
    assert np.abs(expected[-1] - START).max() > 0.1


@pytest.mark.slow
def test_mean_model_moves_by_the_progress_of_the_contacted():
    """FAVANO and QuAFL, whoever is contacted and however many steps each has done (Eq. 53)."""
    for receives, algorithm in (
        ("new", favano(0.2, expected_steps(jnp.asarray(ALPHA)))),
        ("new", favano(0.2, realised_steps(jnp.linspace(0.6, 1.0, N)))),
        ("current", quafl(0.2)),
    ):
        timeline = contacts(receives)
        assert {0, K} < set(np.ravel(timeline.num_steps).tolist())

        def progress(visit, receives=receives):
            return visit.upload - (visit.message if receives == "new" else visit.state)

        state, after, probes = history(
            algorithm, timeline, client={"progress": progress},
            run={"clients": lambda state: state.clients},
        )  # fmt: skip
        servers = np.concatenate([START[None], after])
        if receives == "new":  # clients hold what they received last
            held = np.concatenate([np.zeros((1, N), int), timelines.held_versions(timeline, N)])
            clients = servers[held]
        else:
            own = np.asarray(probes["clients"])
            clients = np.concatenate([np.broadcast_to(START, (1, N, DIM)), own])
            assert_identical(state.clients, own[-1])
        mu = np.array([mean_model(w, each) for w, each in zip(servers, clients, strict=True)])
        moved = np.asarray(probes["progress"]).sum(axis=1) / (N + 1)
        assert_close(np.diff(mu, axis=0), moved, TOLERANCE)
        assert np.abs(moved).max() > 1e-3
        for w, each in zip(servers, clients, strict=True):  # Equation 77
            phi, own = potential(w, each), np.sum((w - mean_model(w, each)) ** 2)
            np.testing.assert_allclose(client_variance(w, each), phi + (N + 1) * own, rtol=1e-12)


def test_mean_model_as_output():
    """The model that is evaluated is mu; the server's iterates are those of the default."""
    alpha, timeline = expected_steps(jnp.asarray(ALPHA)), contacts()
    _, server, _ = history(favano(0.2, alpha), timeline)
    state, mu, _ = history(favano(0.2, alpha, output="mean"), timeline)
    assert_close(state.server.current, server[-1], TOLERANCE)
    held = np.concatenate([START[None], server])[timelines.held_versions(timeline, N)]
    expected = [mean_model(w, each) for w, each in zip(server, held, strict=True)]
    assert_close(mu, np.array(expected), TOLERANCE)
    assert np.abs(mu[-1] - server[-1]).max() > 1e-3


@pytest.mark.parametrize("receives", ["new", "current"])
def test_without_steps_nothing_moves(receives):
    """A rate of 0 and one model: an average of equal numbers is off by rounding only."""
    algorithm = quafl(0.0) if receives == "current" else favano(0.0, expected_steps(jnp.ones(N)))
    state, after, _ = history(algorithm, contacts(receives))
    np.testing.assert_allclose(after, np.broadcast_to(START, after.shape), rtol=1e-15)
    if receives == "current":
        assert float(potential(state.server.params, state.clients)) < 1e-28


@pytest.mark.parametrize(("s", "worst"), [(1, 0.93), (2, 0.79), (3, 0.64), (5, 0.32), (7, 0.0)])
def test_potential_contracts_without_steps(s, worst):
    """Seven clients with models of their own, the server at their mean: E over all cohorts of one
    contact of FAVANO, to the two digits of the table."""
    n, algorithm = 7, favano(0.0, realised_steps(jnp.ones(7)))
    own = np.random.default_rng(0).normal(size=(n, DIM))
    server = own.mean(axis=0)
    cohorts = np.array(list(itertools.combinations(range(n), s)))

    @compiled
    def contact(cohort, own, server, task):
        def one(client, model):
            count = jnp.array(2)
            work = fs.Work(count, client, count, count, count, KEY, 2)
            return algorithm.local(model, (), task.oracle(0, KEY, 2), work)[0]

        mean = jax.vmap(one)(cohort, own[cohort]).mean(axis=0)
        round = NO_ROUND._replace(num_uploads=jnp.array(s))
        new = algorithm.update(algorithm.init(server), mean, round).params
        return potential(new, own.at[cohort].set(new))

    after = jax.vmap(contact, (0, None, None, None))(
        jnp.asarray(cohorts), jnp.asarray(own), jnp.asarray(server), task()
    )
    ratio = float(after.mean() / potential(jnp.asarray(server), jnp.asarray(own)))
    assert abs(ratio - worst) < 0.006  # the second digit cut or rounded
    if s == n:
        assert ratio < 1e-28


@functools.cache
def frozen_run():
    """100 clients of whom 34 are slow, gradients that do not depend on the model: 0.6 or 2."""
    success = timelines.two_speeds(KEY, 100, 1 / 3, fast=1 / 2, slow=1 / 16)
    timeline = timelines.contacts(
        KEY,
        timelines.renewal_counts(timelines.geometric(success)),
        horizon=7.0 * 600,
        num_clients=100,
        cohort_size=20,
        max_steps=20,
    )
    return success, timeline


@pytest.mark.parametrize("alpha", ["expected", "realised"])
def test_frozen_gradients_are_unbiased(alpha):
    """The mean progress of a visit is one mean gradient, for fast and slow clients alike: five
    standard errors of some 3,500 and 6,900 independent visits (from contact 80 on, when the last
    contact's distance has its law)."""
    success, timeline = frozen_run()
    law = step_counts.renewal(success, 20, 7, 0.2)
    weights = expected_steps(jnp.asarray(law.mean))
    if alpha == "realised":
        weights = realised_steps(jnp.asarray(law.p_active))
    examples = {"y": np.array([0.6, 2.0])}
    problem = fs.data.task.shared_task(
        lambda w, batch, key: w * batch["y"], examples, 100, fs.with_replacement(1, 20)
    )

    @compiled
    def run(problem, timeline):
        probes = fs.Probes(client={"progress": lambda v: v.message - v.upload})
        setup = fs.Setup(problem, timeline, jnp.array(0.0))
        return fs.run(favano(1.0, weights), setup, KEY, probes=probes)[1].probes["progress"]

    progress = np.asarray(run(problem, timeline))[80:]
    slow = (success == 1 / 16)[np.asarray(timeline.clients)[80:]]
    for samples in (progress[slow], progress[~slow]):
        error = samples.std() / np.sqrt(samples.size)
        assert error < 0.03
        assert abs(samples.mean() - 1.3) < 5 * error


@pytest.mark.parametrize("steps", range(K + 1))
def test_masked_steps_are_an_early_stop(steps):
    x = START
    for _ in range(steps):
        x = x - 0.2 * HESSIANS[1] @ (x - CENTRES[1])
    for alpha, factor in (
        (expected_steps(jnp.asarray(ALPHA)), ALPHA[1]),
        (realised_steps(jnp.full(N, 0.9)), 0.9 * max(steps, 1)),
    ):
        sent, _ = visit(favano(0.2, alpha), jnp.asarray(START), (), steps)
        assert_close(sent, START + (x - START) / factor, TOLERANCE)
        if steps == 0:
            assert_identical(sent, START)  # to the bit


@pytest.mark.parametrize("law", [expected_steps, realised_steps])
def test_a_client_that_never_does_a_step_may_have_the_weight_0(law):
    timeline = contacts()
    idle = dataclasses.replace(
        timeline, num_steps=jnp.where(timeline.clients == 0, 0, timeline.num_steps)
    )
    ones, zero = jnp.ones(N), jnp.ones(N).at[0].set(0)
    assert_identical(path(favano(0.2, law(zero)), idle), path(favano(0.2, law(ones)), idle))
    with pytest.raises(ValueError, match=rf"{law.__name__}\.\w+ is 0 for client 0, which does"):
        path(favano(0.2, law(zero)), timeline)
    with pytest.raises(ValueError, match=r"is -1\.0; expected at least 0"):
        law(-ones)


@pytest.mark.parametrize("law", [expected_steps, realised_steps])
@pytest.mark.parametrize("count", [N - 1, N + 1, 1])
def test_refuses_constants_of_another_number_of_clients(law, count):
    """JAX would clamp the index and train another model."""
    setup = fs.Setup(task(), contacts(), jnp.asarray(START))
    message = rf"has the shape \({count},\); expected \({N},\), one entry per client"
    with pytest.raises(ValueError, match=law.__name__ + r"\.\w+ " + message):
        fs.run(favano(0.2, law(jnp.ones(count))), setup, KEY)
    with pytest.raises(ValueError, match=message):  # with traced numbers, too
        jax.eval_shape(
            lambda values, setup: fs.run(favano(0.2, law(values)), setup, KEY),
            jnp.ones(count),
            setup,
        )
    with pytest.raises(ValueError, match=r"has the shape \(\); expected"):
        fs.init(favano(0.2, law(jnp.array(1.0))), setup)


def test_mean_model_needs_equal_weights_and_all_uploads():
    """Without them the progress of the contacted clients does not tell how their mean moves."""
    algorithm = favano(0.2, expected_steps(jnp.ones(N)), output="mean")
    setup = fs.Setup(task(), contacts(), jnp.asarray(START), weighting=fs.weight_by_examples)
    message = "weighting is weight_by_examples; expected uniform_weights: the mean model"
    with pytest.raises(ValueError, match=message):
        fs.init(algorithm, setup)
    fs.init(favano(0.2, expected_steps(jnp.ones(N))), setup)
    lossy = timelines.lose_uploads_of(contacts(), 0)
    with pytest.raises(ValueError, match=r"timeline.lost has \d+ lost uploads; expected none: "):
        fs.init(algorithm, fs.Setup(task(), lossy, jnp.asarray(START)))


NOT_FROM_OWN_MODELS = {
    "fedavg": lambda: fs.fedavg(0.2),
    "favano": lambda: favano(0.2, expected_steps(jnp.ones(N))),
    "fedbuff": lambda: fedbuff(0.2, 1.0),
    "fedasync": lambda: fedasync(0.2),
    "async_sgd": lambda: async_sgd(0.2),
}


@pytest.mark.parametrize("name", NOT_FROM_OWN_MODELS)
def test_refuses_a_timeline_made_for_quafl(name):
    """Its clients would have to start from their own models."""
    timeline = contacts("current")
    assert timeline.own_models
    assert timeline[:2].own_models
    assert timelines.stacked([timeline, timeline]).own_models
    with pytest.raises(ValueError, match=r"timeline.own_models is True .*receives='new'"):
        fs.init(NOT_FROM_OWN_MODELS[name](), fs.Setup(task(), timeline, jnp.asarray(START)))
    assert not contacts("new").own_models
    fs.init(NOT_FROM_OWN_MODELS[name](), fs.Setup(task(), contacts("new"), jnp.asarray(START)))


@pytest.mark.parametrize("output", ["server", "mean"])
def test_uploads_show_a_model_only_where_alpha_is_1(output):
    """Two steps from 2 on w^2 / 2 end at 0.5; with alpha = 0.5 the upload is 2 - 1.5 / 0.5."""
    zero, x = jnp.array(0), jnp.array(2.0)
    work = fs.Work(zero, zero, zero + 2, zero, zero, jax.random.key(0), max_steps=2)
    oracle = fs.Oracle(lambda w, step: w, lambda w, step: w**2 / 2, lambda w: w)
    for alpha, unbiased in ((1.0, 0.5), (0.5, -1.0)):
        algorithm = fs.favano(0.5, lambda work, alpha=alpha: jnp.array(alpha), output)
        upload, _ = algorithm.local(x, (), oracle, work)
        assert float(jax.tree.leaves(upload)[0]) == unbiased
        with pytest.raises(ValueError, match="progress is divided by a weight"):
            model_change(algorithm, x, upload)


# ---- QuAFL


def test_quafl_of_a_fine_lattice_is_quafl():
    """Twelve contacts of errors up to half a cell each way, in models of size 1 to 3."""
    cell = 1e-6
    through = lattice(24, cell).through  # radius 8
    quantised = path(quafl(0.2, through, through), contacts("current"))
    exact = path(quafl(0.2), contacts("current"))
    assert 0 < np.abs(quantised - exact).max() < 12 * cell


def test_quafl_without_steps_keeps_the_mean_model():
    """From models of their own, and comes together: the potential falls on the average."""
    timeline = contacts("current", rounds=40)
    own = np.random.default_rng(0).normal(size=(N, DIM))

    @compiled
    def advance(task, timeline):
        state = fs.init(quafl(0.0), fs.Setup(task, timeline, jnp.asarray(START)))
        state = state._replace(clients=jnp.asarray(own))
        return fs.advance(
            quafl(0.0), fs.Setup(task, timeline, None, eval_every=timeline.num_rounds), state, KEY
        )[0]

    state = advance(task(), timeline)
    before = mean_model(jnp.asarray(START), jnp.asarray(own))
    assert_close(mean_model(state.server.params, state.clients), before, TOLERANCE)
    phi = potential(state.server.params, state.clients)
    assert phi < 0.05 * potential(jnp.asarray(START), jnp.asarray(own))


@pytest.mark.parametrize("steps", range(K + 1))
def test_masked_steps_of_quafl_are_an_early_stop(steps):
    x = START
    for _ in range(steps):
        x = x - 0.2 * HESSIANS[1] @ (x - CENTRES[1])
    message = (jnp.asarray(START), jnp.array(2.0))
    sent, mixed = visit(quafl(0.2), message, jnp.asarray(START), steps)
    assert_close(sent, x, TOLERANCE)
    assert_close(mixed, (START + 2 * x) / 3, TOLERANCE)
    if steps == 0:
        assert_identical(sent, START)


# ---- FedAsync


def test_fedasync_of_one_client_is_sgd():
    """With a = 1: T reports of K steps are T K steps."""
    timeline = timelines.arrivals(
        KEY, timelines.deterministic(1.0), horizon=5.0 * K, num_clients=1, num_steps=K
    )
    alone = quadratic_task(HESSIANS[:1], CENTRES[:1], K)
    x, expected = START, []
    for _ in range(5):
        for _ in range(K):
            x = x - 0.2 * HESSIANS[0] @ (x - CENTRES[0])
        expected.append(x)
    assert_close(path(fedasync(0.2, 1.0), timeline, alone), np.array(expected), TOLERANCE)


# ---- FedBuff


def test_fedbuff_of_equal_clients_is_fedavg():
    """A buffer of all, who are equally fast and restart from the new model."""
    timeline = timelines.arrivals(
        KEY, timelines.deterministic(1.0), horizon=5.0 * K, num_clients=N, num_steps=K, buffer=N
    )
    assert (timeline.num_rounds, timeline.max_staleness) == (5, 0)
    expected = path(fs.fedavg(0.2), fs.timelines.full(5, N, num_steps=K))
    assert_close(path(fedbuff(0.2, 1.0), timeline), expected, TOLERANCE)
