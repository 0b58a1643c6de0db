"""``per_seed``: what is logged of an event, one run per algorithm and seed."""

from collections.abc import Iterator

from fedjax_sim.execution import distributed
from fedjax_sim.simulation.events import Event


def per_seed(event: Event) -> Iterator[tuple[str, dict[str, float]]]:
    """The name of the run and the metrics of each seed.

    Nothing for an event that an earlier process has logged, and on all processes but the first.

    Example:
        >>> import numpy as np
        >>> metrics = {"loss": np.array([0.5, 0.25])}
        >>> list(per_seed(Event("FedAvg", ["0", "1"], 2, 9, metrics, None, False, None)))
        [('FedAvg-0', {'loss': 0.5}), ('FedAvg-1', {'loss': 0.25})]
    """
    if event.replayed or not distributed.is_first():
        return
    for i, seed in enumerate(event.seeds):
        name = f"{event.name}-{seed}" if event.name else seed
        yield name, {metric: float(values[i]) for metric, values in event.metrics.items()}
