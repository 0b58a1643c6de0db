"""Prescribed settings beside a tuned sweep."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_split_keys
from fedjax_sim.diagnostics import ClientMap, shadow_probes, shadowed
from fedjax_sim.engine import NO_PROBES, Execution, History, Probes, advance, init
from fedjax_sim.runs import Callback, Options, Storage, sweep
from fedjax_sim.studies.advice.conditions import sizes_of
from fedjax_sim.studies.advice.gap import Gap, SettingRun
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Prediction, Setting
from fedjax_sim.studies.advice.theorems import GAP, GRADIENT, LOSS, Measure, Theorem
from fedjax_sim.theory import positive
from fedjax_sim.types import Params, Setup, Task, Timeline, uniform_weights

_RATES = tuple(2.0**-i for i in range(-1, 8))  # times 1 / L


def compare_with_practice(
    setup: Setup,
    measurement: Measurement,
    predictions: Sequence[Prediction],
    keys: Array,
    *,
    grid: Mapping[str, Sequence[Any]] | None,
    callbacks: Sequence[Callback],
    storage: Storage | str | pathlib.Path | None,
    options: Options,
) -> Gap:
    """Runs the prescribed settings and a grid of settings, see :meth:`Advice.compare`."""
    check_split_keys(keys)
    prescribed = [(p.theorem, p.prescribed) for p in predictions if p.prescribed is not None]
    if not prescribed:
        raise ValueError("no theorem prescribes a setting; expected one: see Advice.to_frame()")
    if measurement.optimum is None and any(x.measure == GAP for x, _ in prescribed):
        raise ValueError(
            f"{GAP} cannot be measured, since F* is unknown "
            f"({measurement.sources['zeta_star'].note}); expected theorems about gradients"
        )
    metrics, sizes = evaluated(setup, measurement), sizes_of(setup)

    def with_steps(local_steps: int, rounds: int) -> Setup:
        timeline = with_local_steps(setup.timeline, local_steps, rounds)
        return dataclasses.replace(metrics, timeline=timeline)

    most = setup.timeline.num_rounds
    runs = []
    for theorem, setting in prescribed:
        part = with_steps(setting.local_steps, min(setting.rounds, most))
        history = run_setting(theorem, setting, part, measurement, keys, execution=options.strategy)
        runs.append(SettingRun(theorem, setting, sizes, history))

    def make_setup(local_steps: int) -> Setup:
        part = with_steps(local_steps, most)
        stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(keys), 0), part.params)
        return dataclasses.replace(part, params=stacked)

    (largest,) = map(float, positive(measurement.constants, "L"))
    default = {
        "lr": [rate / largest for rate in _RATES],
        "local_steps": sorted({1, sizes.local_steps, *(r.setting.local_steps for r in runs)}),
    }
    grid = {**default, **(grid or {})}
    tuned = sweep(
        fedavg, make_setup, grid, keys, callbacks=callbacks, storage=storage, options=options
    )
    targets: dict[Measure, float | None] = {p.theorem.measure: p.target for p in predictions}
    return Gap(runs, tuned, targets, measurement)


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
                state = theorem.prepare(state, setup, key)
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
