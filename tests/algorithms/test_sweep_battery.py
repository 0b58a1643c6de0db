"""Algorithms swept over two of their numbers: equal to separate runs, whatever runs beside.

That their numbers can be batched is tested for all of them with the gradients.
"""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from call_records import sweep_on
from catalogue import ALGORITHMS, STRUCTURES, current, declared, for_each, program
from catalogue import task as catalogue_task
from small_problems import logistic_params
from sweep_problems import KEYS, ONE_DEVICE

import fedjax_sim as fs


@pytest.mark.slow
@for_each(among=STRUCTURES)
def test_sweep_equals_single_runs(name, x64):
    factory, values = ALGORITHMS[name]
    swept = list(values)[:2]
    fixed = {key: value for key, value in values.items() if key not in swept}
    grid = {key: [values[key], 0.7 * values[key]] for key in swept}
    task, timeline = catalogue_task(), current(name)
    setup = fs.Setup(
        task,
        timeline,
        {key: jnp.asarray(value)[None] for key, value in logistic_params().items()},
        eval_fn=lambda params: params,
        eval_every=timeline.num_rounds,
    )
    swept_factory = functools.partial(factory, **fixed)

    def sweep(grid):
        return sweep_on(
            ONE_DEVICE,
            swept_factory,
            setup,
            grid,
            KEYS[:1],
            options=fs.Options(execution=fs.execution.vmapped()),
        )

    result = sweep(grid)
    assert len(result.runs) == len(list(itertools.product(*grid.values())))
    for run in result.runs:
        hyper = {key: jnp.asarray(v) for key, v in (fixed | run.configuration).items()}
        expected = program(name)(hyper, task, declared(name, timeline), KEYS[0]).server.params
        for leaf, value in expected.items():
            # Only the order of sums differs: some hundred operations of 1e-16 each.
            np.testing.assert_allclose(run.history.metrics[leaf][0], value, rtol=1e-11, atol=1e-13)
    # The same number of other runs with other values in the same program: the same bits.
    beside = sweep({key: [values[key], 0.9 * values[key]] for key in swept})
    first, again = (each.runs[0] for each in (result, beside))
    assert first.configuration == again.configuration
    for leaf, value in first.history.metrics.items():
        np.testing.assert_array_equal(again.history.metrics[leaf], value)
