"""``WandB``: scalars of a run for Weights & Biases (extra ``tracking``)."""

import importlib
from typing import Any

from fedjax_sim.callbacks.per_seed import per_seed
from fedjax_sim.simulation.events import Action, Event


class WandB:
    """Logs the metrics of every evaluation, one run per algorithm and seed, grouped by algorithm.

    The step is the round.  A run has the same identifier in every call with the same ``group``, so
    a resumed run continues its curves.

    Args:
        project: name of the project.
        group: name of the comparison, part of the runs' identifiers.
        settings: further arguments of ``wandb.init``, such as ``mode="offline"``.

    Raises:
        ImportError: the package wandb is not installed.

    Example:
        >>> log = WandB("federated", group="quickstart", mode="offline")  # doctest: +SKIP
        >>> fs.simulate(fs.fedavg(0.1), setup, key, callbacks=[log])  # doctest: +SKIP
    """

    def __init__(self, project: str, *, group: str = "run", **settings: Any) -> None:
        self._init = importlib.import_module("wandb").init
        self._project, self._group = project, group
        self._settings: dict[str, Any] = settings
        self._runs: dict[str, Any] = {}

    def __call__(self, event: Event) -> Action:
        for name, values in per_seed(event):
            run = f"{self._group}-{name}"
            if run not in self._runs:
                self._runs[run] = self._init(
                    project=self._project, group=event.name or self._group, name=run, id=run,
                    resume="allow", reinit="create_new", **self._settings,
                )  # fmt: skip
            self._runs[run].log(values, step=event.round)
        return None

    def close(self) -> None:
        """Ends the runs."""
        for run in self._runs.values():
            run.finish()
