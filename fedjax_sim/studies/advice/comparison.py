"""Prescribed settings beside a tuned sweep."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_split_keys
from fedjax_sim.runs import Callback, Options, Storage, sweep
from fedjax_sim.studies.advice.conditions import sizes_of
from fedjax_sim.studies.advice.gap import Gap, SettingRun
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Prediction
from fedjax_sim.studies.advice.runs import evaluated, run_setting, with_local_steps
from fedjax_sim.studies.advice.theorems import GAP, Measure
from fedjax_sim.theory import positive
from fedjax_sim.types import Setup

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
