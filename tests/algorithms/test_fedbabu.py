"""FedBABU: the head never moves in training and is fine-tuned with the body at evaluation."""

import numpy as np
import pytest
from bilinear import COHORTS, C, by_hand, gradient, head, joint, personal_models, run
from instance_q import assert_printed
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


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
