"""``per_seed``: what is logged of an event, one run per algorithm and seed."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedjax_sim.engine import distributed
from fedjax_sim.runs.events import Event
from fedjax_sim.runs.storage.environment import environment
from fedjax_sim.runs.storage.files import digest

_environment = functools.cache(environment)


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
    the versions and devices of this process.

    Args:
        event: the evaluation.
        replayed: also yield evaluations of an earlier process.
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
