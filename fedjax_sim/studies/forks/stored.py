"""State of a run after some rounds: from its folder if it is stored there, else by running."""

import dataclasses

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.engine import NO_PROBES, RunState, everywhere
from fedjax_sim.runs import (
    DEFAULT_OPTIONS,
    Divergence,
    Options,
    RunFolder,
    Storage,
    check_stored,
    locked,
    programs_of,
    simulate,
)
from fedjax_sim.types import FedAlgorithm, Setup


def state_at(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    round: int,
    *,
    storage: Storage | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> RunState:
    """Returns the state after a number of rounds; a folder keeps the newest two checkpoints."""
    check_count(1, round=round)
    num_rounds = setup.timeline.num_rounds
    if round >= num_rounds:
        raise ValueError(f"round is {round}; expected 1 .. {num_rounds - 1}, before the last round")
    timeline = jax.tree.map(np.asarray, setup.timeline)
    directory, execution = None if storage is None else storage.path, options.strategy
    if storage is not None:
        check_stored(algorithm, setup, keys, storage, options)
    if directory is not None and RunFolder(directory).has_state(round):
        compiled = programs_of(
            algorithm, setup, batched=keys.ndim == 1, execution=execution, probes=NO_PROBES
        )
        put = everywhere(setup.task)
        like = compiled.initial(setup.task, put(setup.params), put(timeline))
        with locked(directory):
            restored = RunFolder(directory).state_at(like, round)
        if restored is not None:
            return restored
    begin = dataclasses.replace(setup, timeline=timeline[:round], eval_fn=None)
    record, options = [Divergence("record")], Options(execution=execution)
    return simulate(algorithm, begin, keys, callbacks=record, options=options).state
