"""Digests of a study's own parts: equal options may mean other clients, or another loss."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.algorithms import fedavg
from fedjax_sim.datasets import IGNORE, Dataset
from fedjax_sim.objectives import as_float
from fedjax_sim.runs import (
    data_values,
    digest,
    timeline_arrays,
    trace_run,
)
from fedjax_sim.runs import trace as traced
from fedjax_sim.studies.setups.clients import pool_of
from fedjax_sim.studies.setups.losses import Losses
from fedjax_sim.studies.setups.model import functions_of, model_of
from fedjax_sim.studies.setups.partition import own_division
from fedjax_sim.studies.setups.sampling import own_timeline
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.types import Setup, Task, Timeline


class OwnDigests(NamedTuple):
    """Digests of a study's own parts, by name; none of parts that options describe."""

    arrays: dict[str, str]  # rows, setup: what they return
    functions: dict[str, str]  # objective, evaluation: what they trace to; and the version of JAX
    timeline: Timeline | None = None  # of one seed

    def changed(self, known: Mapping[str, Any], *, functions: bool = True) -> list[str]:
        """Returns the names of the parts that were others when ``config.json`` was written.

        A timeline may have more rounds than there, as a built-in one.

        Args:
            known: its members.
            functions: compare them, unless another version of JAX traced them.
        """
        there, here = dict(known.get("own_arrays") or {}), self._arrays(known.get("own_rounds"))
        of_functions = known.get("own_functions") or {}
        if functions and of_functions.get("jax") == self.functions.get("jax"):
            there, here = there | of_functions, here | self.functions
        return [name for name, value in here.items() if there.get(name, value) != value]

    def members(self, known: Mapping[str, Any], *, accepted: bool = False) -> dict[str, Any]:
        """Returns members of ``config.json``; none without parts of a study's own.

        What it says of runs that are there stays.  A timeline that has grown is the longer one,
        as the option of rounds.

        Args:
            known: its members; empty without runs.
            accepted: functions may be others than those of the runs.
        """
        there, here = known.get("own_arrays") or {}, self._arrays()
        rounds, arrays = known.get("own_rounds"), here | there
        if self.timeline is not None:
            beginning = self._arrays(rounds)["timeline"]
            if there.get("timeline", beginning) == beginning:
                rounds, arrays["timeline"] = self.timeline.num_rounds, here["timeline"]
        functions = known.get("own_functions") or self.functions
        if self.functions and accepted:
            functions = self.functions
        elif functions.get("jax") == self.functions.get("jax"):
            functions = self.functions | functions
        values = {"own_arrays": arrays, "own_rounds": rounds, "own_functions": functions}
        return {name: value for name, value in values.items() if value}

    def _arrays(self, rounds: int | None = None) -> dict[str, str]:
        """Returns the digests of arrays, with that of a timeline's first rounds."""
        if self.timeline is None:
            return self.arrays
        part = self.timeline[: rounds or self.timeline.num_rounds]
        return self.arrays | {"timeline": digest(*timeline_arrays(part))}


NO_DIGESTS = OwnDigests({}, {})


def of_parts(study: Study, dataset: Dataset, task: Task | None) -> OwnDigests:
    """Returns the digests of a study's own rows, timeline, model, loss and metrics.

    Args:
        study, dataset: the comparison.
        task: from which the timeline follows; None: it has no digest.
    """
    run, arrays, timeline = study.options, dict[str, str](), None
    if study.rows is not None:
        _, pool, _ = pool_of(run.population, dataset)
        rows = own_division(study.rows, pool, run.population.partition_seed).rows
        arrays["rows"] = digest(*rows)
    if study.timeline is not None and task is not None:
        # With one key, so that folders with other seeds are of one setting.
        timeline = own_timeline(study.timeline, jax.random.key(0), task)
    if all(part is None for part in (study.model, study.loss, study.metrics)):
        return OwnDigests(arrays, {}, timeline)
    _, net = model_of(run.model, run.adapters, study.model, dataset)
    losses = Losses.of(dataset, run.model.loss, study.loss, study.metrics)
    ignore = IGNORE if dataset.train["y"].ndim == 2 else None
    objective, _ = functions_of(net, False, run.model.statistics, losses, ignore)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0)))
    batch = {name: np.asarray(dataset.train[name][:2]) for name in ("x", "y")}

    def evaluation(params: Any, batch: Any) -> Any:
        outputs = net.apply(params, as_float(batch["x"]))
        return outputs, study.metrics and study.metrics(outputs, batch["y"])

    functions = {
        "objective": _traced(objective, params, batch, jax.eval_shape(lambda: jax.random.key(0))),
        "evaluation": _traced(evaluation, params, batch),
    }
    return OwnDigests(arrays, _with_version(functions), timeline)


def of_setup(setup: Setup, keys: jax.Array) -> OwnDigests:
    """Returns the digests of a study's own setup of the first seed, which has an axis of seeds."""
    values = data_values(setup, keys)
    arrays = {"setup": digest(values["data"], values.get("source"))}
    traces = trace_run(fedavg(0.1), setup, batched=True)  # any algorithm, the same every time
    parts = {name: getattr(traces, name) for name in ("objective", "weighting", "evaluation")}
    found = {name: x.digest for name, x in parts.items() if x is not None and x.error is None}
    timeline = jax.tree.map(lambda x: np.asarray(x)[0], setup.timeline)
    return OwnDigests(arrays, _with_version(found), timeline)


def _traced(function: Callable, *arguments: Any) -> str | None:
    """Returns the digest of what a function traces to; None if it cannot be traced so."""
    trace, _ = traced(function, *arguments)
    return None if trace.error is not None else trace.digest


def _with_version(functions: Mapping[str, str | None]) -> dict[str, str]:
    known = {name: value for name, value in functions.items() if value is not None}
    return {"jax": jax.__version__, **known} if known else {}
