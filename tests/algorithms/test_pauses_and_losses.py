"""Rounds at rate 0, where ``(x - y) / (K lr)`` is 0 / 0, and lost uploads, which shift limits."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from instance_q import LR, final_state, models, setup
from small_problems import assert_close, compiled, quadratic_task
from sweep_problems import compilations

import fedjax_sim as fs
from fedjax_sim.engine.contract import check_weighting

pytestmark = pytest.mark.usefixtures("x64")

# ---- rounds at rate 0


def pause(round):
    """The rates LR, 0, LR, LR, ..."""
    return jnp.where(round == 1, 0.0, LR)


def per_step(lr):
    return fs.per_step_uploads(fs.fedavg(lr, optax.sgd(0.3)), lr)


def paths(factory):
    """The models with the pause, and with the constant rate."""
    return models(factory(pause), 4), models(factory(LR), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [fs.fedcm, fs.scaffold_m, fs.fedadamw, fs.fedmuon, fs.q_fedavg, per_step],
    ids=lambda factory: factory.__name__,
)
def test_round_at_rate_zero_keeps_the_model(factory):
    with_pause, constant = paths(factory)
    assert np.isfinite(with_pause).all()
    assert with_pause[1] == with_pause[0]
    np.testing.assert_allclose(with_pause[0], constant[0], rtol=1e-6)
    assert with_pause[0] < with_pause[2] < with_pause[3]


@pytest.mark.parametrize(
    "factory",
    [fs.scaffold, functools.partial(fs.scaffnew, probability=1 / 5), per_step],
    ids=["scaffold", "scaffnew", "per_step"],
)
def test_round_at_rate_zero_is_no_round(factory):
    """Controls keep their values, so that the pause has no other effect."""
    with_pause, constant = paths(factory)
    assert with_pause[1] == with_pause[0]
    np.testing.assert_allclose(with_pause[[0, 2, 3]], constant, rtol=1e-6)


@pytest.mark.parametrize("factory", [fs.scaffold, fs.fedgamma], ids=["scaffold", "fedgamma"])
def test_controls_of_a_round_at_rate_zero(factory):
    """They stay what they were, although server and clients still agree if all move alike."""
    before, after = (final_state(factory(pause), setup(rounds=rounds))[0] for rounds in (1, 2))
    assert np.abs(np.asarray(before.clients)).max() > 0.1
    np.testing.assert_array_equal(np.asarray(after.clients), np.asarray(before.clients))
    np.testing.assert_allclose(after.server.control, before.server.control, rtol=1e-6)


# ---- lost uploads


CENTRES = np.array([[0.0], [4.0], [8.0], [2.0]])
OPTIMUM = 3.5


MEANS_OF_ALL = pytest.mark.parametrize(
    ("algorithm", "state_of", "sign"),
    [
        (fs.scaffold(0.1), lambda server, clients: (server.control, clients), 1),
        (fs.scaffold(0.1, option="I"), lambda server, clients: (server.control, clients), 1),
        (fs.fedgamma(0.1, radius=0.0), lambda server, clients: (server.control, clients), 1),
        (fs.scaffold_m(0.1, mix=0.5), lambda server, clients: (server.control, clients), 1),
        (fs.feddyn(0.1, mu=0.5), lambda server, clients: (server.dual, clients), 1),
        # Its duals are those of FedDyn divided by -mu.
        (
            fs.fedsmoo(0.1, mu=0.5, radius=0.0),
            lambda server, clients: (server.dual, clients.dual),
            -0.5,
        ),
        (
            fs.fedgloss(0.1, mu=0.5, radius=0.0, local_radius=0.0),
            lambda server, clients: (server.dual, clients),
            1,
        ),
    ],
    ids=["scaffold II", "scaffold I", "fedgamma", "scaffold_m", "feddyn", "fedsmoo", "fedgloss"],
)


@MEANS_OF_ALL
def test_lost_uploads_shift_the_limit(algorithm, state_of, sign):
    """The mean gradient at the limit is the mean of the clients' states minus the server's."""
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.full(600, 4, 3)
    lost = np.zeros((600, 4), bool)
    lost[[0, 1, 2], [2, 2, 1]] = True

    @compiled
    def final(lost):
        visits = dataclasses.replace(timeline, lost=lost)
        setup = fs.Setup(task, visits, jnp.zeros(1))
        return fs.run(algorithm, setup, jax.random.key(0))[0]

    assert_close(final(np.zeros_like(lost)).server.params, OPTIMUM, 1e-9)
    state = final(lost)
    of_server, of_clients = state_of(state.server, state.clients)
    gradient = state.server.params - OPTIMUM
    assert np.abs(gradient) > 0.1
    np.testing.assert_allclose(gradient, sign * (of_clients.mean(0) - of_server), rtol=1e-8)


# ---- weights


SIZES = np.array([40, 10, 10, 4])


def by_size(work):
    return jnp.asarray(SIZES)[work.client]


@MEANS_OF_ALL
def test_the_weighted_optimum_whatever_cohorts_are_drawn(algorithm, state_of, sign):
    """With |S| / M for the share of the weights the limits of SCAFFOLD were from 1.5 to 3.6."""
    shares, num_rounds = SIZES / SIZES.sum(), 2000
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    keys = jax.random.split(jax.random.key(0), 3)

    @compiled
    def final(timelines):
        def one(timeline):
            setup = fs.Setup(task, timeline, jnp.zeros(1), weighting=by_size)
            return fs.run(algorithm, setup, jax.random.key(0))[0]

        return jax.vmap(one)(timelines)

    drawn = [fs.timelines.uniform(key, num_rounds, 4, 2, 3) for key in keys]
    state = final(jax.tree.map(lambda *x: jnp.stack(x), *drawn))
    of_server, of_clients = state_of(state.server, state.clients)
    # Both are sums of thousands of changes in double precision.
    np.testing.assert_allclose(
        of_server[:, 0], np.einsum("i,rij->rj", shares, of_clients)[:, 0], rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(state.server.params[:, 0], shares @ CENTRES[:, 0], rtol=1e-9)


@MEANS_OF_ALL
def test_equal_weights_are_those_of_the_number_of_clients(algorithm, state_of, sign):
    del state_of, sign
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.cyclic(5, 4, 3, 3)

    @compiled
    def final(task):
        setups = [
            fs.Setup(task, timeline, jnp.zeros(1), weighting=weighting)
            for weighting in (fs.uniform_weights, lambda work: jnp.full(work.client.shape, 7.0))
        ]
        return [fs.run(algorithm, setup, jax.random.key(0))[0] for setup in setups]

    plain, equal = jax.tree.leaves(final(task)[0]), jax.tree.leaves(final(task)[1])
    for one, other in zip(plain, equal, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-14)  # other sums of weights


@pytest.mark.parametrize("inside_jit", [False, True])
def test_weights_of_other_rounds_are_refused(inside_jit):
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    steps = jnp.asarray([[3, 3], [3, 2], [3, 3]], jnp.int32)
    timeline = dataclasses.replace(fs.timelines.cyclic(3, 4, 2, 3), num_steps=steps)

    def go(weighting, algorithm=fs.scaffold(0.1), timeline=timeline):
        setup = fs.Setup(task, timeline, jnp.zeros(1), weighting=weighting)
        run = functools.partial(fs.run, algorithm, setup)
        return (jax.jit(run) if inside_jit else run)(jax.random.key(0))

    def by_steps(work):
        return work.num_steps.astype(float)

    with pytest.raises(
        ValueError,
        match="by_steps, which gives client 3 the weight 2 in round 1 and 3 in a round of all",
    ):
        go(by_steps)
    with pytest.raises(
        ValueError, match="gives client 2 the weight 2 in round 1 and 1 in a round of all"
    ):
        go(lambda work: (1 + work.round % 2).astype(float))
    with pytest.raises(
        ValueError, match=r"float64\[2\] for 4 visits; expected \[4\], one weight per"
    ):
        go(lambda work: jnp.ones(2))  # of slots; the server's mean is over all clients
    go(by_steps, fs.fedavg(0.1))
    go(by_steps, timeline=fs.timelines.cyclic(3, 4, 2, 3))
    go(by_size)


class Table(NamedTuple):
    """Weights that are not hashable."""

    sizes: np.ndarray

    def __call__(self, work):
        return jnp.asarray(self.sizes)[work.client]


def test_weights_are_compared_in_few_programs():
    """Operation by operation they were 48, which took longer to compile than a run."""
    task = quadratic_task(np.ones((5, 1, 1)), np.ones((5, 1)), 3)
    timeline = fs.timelines.cyclic(7, 5, 2, 3)  # shapes that no other test has

    def by_number(work):
        return work.client.astype(float)

    for weighting in (by_number, Table(np.arange(5.0))):
        with compilations() as names:
            check_weighting(fs.scaffold(0.1), task, timeline, weighting)
        assert 1 <= len(names) <= 4
    with compilations() as names:
        check_weighting(fs.scaffold(0.1), task, timeline, by_number)
    assert not names


@pytest.mark.parametrize("field", ["num_steps", "round"])
def test_weights_of_traced_numbers_of_steps_are_not_compared(field):
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.cyclic(3, 4, 2, 3)

    def round_of(steps):
        setup = fs.Setup(
            dataclasses.replace(task, num_steps=steps),
            timeline,
            jnp.zeros(1),
            weighting=lambda work: getattr(work, field).astype(float),
        )
        return fs.run(fs.scaffold(0.1), setup, jax.random.key(0))[0].round

    assert jax.eval_shape(round_of, task.num_steps).shape == ()


def test_left_out_uploads_do_not_count_in_the_share():
    """One of two uploads is not finite; the control stays the weighted mean of the clients'."""
    centres = CENTRES.copy()
    centres[1] = np.nan
    task = quadratic_task(np.ones((4, 1, 1)), centres, 3)
    timeline = fs.timelines.uniform(jax.random.key(0), 50, 4, 2, 3)
    algorithm = fs.skip_nonfinite(fs.scaffold(0.1))
    setup = fs.Setup(task, timeline, jnp.zeros(1), weighting=by_size)
    with jax.debug_nans(False):
        state = compiled(lambda key: fs.run(algorithm, setup, key)[0])(jax.random.key(0))
    assert state.server.left_out > 2
    clients = np.asarray(state.clients)
    assert clients[1] == 0
    np.testing.assert_allclose(state.server.inner.control, SIZES @ clients / SIZES.sum(), rtol=1e-9)


