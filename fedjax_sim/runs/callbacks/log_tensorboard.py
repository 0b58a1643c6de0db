"""``TensorBoard``: scalars of a run for TensorBoard (extra ``tracking``)."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

from fedjax_sim.runs.callbacks.per_seed import per_seed
from fedjax_sim.runs.events import Action, Event


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
                self._writers[run] = self._make(str(self._directory / run))
            for name, value in values.items():
                self._writers[run].add_scalar(name, value, event.round)
            self._writers[run].flush()
        return None

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()
