"""FedAsync of one client."""

import numpy as np
import pytest
from async_problems import CENTRES, HESSIANS, KEY, START, K, path
from small_problems import assert_close, quadratic_task

from fedjax_sim import timelines
from fedjax_sim.algorithms import fedasync

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


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