def test_chosen_clients_count_in_the_share():
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.uniform(jax.random.key(0), 30, 4, 3, 3)
    algorithm = fs.selection.select(fs.scaffold(0.1), fs.selection.power_of_choice(2))
    setup = fs.Setup(task, timeline, jnp.zeros(1), weighting=by_size)
    state = compiled(lambda key: fs.run(algorithm, setup, key)[0])(jax.random.key(0))
    expected = SIZES @ np.asarray(state.clients) / SIZES.sum()
    np.testing.assert_allclose(state.server.control, expected, rtol=1e-9)


def test_weights_of_steps_that_a_selection_changes_are_refused():
    """AdaComm does fewer steps than the task's; the control was 0.06 from the clients' mean."""
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.full(5, 4, 3)
    shorter = fs.selection.adacomm(2, 2, score=fs.selection.minibatch_loss)

    def check(algorithm, weighting):
        chosen = fs.selection.select(algorithm, shorter)
        check_weighting(chosen, task, timeline, weighting)

    def by_steps(work):
        return work.num_steps.astype(float)

    with pytest.raises(ValueError, match="the weight 3 with 3 steps and 0 without; expected a "):
        check(fs.scaffold(0.1), by_steps)
    check(fs.scaffold(0.1), by_size)
    check(fs.fedavg(0.1), by_steps)
    check_weighting(fs.scaffold(0.1), task, timeline, by_steps)
