"""Seeds: their names, and the axis of models that they have."""

import dataclasses
import re
from collections.abc import Sequence

import jax
import numpy as np

from fedjax_sim.types import Setup

Seed = str | int


def seed_names(
    seeds: Sequence[Seed] | None, count: int, argument: str = "options.seeds"
) -> list[str]:
    """Returns the names of the seeds in histories and files: by default "0", "1", ..."""
    names = [str(seed) for seed in (range(count) if seeds is None else seeds)]
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"{argument} is {names}; expected {count} distinct names, one per key")
    for name in names:
        if len(f"{name}.".splitlines()) > 1:
            raise ValueError(f"{argument} has {name!r}; expected a name without line breaks")
    return names


def seed_column(names: Sequence[str]) -> list[Seed]:
    """Returns the names as integers if all of them are numbers in their usual form."""
    if all(re.fullmatch(r"0|-?[1-9][0-9]*", name) for name in names):
        return [int(name) for name in names]
    return list(names)


def with_axis(setup: Setup) -> Setup:
    """Returns the setup of one seed with the axis of seeds that several have."""
    params = jax.tree.map(lambda x: np.asarray(x)[None], setup.params)
    return dataclasses.replace(setup, params=params)
