"""``MLflow``: scalars of a run for MLflow (extra ``tracking``)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from fedjax_sim.runs.callbacks.per_seed import Logged, per_seed
from fedjax_sim.runs.events import Action, Event

_TAG = "fedjax_sim_run"
_BATCH = 100  # parameters in one call, MLflow's limit


class MLflow:
    """Logs the metrics of every evaluation, one MLflow run per algorithm and seed.

    The step is the round.  Runs have the name of the algorithm and the seed, and a tag with a
    digest of their identity (``run.json``): a resumed run continues its curves, and a run with
    other hyper-parameters, data or seeds is another one.  The parameters have that identity,
    hyper-parameters and digests included, with the versions.

    Args:
        experiment: name of the experiment.
        tracking_uri: where MLflow keeps its records, such as "sqlite:///mlflow.db" or
            "http://localhost:5000"; default: MLflow's own.

    Raises:
        ImportError: the package mlflow is not installed.

    Example:
        >>> log = MLflow("federated", "sqlite:///mlflow.db")  # doctest: +SKIP
        >>> fs.simulate(fs.fedavg(0.1), setup, key, callbacks=[log])  # doctest: +SKIP
    """

    needs_identity = True

    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri)
        entities = importlib.import_module("mlflow.entities")
        self._metric, self._param = entities.Metric, entities.Param
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(experiment)
        )
        self._runs: dict[str, str] = {}
        self._resumed: set[str] = set()

    def __call__(self, event: Event) -> Action:
        for logged in per_seed(event, replayed=True):
            key = logged.id or logged.name
            if key not in self._runs:
                self._runs[key] = self._run(logged)
            if event.replayed and key in self._resumed:  # which has them already
                continue
            values = logged.metrics.items()
            metrics = [self._metric(metric, value, 0, event.round) for metric, value in values]
            self._client.log_batch(self._runs[key], metrics=metrics)
        return None

    def close(self) -> None:
        """Ends the runs."""
        for run in self._runs.values():
            self._client.set_terminated(run)

    def _run(self, logged: Logged) -> str:
        """Returns the identifier of the run that MLflow has, or of a new one."""
        tags = {} if logged.id is None else {_TAG: logged.id}
        found: list[Any] = []
        if tags:
            where = f"tags.{_TAG} = '{logged.id}'"
            found = self._client.search_runs([self._experiment], where) or []
        if found:
            self._resumed.add(logged.id or "")
            return found[0].info.run_id
        run = self._client.create_run(self._experiment, tags=tags, run_name=logged.name)
        params = [self._param(name, value) for name, value in _flat(logged.config)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run.info.run_id, params=params[start : start + _BATCH])
        return run.info.run_id


def _flat(config: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the values of nested objects by names with dots, in MLflow's characters and lengths."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield re.sub(r"[^\w. /-]", "_", name)[:250], str(config)[:500]
