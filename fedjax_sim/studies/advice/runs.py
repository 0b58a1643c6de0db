"""Runs of prescribed settings, which measure the quantities that theorems bound."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.diagnostics import ClientMap, shadow_probes, shadowed
from fedjax_sim.engine import NO_PROBES, Execution, History, Probes, advance, init
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Setting
from fedjax_sim.studies.advice.theorems import GAP, GRADIENT, Theorem
from fedjax_sim.types import Params, Setup, Task, Timeline, uniform_weights

LOSS = "F"


def evaluated(setup: Setup, measurement: Measurement) -> Setup:
    """Returns the setup with F, if it is known, and ``||grad F||^2`` as metrics."""
    eval_fn = Partial(_metrics, setup.task, measurement.loss)
    return dataclasses.replace(setup, eval_fn=eval_fn, weighting=uniform_weights)


def _metrics(task: Task, loss: Partial | None, x: Params) -> dict[str, Array]:
    gradient = ClientMap(task, jax.random.key(0)).mean_gradient(x)
    values = {} if loss is None else {LOSS: loss(x)}
    return {**values, GRADIENT: tree.norm(gradient, squared=True)}


def with_local_steps(timeline: Timeline, local_steps: int, rounds: int) -> Timeline:
    """Returns the first rounds of a timeline, with another number of local steps."""
    if timeline.first_step is not None:
        raise ValueError("timeline has first steps; expected visits that start over")
    part = timeline[:rounds]
    steps = jnp.full(np.shape(part.num_steps), local_steps, jnp.int32)
    return dataclasses.replace(part, num_steps=steps, max_steps=local_steps)


def run_setting(
    theorem: Theorem,
    setting: Setting,
    setup: Setup,
    measurement: Measurement,
    keys: Array,
    *,
    execution: Execution | None = None,
) -> History:
    """Runs the setting that a theorem prescribes, once per key; arrays have a leading axis.

    Where the theorem's quantity is a mean over shadow iterates, the probe ``shadow_loss`` has this
    mean for every round.  Where it is a value at a weighted mean of shadow iterates, that mean is
    the model, and its weights are those for the rounds of the setup.
    """
    metric = LOSS if theorem.measure == GAP else GRADIENT
    if theorem.over_shadow:
        algorithm, probes = shadowed(setting.lr), _shadow(metric, theorem.over_shadow)
    else:
        share = setup.timeline.cohort_size / setup.task.num_clients
        algorithm = theorem.algorithm(
            measurement.constants,
            local_steps=setting.local_steps,
            rounds=setup.timeline.num_rounds,
            share=share,
            **setting.numbers,
        )
        probes = _no_probes

    @jax.jit
    def every(setup: Setup, keys: Array) -> History:
        def one(key: Array) -> History:
            state = init(algorithm, setup)
            if theorem.prepare is not None:
                state = theorem.prepare(state, setup.task, key)
            return advance(algorithm, setup, state, key, execution=execution, probes=probes(setup))[
                1
            ]

        return jax.vmap(one)(keys)

    return jax.tree.map(np.asarray, every(setup, keys))


def _shadow(metric: str, at: Literal["start", "end"]) -> Callable[[Setup], Probes]:
    def probes(setup: Setup) -> Probes:
        metrics = setup.eval_fn
        assert metrics is not None
        return shadow_probes(lambda x: metrics(x)[metric], at)

    return probes


def _no_probes(setup: Setup) -> Probes:
    del setup
    return NO_PROBES
