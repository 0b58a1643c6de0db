"""FedPer, LG-FedAvg, FedBABU, FedRep and fine-tuned FedAvg by hand, and their claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bilinear import (
    COHORTS,
    C,
    U,
    V,
    by_hand,
    everything,
    gradient,
    head,
    joint,
    nothing,
    personal_models,
    run,
)
from flax import nnx
from instance_q import assert_printed
from small_problems import KEY, assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim.tree.counting import bits_of_arrays
from fedjax_sim.tree.leaves import others
from fedjax_sim.wrappers.received import dry_visit

pytestmark = pytest.mark.usefixtures("x64")

# ---- FedPer


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


# ---- LG-FedAvg


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


# ---- FedBABU


def body_steps(c, u, v):
    for _ in range(2):
        u = u - 0.1 * gradient(c, u, v)[0]
    return u, v


def test_body_by_hand_and_fine_tuned_models():
    """The evaluator gets each client's model after two visits of two joint steps at rate 0.3."""
    one = run(fs.fedbabu(0.1, where=head), 2)
    assert_printed(one.server.params["u"], "0.90125")
    algorithm = fs.fedbabu(0.1, tuning_lr=0.3, visits=2, where=head)
    state, metrics = run(algorithm, 2, COHORTS, personal_models())
    u, _ = by_hand(body_steps, COHORTS)
    assert_close(state.server.params, {"u": u, "v": 0.5}, 1e-14)
    tuned = np.array([joint(4, 0.3, 0.3)(c, u, 0.5) for c in C])
    assert_close(metrics["per_client/u"][-1], tuned[:, 0], 1e-14)
    assert_close(metrics["per_client/v"][-1], tuned[:, 1], 1e-14)


def test_model_without_a_body_is_refused():
    with pytest.raises(ValueError, match="where selects all of the leaves"):
        fs.fedbabu(0.1).init({"kernel": np.ones(3)})


def test_fine_tuning_makes_a_common_body_personal():
    """The claim: no common model fits both clients, its loss is at least Var(c) / 2 = 9 / 8."""
    algorithm = fs.fedbabu(0.1, tuning_lr=0.3, visits=40, where=head)
    state, metrics = run(algorithm, 2, COHORTS, personal_models())
    u, v = (float(state.server.params[name]) for name in "uv")
    assert np.mean((u * v - C) ** 2 / 2) > 9 / 8
    tuned = metrics["per_client/u"][-1] * metrics["per_client/v"][-1]
    assert_close(tuned, C, 1e-6)


# ---- FedRep


def alternating(head_steps, body_steps, lr_v=0.1):
    def visit(c, u, v):
        for _ in range(head_steps):
            v = v - lr_v * gradient(c, u, v)[1]
        for _ in range(body_steps):
            u = u - 0.1 * gradient(c, u, v)[0]
        return u, v

    return visit


def test_head_steps_before_body_steps_by_hand():
    one = run(fs.fedrep(0.1, head_steps=2, where=head), 3)
    assert_printed(one.server.params["u"], "1.0095175")
    assert_printed(one.clients.head["v"], "0.595", "0.025")
    state = run(fs.fedrep(0.1, head_lr=0.3, head_share=10 / 11, where=head), 11, COHORTS)
    u, heads = by_hand(alternating(10, 1, lr_v=0.3), COHORTS)
    assert_close((state.server.params["u"], state.clients.head["v"]), (u, heads), 1e-14)


@pytest.mark.parametrize(("share", "moves"), [(0.5, "head"), (0.4, "body")])
def test_visit_of_one_step(share, moves):
    state = run(fs.fedrep(0.1, head_share=share, where=head), 1)
    assert (float(state.server.params["u"]) == U) == (moves == "head")
    assert (float(state.clients.head["v"][0]) == V) == (moves == "body")


@pytest.mark.slow
def test_without_head_steps():
    """The head stays: FedBABU in training, and FedPer whose private leaves have the rate 0."""
    rep = run(fs.fedrep(0.1, head_steps=0, where=head), 2, COHORTS)
    babu = run(fs.fedbabu(0.1, where=head), 2, COHORTS)
    still = run(fs.private(fs.fedavg(0.1), head, 0.0), 2, COHORTS)
    assert_close(rep.server.params, babu.server.params, 1e-15)
    assert_close(rep.server.params, still.server.params, 1e-15)
    assert_identical(rep.clients.head, still.clients.personal)
    assert float(rep.clients.head["v"][0]) == 0.5


@pytest.mark.slow
def test_linear_representation_is_recovered():
    """The paper's claim for exact heads: rank-one clients y = w_i <b, x>, body b up to its length.

    Every client has 5 equations for 20 unknowns, so none recovers b alone.
    """
    rng = np.random.default_rng(0)
    dim, clients = 20, 40
    truth = rng.normal(size=dim) / np.sqrt(dim)
    weights = 1 + rng.random(clients)
    inputs = rng.normal(size=(clients * 5, dim))
    data = fs.FederatedData(
        {"x": inputs, "y": np.repeat(weights, 5) * (inputs @ truth)},
        np.arange(0, 5 * clients + 1, 5),
    )

    def loss(params, batch, key):
        del key
        return (batch["x"] @ params["body"] * params["head"] - batch["y"]) ** 2 / 2

    task = fs.empirical_task(loss, data, fs.full_batch(6))
    start = {"body": rng.normal(size=dim) / np.sqrt(dim), "head": np.array(1.0)}
    timeline = fs.timelines.full(400, clients, task.num_steps)

    def angle(algorithm):
        go = compiled(lambda setup: fs.run(algorithm, setup, KEY)[0])
        body = np.asarray(go(fs.Setup(task, timeline, start)).server.params["body"])
        cosine = abs(body @ truth) / np.linalg.norm(body) / np.linalg.norm(truth)
        return np.sqrt(max(1 - cosine**2, 0))

    assert angle(fs.fedrep(0.1, head_steps=5, where=nnx.PathContains("head"))) < 1e-3


# ---- FedAvg with fine-tuning


def test_trains_as_fedavg_and_adapts_before_evaluation():
    """Fine-tuning the head only: u stays, v moves by the derivative in v.

    After rounds 0 to 2 the rate is that of round 3.
    """
    rate = lambda round: 0.1 * round.astype(float)  # noqa: E731
    algorithm = fs.fedavg_ft(0.1, tuning_lr=rate, visits=2, where=head)
    state, metrics = run(algorithm, 3, COHORTS, personal_models())
    plain = run(fs.fedavg(0.1), 3, COHORTS)
    assert_identical(state.server, plain.server)
    u, v = (float(state.server.params[name]) for name in "uv")
    tuned = np.array([joint(6, 0.0, 0.3)(c, u, v)[1] for c in C])
    assert_close(metrics["per_client/v"][-1], tuned, 1e-14)
    assert by_hand(joint(3), COHORTS)[0] != u  # FedPer's body


def test_steps_and_visits():
    with pytest.raises(ValueError, match="visits is 0; expected at least 1"):
        fs.fedavg_ft(0.1, visits=0)
    for options in ({}, {"visits": 1, "steps": 1}):
        with pytest.raises(ValueError, match="expected exactly one of them"):
            fs.fine_tuned(fs.fedavg(0.1), 0.1, **options)
