"""``WandB``: scalars of a run for Weights & Biases (extra ``tracking``)."""

from __future__ import annotations

import importlib
from typing import Any

from fedjax_sim.runs.callbacks.per_seed import per_seed
from fedjax_sim.runs.events import Action, Event


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
        return None

    def close(self) -> None:
        """Ends the runs."""
        for run in self._runs.values():
            run.finish()
