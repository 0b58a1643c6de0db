"""Parts of a sweep: its groups, divided among jobs that share a folder.

The division depends on the grid, the seeds and the number of parts only, so every job computes the
same one, and a repeated job gets the same runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedjax_sim.runs.sweeps.grid import Group

Share = tuple[Group, list[int]]  # configurations of a group, numbers of the seeds run with them


# Claims divide slices while processes run. Parts are divided before that, so they need neither
# locks between hosts nor equal devices, and no job waits for another.
@dataclasses.dataclass(frozen=True)
class Part:
    """The i-th of n parts of a grid, in the place of the grid: for the jobs of an array.

    The jobs share the folder.  The result also has those runs of other parts that are finished;
    ``missing`` counts the others.

    Args:
        grid: the whole grid, equal in all jobs.
        number: i, from 1.
        of: n.

    Raises:
        ValueError: a number i outside 1 .. n.

    Example:
        >>> Part({"lr": [0.1, 0.2]}, 2, 8).of
        8
        >>> Part({"lr": [0.1, 0.2]}, 9, 8)
        Traceback (most recent call last):
        ...
        ValueError: part is 9; expected 1 .. 8, the parts
    """

    grid: Any  # as sweep takes it
    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ValueError(f"part is {self.number}; expected 1 .. {self.of}, the parts")


def shares_of(every: Sequence[Group], num_seeds: int, per_seed: bool) -> Iterator[Share]:
    """Yields the groups with the numbers of the seeds that run together."""
    for group in every:
        if per_seed:
            yield from ((group, [seed]) for seed in range(num_seeds))
        else:
            yield group, list(range(num_seeds))


def divide(shares: Sequence[Share], part: tuple[int, int]) -> list[Share]:
    """Returns the shares of part i of n.

    Whole groups if there are at least n, since each has a program to compile: larger ones first,
    each to the part that has the fewest runs.  With fewer groups their configurations are cut, into
    pieces of sizes as equal as possible.  With fewer configurations than parts, some parts have no
    runs.

    Example:
        >>> from fedjax_sim.runs.sweeps.grid import expand, groups
        >>> grid = expand({"batch_size": [5, 10], "lr": [0.1, 0.2, 0.3, 0.4]})
        >>> shares = [(group, [0, 1]) for group in groups(grid, {"batch_size"})]
        >>> [[group.members for group, _ in divide(shares, (i, 3))] for i in (1, 2, 3)]
        [[(4, 5, 6, 7)], [(0, 1)], [(2, 3)]]
    """
    number, num_parts = part
    pieces = [
        (_selected(group, rows), seeds)
        for (group, seeds), count in zip(shares, _cuts(shares, num_parts), strict=True)
        for rows in np.array_split(np.arange(len(group.members)), count)
    ]
    owners, runs = {}, [0] * num_parts
    for i in sorted(range(len(pieces)), key=lambda i: -_num_runs(pieces[i])):
        owners[i] = min(range(num_parts), key=runs.__getitem__)
        runs[owners[i]] += _num_runs(pieces[i])
    return [piece for i, piece in enumerate(pieces) if owners[i] == number - 1]


def _cuts(shares: Sequence[Share], num_parts: int) -> list[int]:
    """Returns the number of pieces of each group: one more for the longest until all have work."""
    cuts = [1] * len(shares)

    def length(i: int) -> float:
        can_be_cut = cuts[i] < len(shares[i][0].members)
        return _num_runs(shares[i]) / cuts[i] if can_be_cut else 0

    while sum(cuts) < num_parts:
        longest = max(range(len(shares)), key=length)
        if not length(longest):
            break
        cuts[longest] += 1
    return cuts


def _num_runs(share: Share) -> int:
    return len(share[0].members) * len(share[1])


def _selected(group: Group, rows: np.ndarray) -> Group:
    return group._replace(
        members=tuple(group.members[i] for i in rows),
        values={name: values[rows] for name, values in group.values.items()},
    )
