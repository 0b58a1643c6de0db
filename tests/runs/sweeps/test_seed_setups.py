"""A function that builds a setup per seed, data and model included, is traced once."""

import chex
import jax
import numpy as np
import pytest
from call_records import sweep_on
from sweep_problems import ONE_DEVICE, compilations

import fedjax_sim as fs
from fedjax_sim import models, objectives

KEYS = jax.random.split(jax.random.key(3), 3)
SEEDS = [10, 11, 12]


def make_setup(seed):
    """Another split of the data for every seed; two calls share no object."""
    rng = np.random.default_rng(0)
    examples = {"x": rng.normal(size=(12, 4)).astype(np.float32), "y": rng.integers(0, 2, 12)}
    rows = fs.data.partition.iid(12, 3, seed)
    model = models.softmax_regression((4,), 2)
    task = fs.empirical_task(
        objectives.cross_entropy(model.apply),
        fs.from_assignment(examples, rows),
        fs.epochs(1, batch_size=2),
    )
    timeline = fs.timelines.uniform(jax.random.key(seed), 4, 3, 2, task.num_steps)
    evaluate = fs.evaluation.evaluator(objectives.classification_metrics(model.apply), examples)
    return fs.Setup(task, timeline, model.init(jax.random.key(seed)), evaluate, eval_every=2)


@pytest.mark.slow
def test_compare_compiles_one_program_for_all_seeds():
    algorithm = fs.fedavg(0.1)
    with compilations() as names:
        result = fs.compare({"a": algorithm}, make_setup, KEYS, options=fs.Options(seeds=SEEDS))
    assert len([name for name in names if "segment" in name]) == 1
    finals = result.models()["a"]
    for i, seed in enumerate(SEEDS):
        alone = fs.simulate(algorithm, make_setup(seed), KEYS[i])
        chex.assert_trees_all_close(
            jax.tree.map(lambda x, i=i: x[i], finals), alone.state.server.params, rtol=1e-5
        )


@pytest.mark.slow
def test_sweep_compiles_one_program_for_all_seeds():
    grid = {"lr": [0.1, 0.2]}
    options = fs.Options(seeds=SEEDS)
    result = sweep_on(ONE_DEVICE, fs.fedavg, make_setup, grid, KEYS, options=options)
    assert result.compilations == 1
    for run in result.runs:
        i = SEEDS.index(int(run.seed))
        algorithm = fs.fedavg(run.configuration["lr"])
        alone = fs.simulate(algorithm, make_setup(SEEDS[i]), KEYS[i])
        np.testing.assert_allclose(
            run.history.metrics["loss"], alone.history.metrics["loss"], rtol=1e-5
        )
