"""Digests of all algorithms: equal in every process, another one for every hyper-parameter."""

import functools
import json
import os
import subprocess
import sys

import jax
import pytest
from catalogue import ALGORITHMS
from small_problems import logistic_data, logistic_losses, logistic_params

import fedjax_sim as fs
from fedjax_sim.runs.storage.run_functions import identified, trace_run

_PROGRAM = """
import json
from test_digests import digests
print(json.dumps(digests()))
"""


@functools.cache
def digest_of(name):
    return digest(*ALGORITHMS[name])


def digest(factory, values):
    data = logistic_data()
    task = fs.empirical_task(logistic_losses, data, fs.epochs(1, batch_size=8))
    timeline = fs.timelines.full(1, data.num_clients, task.num_steps)
    # Some algorithms use the number of clients that report in a round.
    setup = fs.Setup(task, timeline, logistic_params())
    numbers = {name: jax.numpy.asarray(value) for name, value in values.items()}
    digests = identified(trace_run(factory(**numbers), setup, batched=False))
    return digests["objective"], digests["algorithm"]


def digests():
    return {name: digest_of(name) for name in ALGORITHMS}


@pytest.mark.slow
def test_digests_are_equal_in_other_processes():
    path = os.pathsep.join(sys.path)
    here = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"  # this process has another
    other = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env=here | {"PYTHONHASHSEED": seed}, capture_output=True, check=True,
    )  # fmt: skip
    assert json.loads(other.stdout) == {name: list(each) for name, each in digests().items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_hyper_parameter_is_in_the_digest(name):
    factory, values = ALGORITHMS[name]
    before = digest_of(name)
    for changed in values:
        other = values | {changed: 0.9 * values[changed]}
        assert digest(factory, other)[1] != before[1], changed
