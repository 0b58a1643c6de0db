"""Options of sweeps by name, for tests."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_sim.cli.grid import Axis, SweepOptions
from fedjax_sim.studies.setups import replaced

_OWN = {field.name for field in dataclasses.fields(SweepOptions)}


def sweep_options(
    grid: Mapping[str, Axis | Sequence[Any]] | None = None,
    default: SweepOptions | None = None,
    **values: Any,
) -> SweepOptions:
    """Returns the options of a sweep: axes, fields of its own, and options of runs by name."""
    config = default or SweepOptions()
    run = config.run
    for name, value in values.items():
        if name not in _OWN:
            run = replaced(run, name, value)
    own = {name: value for name, value in values.items() if name in _OWN}
    if grid is not None:
        axes = {
            n: axis if isinstance(axis, Axis) else Axis(tuple(axis)) for n, axis in grid.items()
        }
        own["grid"] = axes
    return dataclasses.replace(config, run=run, **own)
