"""FedAvg with fine-tuning: training of FedAvg, evaluation after local steps."""

import numpy as np
import pytest
from bilinear import COHORTS, C, by_hand, head, joint, personal_models, run
from small_problems import assert_close, assert_identical

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


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
