"""Private runs in `simulate` and `sweep`: checkpoints, executions, swept clips and noise."""

import dataclasses

import jax
import numpy as np
import pytest
from resumed_runs import COHORT, KEY, ROUNDS, check_stopped_runs, regression_setup

import fedjax_sim as fs
from fedjax_sim import privacy

LAWS = {
    "tree": lambda: privacy.tree_aggregation(ROUNDS // 2, efficient=True),
    "banded": lambda: privacy.banded([1.0, 0.5, 0.4], ROUNDS),
}


def private(algorithm, clip=0.5, z=0.7, law=None):
    noise = LAWS[law]() if law else None
    return privacy.privatize(algorithm, clip, z, expected_uploads=COHORT, noise=noise)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_correlated_noise_survives_a_checkpoint(law, tmp_path):
    check_stopped_runs(private(fs.fedavg(0.05), law=law), tmp_path)


@pytest.mark.slow
def test_an_adaptive_clip_survives_a_checkpoint(tmp_path):
    rule = privacy.adaptive_clip(lr=0.5, initial=2.0, count_std=1.0)
    check_stopped_runs(private(fs.fedavg(0.05), rule), tmp_path)


def of_parts(clip, z):
    return private(fs.scaffold(0.05), {"0": clip, "1": 2 * clip}, z, "banded")


def adaptive(clip, z):
    return private(fs.fedavg(0.05), privacy.adaptive_clip(initial=clip, count_std=1.0), z)


@pytest.mark.slow
@pytest.mark.parametrize("factory", [of_parts, adaptive])
def test_clip_and_noise_are_swept_in_one_program(factory):
    """A run of the sweep is the single run with its numbers."""
    setup = regression_setup()
    batched = dataclasses.replace(setup, params=jax.tree.map(lambda x: x[None], setup.params))
    result = fs.sweep(factory, batched, {"clip": [0.3, 1.0], "z": [0.1, 0.9]}, KEY[None])
    assert (len(result.runs), result.compilations) == (4, 1)
    run = result.runs[2]
    assert run.configuration == {"clip": 1.0, "z": 0.1}
    _, history = jax.jit(lambda x: fs.run(factory(**run.configuration), x, KEY))(setup)
    swept, single = (np.ravel(h.metrics["squared_norm"]) for h in (run.history, history))
    np.testing.assert_allclose(swept[-1], single[-1], rtol=1e-4)
