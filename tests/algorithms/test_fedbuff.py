"""FedBuff of equal clients."""

import pytest
from async_problems import KEY, K, N, path
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import timelines
from fedjax_sim.algorithms import fedbuff

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_fedbuff_of_equal_clients_is_fedavg():
    """A buffer of all, who are equally fast and restart from the new model."""
    timeline = timelines.arrivals(
        KEY, timelines.deterministic(1.0), horizon=5.0 * K, num_clients=N, num_steps=K, buffer=N
    )
    assert (timeline.num_rounds, timeline.max_staleness) == (5, 0)
    expected = path(fs.fedavg(0.2), fs.timelines.full(5, N, num_steps=K))
    assert_close(path(fedbuff(0.2, 1.0), timeline), expected, TOLERANCE)
