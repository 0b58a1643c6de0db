"""Every family of the coming papers fits the five functions and a timeline.

What is tested is the interface, by compact programs of the families (``families.py``) against eager
NumPy loops of the papers' pseudo-code.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import families as fam
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import regression
import replays
import schedules
from regression import STEPS
from small_problems import assert_close
from small_problems import compiled as compiled_simply

import fedjax_sim as fs
from fedjax_sim import algorithms
from fedjax_sim.execution import strategies

# Without the fusion emitters these programs compile three times faster.
OPTIONS = compiled_simply.keywords["compiler_options"] | {"xla_cpu_use_fusion_emitters": False}
compiled = functools.partial(jax.jit, compiler_options=OPTIONS)


class Family(NamedTuple):
    make: Callable[..., fs.FedAlgorithm]  # (**values) -> algorithm
    values: dict[str, float]  # none of the special ones (0, 1) at which a term vanishes
    replay: Callable[..., np.ndarray]  # (rounds, **values) -> models [T, d]


COMPOSITE = {"lr": 0.06, "server_lr": 0.8, "lam": 0.3}

FAMILIES = {
    "fedmid": Family(fam.fedmid, COMPOSITE, replays.fedmid),
    "feddualavg": Family(fam.feddualavg, COMPOSITE, replays.feddualavg),
}
every_family = pytest.mark.parametrize("name", FAMILIES)

STRATEGIES = {
    "vmapped": strategies.vmapped,
    "chunked": lambda: strategies.chunked(3),  # 4 slots: the last chunk is filled up
    "sequential": strategies.sequential,
    "sharded": lambda: strategies.sharded(jax.make_mesh((4,), ("clients",))),
}


def arrays(values):
    return {key: jnp.asarray(value, jnp.result_type(float)) for key, value in values.items()}


def train(algorithm, task, schedule, **options: Any):
    params, key = regression.start_params(), jax.random.key(4)
    return fs.run(
        algorithm, task, schedule, params, key, **{"cohort": strategies.vmapped(), **options}
    )


def models(algorithm, task, schedule, **options):
    """The server's model after each round, [T, d]."""
    record = {"eval_fn": lambda params: {"model": regression.flat(params)}}
    return train(algorithm, task, schedule, **record, **options)[1].metrics["model"]


@every_family
def test_strategies_agree(name):
    """They differ in the order of summation only."""
    family = FAMILIES[name]
    states = {}
    for strategy, make in STRATEGIES.items():

        @compiled
        def final(values, task, schedule, make=make):
            return train(family.make(**values), task, schedule, cohort=make())[0]

        state = final(arrays(family.values), regression.task(), schedules.synchronous())
        states[strategy] = jax.device_get((state.server, state.clients))
    for state in states.values():
        # A few units in the last place of float32 (6e-8) after some twenty steps.
        assert_close(state, states["vmapped"], 1e-6)


@every_family
def test_sweep_replays_in_numpy(name, x64):
    """Row j of one vmapped run has the j-th hyper-parameter changed: every row must be the eager
    loops' run with those values, so a mix-up of any two, or one unused, is seen.  The gradient of
    a final loss must be the finite difference of the eager loops."""
    family, schedule = FAMILIES[name], schedules.synchronous()
    rounds = schedules.visits(schedule)
    changed = [dict(family.values)]
    changed += [family.values | {key: 1.2 * family.values[key]} for key in family.values]
    examples = jax.tree.map(jnp.asarray, regression.data().examples)

    @compiled
    def sweep_and_gradient(batch, values, task, schedule, examples):
        def path(values):
            return models(family.make(**values), task, schedule)

        def final_loss(values):
            state, _ = train(family.make(**values), task, schedule)
            return regression.losses(state.server.params, examples, None).mean()

        return jax.vmap(path)(batch), jax.grad(final_loss)(values)

    batch = jax.tree.map(lambda *rows: jnp.stack(rows), *map(arrays, changed))
    swept, gradient = sweep_and_gradient(
        batch, arrays(family.values), regression.task(), schedule, examples
    )
    for row, values in zip(swept, changed, strict=True):
        # Double precision, some twenty steps deep; 1e-16 each, amplified by divisions by rates.
        assert_close(row, family.replay(rounds, **values), 1e-12)

    for key, value in family.values.items():
        # Central differences err by O(step^2) + eps / step: about 1e-10 at this step.
        step = 1e-5 * value
        above, below = (
            regression.mean_loss(family.replay(rounds, **family.values | {key: v})[-1])
            for v in (value + step, value - step)
        )
        np.testing.assert_allclose(gradient[key], (above - below) / (2 * step), 1e-6, 1e-9)
        assert abs(gradient[key]) > 1e-6  # none is without effect


@pytest.fixture(scope="module")
def paths():
    """Runs an algorithm in double precision, compiled."""

    def path(algorithm):
        with jax.enable_x64(True):
            run = compiled(lambda task, schedule: models(algorithm, task, schedule))
            return np.asarray(run(regression.task(), schedules.synchronous()))

    return path


@pytest.mark.parametrize("general", [fam.fedmid, fam.feddualavg])
def test_without_regulariser_composite_methods_are_fedavg(general, paths):
    # Round-off of double precision; the two forms order their operations differently.
    special = algorithms.fedavg(0.1)
    assert_close(paths(general(0.1, server_lr=1.0, lam=0.0)), paths(special), 1e-13)


def test_sharded_run_vmaps_and_differentiates(x64):
    """The hyper-parameters that the shards close over are swept and differentiated like others."""
    values: dict[str, Any] = {"lr": 0.1, "rho": 0.3, "alpha": 1.3, "gamma": 0.4}
    schedule = schedules.synchronous()
    rows = jax.tree.map(lambda v: jnp.stack([v, 1.2 * v]), arrays(values))

    def sweep(strategy):
        def final(values, task, schedule):
            state, _ = train(
                algorithms.fedmoswa(**values), task, schedule, cohort=STRATEGIES[strategy]()
            )
            return jnp.sum(regression.flat(state.server.params) ** 2)

        return compiled(jax.vmap(jax.value_and_grad(final), (0, None, None)))

    expected = sweep("vmapped")(rows, regression.task(), schedule)
    assert_close(sweep("sharded")(rows, regression.task(), schedule), expected, 1e-12)


def test_timelines_exercise_what_they_should():
    """Otherwise the replays above would pass without having tested it."""
    synchronous = schedules.visits(schedules.synchronous())
    assert [] in synchronous
    assert len({i for visits in synchronous for i, _, _ in visits}) < sum(map(len, synchronous))
    assert len(set(STEPS.tolist())) > 3
