"""Refusals of asynchronous SGD."""

import pytest

from fedjax_sim.algorithms import async_sgd

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_async_sgd_refuses_half_a_delay_rule():
    for options in ({"patience": 3}, {"bound": 1.0}):
        with pytest.raises(ValueError, match=r"patience is .* and bound .*; expected both or none"):
            async_sgd(0.1, **options)
