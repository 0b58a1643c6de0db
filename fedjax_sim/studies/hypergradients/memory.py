"""Forecast of the memory of a hypergradient."""

import math
import time
from typing import Any

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import Execution, first_state, program_bytes
from fedjax_sim.runs import Forecast, Options, Seconds, forecast
from fedjax_sim.studies.hypergradients.checkpointing import stored_states
from fedjax_sim.types import FedAlgorithm, Setup


def forecast_program(
    lowered: Any,
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    *,
    replicas: int,
    rounds: int,
    levels: int,
    execution: Execution,
    memory: int | None,
) -> Forecast:
    """Returns the forecast of a run with the memory of the lowered program of its derivatives.

    ``replicas`` runs are together; ``rounds`` are visited backwards in ``levels`` of scans.
    """
    of_run = forecast(
        algorithm,
        setup,
        key,
        measure=False,
        delta=None,
        options=Options(execution=execution, memory=memory),
    )
    began = time.perf_counter()
    total = program_bytes(lowered.compile(), arguments=False)
    seconds = Seconds(time.perf_counter() - began, math.nan, math.nan)
    state = jax.eval_shape(lambda: first_state(algorithm, setup))
    leaves = [x for x in jax.tree.leaves(state) if jax.numpy.issubdtype(x.dtype, np.inexact)]
    one = sum(x.size * x.dtype.itemsize for x in leaves)
    parts = {
        name: size * (replicas if name in ("client states", "server") else 1)
        for name, size in of_run.parts.items()
    }
    parts["stored states"] = replicas * one * stored_states(rounds, levels)
    resident = sum(parts[name] for name in ("client states", "server", "stored states"))
    parts["temporaries"] = max(total - resident, 0)
    return of_run._replace(parts=parts, seconds=seconds)
