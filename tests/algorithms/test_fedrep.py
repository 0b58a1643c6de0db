"""FedRep against NumPy and printed figures; without head steps it is FedBABU in training."""

import numpy as np
import pytest
from bilinear import COHORTS, U, V, by_hand, gradient, head, run, setup
from flax import nnx
from instance_q import assert_printed
from small_problems import KEY, assert_close, assert_identical, compiled

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


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


def test_refuses_head_steps_that_leave_none_for_the_body():
    fs.init(fs.fedrep(0.1, head_steps=2, where=head), setup(3))
    for steps in (3, 5):
        message = f"head_steps is {steps}; expected less than 3, timeline.max_steps"
        with pytest.raises(ValueError, match=message):
            fs.init(fs.fedrep(0.1, head_steps=steps, where=head), setup(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_share": 1.5}, "head_share is 1.5; expected at most 1"),
        ({"head_steps": -1}, "head_steps is -1; expected at least 0"),
        ({"where": "head"}, "where is 'head'; expected a predicate"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        fs.fedrep(0.1, **options)
