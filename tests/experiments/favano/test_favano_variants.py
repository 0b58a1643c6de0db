"""QuAFL of the authors' program.

Its switches are compared with an event loop in tests/timelines/test_event_loop.py.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from async_problems import N, contacts, path
from small_problems import assert_close

import fedjax_sim as fs
from experiments.favano.variants import quafl_of_the_program
from fedjax_sim import timelines
from fedjax_sim.algorithms.staleness import expected_steps

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_without_switches_it_is_quafl():
    expected = path(fs.quafl(0.2), contacts("current"))
    assert_close(path(quafl_of_the_program(0.2), contacts("current")), expected, TOLERANCE)


def test_favano_without_weights_from_old_models_is_quafl_without_client_averaging():
    """Its clients go on from the model before the contact, one version earlier than FAVANO's."""
    new, current = contacts(), contacts("current")
    version = np.maximum(np.asarray(new.version) - 1, 0)
    old = dataclasses.replace(
        new, version=version, max_staleness=int((np.arange(12)[:, None] - version).max())
    )
    one = fs.favano(0.2, expected_steps(jnp.ones(N)))
    expected = path(quafl_of_the_program(0.2, client_averaging=False), current)
    assert_close(path(one, timelines.allocate_buffers(old)), expected, TOLERANCE)
    assert np.abs(path(one, new) - expected).max() > 1e-3
