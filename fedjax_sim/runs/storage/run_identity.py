"""Identity of a run: the values of ``run.json``, and the test for a shorter beginning of it."""

import json
import pathlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import OnHost
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.runs.storage.identity import (
    arrays_digest,
    sharded_digest,
    source_digest,
    timeline_arrays,
)
from fedjax_sim.runs.storage.run_functions import RunTraces, identified
from fedjax_sim.types import Setup, Spec


def same(one: Any, other: Any) -> bool:
    """Returns True for equal JSON values; NaN equals NaN, which is the same text in a file."""
    return one == other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class RunIdentity(NamedTuple):
    """Values that make two calls the same run, and the test for a shorter or accepted run."""

    values: dict[str, Any]
    extends: Callable[[Mapping[str, Any]], bool]


def identify(
    traces: RunTraces,
    spec: Spec | None,
    config: Mapping[str, Any] | None,
    setup: Setup,
    keys: Array,
    names: Sequence[str],
    *,
    eval_initial: bool = False,
    folder: pathlib.Path | None = None,
    known: Mapping[str, Any] = types.MappingProxyType({}),
    accept_changed_code: bool = False,
) -> RunIdentity:
    """Returns the values that make two calls the same run: digests and the given config.

    Functions count by what they trace to, data by their content; an execution counts if it was
    given.  Numbers of an algorithm with a spec count by the spec, since programs take them as
    arguments.  Of a task on the host, ``source`` covers the examples.

    Args:
        traces: of the run's functions.
        spec: of the algorithm.
        config, setup, keys, eval_initial: those of the run.
        names: of the replicas.
        folder: of the run.
        known: identity that the folder has, whose accepted changes of code are kept.
        accept_changed_code: accept that the folder has other functions.

    Raises:
        FolderError: the folder has other functions.
        ValueError: a function cannot be traced.
    """
    timeline = jax.tree.map(np.asarray, setup.timeline)
    values = {
        "spec": None if spec is None else spec.to_json(),
        **identified(traces),
        "config": dict(config or {}),
        **data_values(setup, keys),
        "timeline": arrays_digest(timeline_arrays(timeline)),
        "rounds": timeline.num_rounds,
        "eval_every": setup.eval_every,
        "replicas": list(names),
        "eval_initial": bool(eval_initial),
    }
    values |= _of_code(values, folder, known, accept=accept_changed_code)

    def extends(known: Mapping[str, Any]) -> bool:
        """Returns True if this run continues the known one: longer, or with accepted changes."""
        expected = before_changes(values, known)
        rounds = known.get("rounds")
        if isinstance(rounds, int) and 0 < rounds < timeline.num_rounds:
            beginning = arrays_digest(timeline_arrays(timeline[:rounds]))
            expected |= {"rounds": rounds, "timeline": beginning}
        is_same = known.keys() <= expected.keys() and all(
            same(value, known.get(name)) for name, value in expected.items()
        )
        if is_same and isinstance(rounds, int) and rounds < timeline.num_rounds:
            check_last_evaluation(rounds, timeline.num_rounds, setup.eval_every)
        return is_same

    return RunIdentity(values, extends)


def before_changes(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an identity as it was before the changes of code that ``known`` does not have."""
    before = {**values, "jax": known.get("jax"), "accepted": known.get("accepted")}
    later = values.get("accepted", [])[len(known.get("accepted") or []) :]
    for old in reversed(later):  # the first of them has what the known run had
        before |= {name: old[name] for name in old if name in RunTraces._fields}
    return before


def data_values(setup: Setup, keys: Array) -> dict[str, str]:
    """Returns the part of a run's identity on its examples, initial models and keys."""
    placement = setup.task.placement
    # Another number of devices may continue a run with data by client, and no process has it all.
    by_client = placement is not None and placement.axis is not None
    data_digest = sharded_digest if by_client else arrays_digest
    values = {
        "data": data_digest((setup.task, setup.eval_fn)),
        "params": arrays_digest(setup.params),
        "key": arrays_digest(keys),
    }
    if isinstance(placement, OnHost):  # the task has not the examples
        assert placement.source is not None
        values["source"] = source_digest(placement.source)
    return values


def _text(spec: Mapping[str, Any] | None) -> str:
    """Returns the call that a spec in a file stands for."""
    if spec is None:
        return "an algorithm without a spec"
    return f"{spec['name']}({', '.join(f'{k}={v}' for k, v in spec['arguments'].items())})"


def _of_code(
    values: Mapping[str, Any],
    folder: pathlib.Path | None,
    known: Mapping[str, Any],
    *,
    accept: bool,
) -> dict[str, Any]:
    """Returns the JAX version of the traces, and the digests that earlier calls accepted."""
    here = {"jax": known.get("jax", jax.__version__), "accepted": known.get("accepted", [])}
    changed = {
        name: known[name]
        for name in RunTraces._fields
        if None not in (known.get(name), values[name]) and known[name] != values[name]
    }
    functions = {*RunTraces._fields, "rounds", "timeline"}
    others = [x for x in values if x not in functions and not same(known.get(x), values[x])]
    others += set(RunTraces._fields) - known.keys()
    numbers = ""
    if "spec" in known and not same(known["spec"], values["spec"]):
        others.remove("spec")
        changed |= {"algorithm": known.get("algorithm")}
        numbers = f": it is {_text(known['spec'])} there, and {_text(values['spec'])} here"
    if not changed or others:  # with other data, shapes in the traces differ, too
        return here
    if accept and not numbers:
        accepted = [*here["accepted"], {"jax": here["jax"], **changed}]
        return {"jax": jax.__version__, "accepted": accepted}
    names = [f"the {name}" for name in RunTraces._fields if name in changed]
    if "algorithm" in changed:  # through which these are traced
        names = [name for name in names if name not in ("the evaluation", "the probes")]
    compute = "computes" if len(names) == 1 else "compute"
    reason, remedy = numbers, "choose another directory or delete this one"
    if not numbers:
        remedy = (
            "choose another directory, delete this one, or continue with accept_changed_code=True"
        )
    if here["jax"] != jax.__version__ and not numbers:
        reason = f", perhaps since JAX was {here['jax']} and is {jax.__version__}"
    raise FolderError(
        f"directory {str(folder)!r} holds another run: what {' and '.join(names)} {compute} "
        f"has changed{reason}; {remedy}"
    )


def check_last_evaluation(known: int, num_rounds: int, eval_every: int) -> None:
    """Refuses to extend a run whose last evaluation a longer run does not have."""
    if known % eval_every:
        raise FolderError(
            f"rounds is {num_rounds}, and the directory has {known} rounds with an evaluation "
            f"every {eval_every} and after the last one; expected {known}, since only a multiple "
            f"of {eval_every} can be extended"
        )
