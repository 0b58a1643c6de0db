"""``MLflow``: scalars of a run for MLflow (extra ``tracking``)."""

import importlib
from typing import Any

from fedjax_sim.callbacks.per_seed import per_seed
from fedjax_sim.simulation.events import Action, Event


class MLflow:
    """Logs the metrics of every evaluation, one MLflow run per algorithm and seed.

    The step is the round.  Runs have the name of the algorithm and the seed; a later call with the
    same experiment continues the run of that name.

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

    def __init__(self, experiment: str, tracking_uri: str | None = None) -> None:
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri)
        self._metric = importlib.import_module("mlflow.entities").Metric
        known = self._client.get_experiment_by_name(experiment)
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(experiment)
        )
        self._runs: dict[str, str] = {}

    def __call__(self, event: Event) -> Action:
        for name, values in per_seed(event):
            if name not in self._runs:
                self._runs[name] = self._run(name)
            metrics = [
                self._metric(metric, value, 0, event.round) for metric, value in values.items()
            ]
            self._client.log_batch(self._runs[name], metrics=metrics)
        return None

    def close(self) -> None:
        """Ends the runs."""
        for run in self._runs.values():
            self._client.set_terminated(run)

    def _run(self, name: str) -> str:
        # Filters cannot escape a quote; "_" stands for any character.
        quoted = "'" in name
        where = f"attributes.run_name {'LIKE' if quoted else '='} '{name.replace(chr(39), '_')}'"
        found: list[Any] = self._client.search_runs([self._experiment], where) or []
        same = [run for run in found if run.info.run_name == name]
        run = same[0] if same else self._client.create_run(self._experiment, run_name=name)
        return run.info.run_id
