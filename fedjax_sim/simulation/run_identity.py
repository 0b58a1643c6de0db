"""Identity of a run: the values of ``run.json``, and the test for a shorter beginning of it."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import NO_PROBES, Probes
from fedjax_sim.execution.offload import OnHost
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation.files import FolderError, read_json
from fedjax_sim.simulation.identity import (
    algorithm_identity,
    arrays_digest,
    description,
    functions_digest,
    sharded_digest,
    source_digest,
    timeline_arrays,
)
from fedjax_sim.types import FedAlgorithm, Setup, Timeline


def same(one: Any, other: Any) -> bool:
    """Returns True for equal JSON values; NaN equals NaN, which is the same text in a file."""
    return one == other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class RunIdentity(NamedTuple):
    """Values that make two calls the same run, and the test for a shorter run."""

    values: dict[str, Any]
    extends: Callable[[Mapping[str, Any]], bool]


def identify(
    algorithm: FedAlgorithm,
    config: Mapping[str, Any] | None,
    setup: Setup,
    keys: Array,
    names: Sequence[str],
    probes: Probes = NO_PROBES,
    execution: Execution | None = None,
    eval_initial: bool = False,
) -> RunIdentity:
    """Returns the values that make two calls the same run: digests and the given config.

    ``functions`` covers the code of the algorithm, the objective, the model, the evaluation and the
    probes.  An execution counts if it was given.  Of a task on the host, ``source`` and
    ``source_functions`` cover the examples, the objective and the minibatch rule.
    """
    timeline = jax.tree.map(np.asarray, setup.timeline)
    placement = setup.task.placement
    # Another number of devices may continue a run with data by client, and no process has it all.
    by_client = placement is not None and placement.axis is not None
    data_digest = sharded_digest if by_client else arrays_digest
    values = {
        "algorithm": algorithm_identity(algorithm),
        "functions": functions_digest(
            (algorithm, setup.task.oracle, setup.eval_fn, setup.weighting, probes)
        ),
        "execution": None if execution is None else functions_digest(execution),
        "config": dict(config or {}),
        "data": data_digest((setup.task, setup.eval_fn)),
        "timeline": arrays_digest(timeline_arrays(timeline)),
        "rounds": timeline.num_rounds,
        "params": arrays_digest(setup.params),
        "key": arrays_digest(keys),
        "eval_every": setup.eval_every,
        "weighting": description(setup.weighting),
        "replicas": list(names),
        "eval_initial": bool(eval_initial),
    }
    if isinstance(placement, OnHost):  # the task has neither the examples nor the objective
        assert placement.source is not None
        values["source"] = source_digest(placement.source)
        values["source_functions"] = functions_digest(placement.build)

    def extends(known: Mapping[str, Any]) -> bool:
        """Returns True if the known run is the beginning of this one."""
        rounds = known.get("rounds")
        if not isinstance(rounds, int) or not 0 < rounds < timeline.num_rounds:
            return False
        beginning = {
            "rounds": rounds,
            "timeline": arrays_digest(timeline_arrays(timeline[:rounds])),
        }
        expected = values | beginning
        same = known.keys() <= expected.keys() and all(
            same(value, known.get(name)) for name, value in expected.items()
        )
        if same:
            _check_last_evaluation(rounds, timeline.num_rounds, setup.eval_every)
        return same

    return RunIdentity(values, extends)


def check_extension(
    directory: pathlib.Path, num_rounds: int, eval_every: int, timeline: Timeline | None = None
) -> None:
    """Refuses more rounds for a run that they cannot extend; does nothing without a shorter run.

    A call that changes files of its own before it runs checks this first.

    Args:
        directory: folder of the run.
        num_rounds, eval_every: those of the longer run.
        timeline: the longer one, whose beginning is compared; None: it is not.

    Raises:
        FolderError: the run ends between two evaluations, or the timeline begins otherwise.
    """
    try:
        known = read_json(directory / "run.json", "")
    except (OSError, ValueError):
        return  # damage has its message in `claim`
    rounds = known.get("rounds")
    if not isinstance(rounds, int) or not 0 < rounds < num_rounds:
        return
    _check_last_evaluation(rounds, num_rounds, eval_every)
    if timeline is None:
        return
    beginning = jax.tree.map(np.asarray, timeline)[:rounds]
    digest = arrays_digest(timeline_arrays(beginning))
    if known.get("timeline", digest) != digest:
        raise FolderError(
            f"rounds is {num_rounds}, and the {rounds} rounds in {directory} have other clients "
            f"per round than the first {rounds} of {num_rounds}; expected {rounds}, since the "
            "sampling depends on the number of rounds"
        )


def _check_last_evaluation(known: int, num_rounds: int, eval_every: int) -> None:
    """Refuses to extend a run whose last evaluation a longer run does not have."""
    if known % eval_every:
        raise FolderError(
            f"rounds is {num_rounds}, and the directory has {known} rounds with an evaluation "
            f"every {eval_every} and after the last one; expected {known}, since only a multiple "
            f"of {eval_every} can be extended"
        )
