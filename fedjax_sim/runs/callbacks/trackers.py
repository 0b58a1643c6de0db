"""Scalars of a run for TensorBoard, Weights & Biases and MLflow (extra ``tracking``)."""

from __future__ import annotations

import functools
import importlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from fedjax_sim.engine import distributed
from fedjax_sim.runs.events import Action, Event
from fedjax_sim.runs.storage.environment import environment
from fedjax_sim.runs.storage.files import digest

_environment = functools.cache(environment)

Ended: TypeAlias = Literal["finished", "interrupted", "failed"]


class Logged(NamedTuple):
    """Metrics of one seed, and the run that they belong to."""

    name: str  # algorithm and seed
    id: str | None  # equal for the same run in other processes; None: the event does not say it
    config: dict[str, Any]
    metrics: dict[str, float]


def per_seed(event: Event, *, replayed: bool = False) -> Iterator[Logged]:
    """Yields the metrics of each seed; nothing on all processes but the first.

    The identifier is a digest of the run's identity (``run.json``: algorithm, functions, data,
    timeline, initial model, key and config) and of the seed.  The config is that identity, with
    the versions and devices of this process.  ``replayed``: also evaluations of an earlier one.
    """
    if (event.replayed and not replayed) or not distributed.is_first():
        return
    for i, seed in enumerate(event.seeds):
        identity = event.identity
        config = {"name": event.name, "seed": seed, **(identity or {})}
        yield Logged(
            f"{event.name}-{seed}" if event.name else seed,
            None if identity is None else digest(dict(identity), seed),
            config | {"environment": _environment()},
            {metric: float(values[i]) for metric, values in event.metrics.items()},
        )


class TensorBoard:
    """Writes the metrics of every evaluation, one TensorBoard run per algorithm and seed.

    The step is the round.  A resumed run continues its curves.

    Args:
        directory: folder of the event files, for ``tensorboard --logdir``.

    Raises:
        ImportError: the package tensorboardX is not installed.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = TensorBoard(folder)
        ...     log(Event("FedAvg", ["0"], 2, 9, {"loss": np.array([0.5])}, None, False, None))
        ...     log.close()
        ...     [path.name for path in pathlib.Path(folder).iterdir()]
        ['FedAvg-0']
    """

    def __init__(self, directory: str | pathlib.Path) -> None:
        self._make = importlib.import_module("tensorboardX").SummaryWriter
        self._directory = pathlib.Path(directory)
        self._writers: dict[str, Any] = {}

    def __call__(self, event: Event) -> Action:
        for run, _, _, values in per_seed(event):
            if run not in self._writers:
                # Within a second all is in the file, where flush() leaves what waits in a queue.
                self._writers[run] = self._make(str(self._directory / run), flush_secs=1)
            for name, value in values.items():
                self._writers[run].add_scalar(name, value, event.round)
            self._writers[run].flush()
        return None

    def close(self, ended: Ended = "finished") -> None:
        """Closes the files, however the runs have ended."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class WandB:
    """Logs the metrics of every evaluation, one run per algorithm and seed, grouped by algorithm.

    The step is the round.  The identifier is a digest of the run's identity (``run.json``): a
    resumed run continues its curves, and a run with other hyper-parameters, data or seeds is
    another one.  The config has that identity, hyper-parameters and digests included, with the
    versions.

    Args:
        project: name of the project.
        group: group of the runs of :func:`fedjax_sim.simulate`, which have no algorithm's name.
        settings: further arguments of ``wandb.init``, such as ``mode="offline"``.

    Raises:
        ImportError: the package wandb is not installed.

    Example:
        >>> log = WandB("federated", group="quickstart", mode="offline")  # doctest: +SKIP
        >>> fs.simulate(fs.fedavg(0.1), setup, key, callbacks=[log])  # doctest: +SKIP
    """

    needs_identity = True

    def __init__(self, project: str, *, group: str = "run", **settings: Any) -> None:
        self._init = importlib.import_module("wandb").init
        self._project, self._group = project, group
        self._settings: dict[str, Any] = settings
        self._runs: dict[str, Any] = {}
        self._whole: set[str] = set()  # runs that did all rounds

    def __call__(self, event: Event) -> Action:
        for name, identifier, config, values in per_seed(event, replayed=True):
            run = identifier or name
            if run not in self._runs:
                known = {} if identifier is None else {"id": identifier, "resume": "allow"}
                self._runs[run] = self._init(
                    project=self._project, group=event.name or self._group, name=name,
                    config=config, reinit="create_new", **known, **self._settings,
                )  # fmt: skip
            if not (event.replayed and self._runs[run].resumed):  # which has them already
                self._runs[run].log(values, step=event.round)
            if event.round == event.num_rounds:
                self._whole.add(run)
        return None

    def close(self, ended: Ended = "finished") -> None:
        """Ends the runs: of those that did all rounds, or all if "finished", with exit code 0."""
        for name, run in self._runs.items():
            run.finish(exit_code=int(ended != "finished" and name not in self._whole))
        self._runs.clear()
        self._whole.clear()


_TAG = "fedjax_sim_run"
_BATCH = 100  # parameters in one call, MLflow's limit
_STATUS: dict[Ended, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


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
        self._name, self._experiment = experiment, self._known(experiment)
        self._runs: dict[str, str] = {}
        self._resumed: set[str] = set()
        self._whole: set[str] = set()  # runs that did all rounds

    def __call__(self, event: Event) -> Action:
        for logged in per_seed(event, replayed=True):
            key = logged.id or logged.name
            if key not in self._runs:
                self._runs[key] = self._run(logged)
            if event.round == event.num_rounds:
                self._whole.add(key)
            if event.replayed and key in self._resumed:  # which has them already
                continue
            values = logged.metrics.items()
            metrics = [self._metric(metric, value, 0, event.round) for metric, value in values]
            self._client.log_batch(self._runs[key], metrics=metrics)
        return None

    def close(self, ended: Ended = "finished") -> None:
        """Ends the runs, with a status that says how; those that did all rounds have finished."""
        for key, run in self._runs.items():
            self._client.set_terminated(run, _STATUS["finished" if key in self._whole else ended])
        self._runs.clear()
        self._whole.clear()

    def _known(self, name: str) -> str | None:
        known = self._client.get_experiment_by_name(name)
        return known and known.experiment_id

    def _run(self, logged: Logged) -> str:
        """Returns the identifier of the run that MLflow has, or of a new one."""
        if self._experiment is None:  # not before: a call that is refused leaves no experiment
            # Another log, or another process, may have made it since.
            self._experiment = self._known(self._name)
            self._experiment = self._experiment or self._client.create_experiment(self._name)
        tags = {} if logged.id is None else {_TAG: logged.id}
        found: list[Any] = []
        if tags:
            where = f"tags.{_TAG} = '{logged.id}'"
            found = self._client.search_runs([self._experiment], where) or []
        if found:
            self._resumed.add(logged.id or "")
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return found[0].info.run_id
        run = self._client.create_run(self._experiment, tags=tags, run_name=logged.name)
        params = [self._param(name, value) for name, value in _flat(logged.config)]
        for start in range(0, len(params), _BATCH):
            self._client.log_batch(run.info.run_id, params=params[start : start + _BATCH])
        return run.info.run_id


def _flat(config: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields values of nested objects by names with dots, in MLflow's characters and lengths."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield re.sub(r"[^\w. /-]", "_", name)[:250], str(config)[:500]
