"""Grids of hyper-parameters, cut into blocks of runs that fit a device.

A *configuration* is one choice of all hyper-parameters, a *block* the configurations x seeds that
one device runs at once, a *slice* one block per device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import is_real

Configuration = dict[str, Any]
Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

# A step of a block costs as much as its configurations plus this number: minibatches and
# permutations are shared. Measured on W1 and W4 on two cores, where it is 3 to 10.
_SHARED_COST = 4

_COLUMNS = ("seed", "diverged_at", "round", "metric", "value", "score")  # of histories and scores


class Group(NamedTuple):
    """Configurations that share one program."""

    static: Configuration  # common values
    names: tuple[str, ...]  # hyper-parameters that vary
    members: tuple[int, ...]  # numbers of the configurations
    values: dict[str, np.ndarray]  # by name, [len(members)]


class Block(NamedTuple):
    """First configuration and first seed of one device's runs."""

    configuration: int
    seed: int


class Plan(NamedTuple):
    """Slices of a group: one block of width x seeds runs per device.

    A block at the end of the configurations or seeds repeats the last one until it is full.
    """

    width: int  # configurations per block
    seeds: int  # seeds per block
    slices: tuple[tuple[Block, ...], ...]

    def configurations(self, block: Block, count: int) -> list[int]:
        """Returns the block's positions among ``count`` configurations, ``[width]``."""
        return [min(block.configuration + i, count - 1) for i in range(self.width)]

    def seed_numbers(self, block: Block, count: int) -> list[int]:
        """Returns the block's positions among ``count`` seeds, ``[seeds]``."""
        return [min(block.seed + i, count - 1) for i in range(self.seeds)]


def expand(grid: Grid) -> list[Configuration]:
    """Returns all configurations of a grid.

    The Cartesian product of a mapping, in which the last name varies fastest, or the entries of a
    list.
    """
    if isinstance(grid, Mapping):
        axes = [_listed(name, values) for name, values in grid.items()]
        result = [dict(zip(grid, values, strict=True)) for values in itertools.product(*axes)]
    else:
        result = [dict(entry) for entry in grid]
    result = [{name: _scalar(value) for name, value in entry.items()} for entry in result]
    if not result:
        raise ValueError(f"grid is {grid!r}; expected at least one configuration")
    for i, entry in enumerate(result):
        if any(_are_equal(entry, other) for other in result[:i]):
            raise ValueError(f"grid has {entry!r} twice; expected distinct configurations")
    return result


def expand_all(grid: Any, algorithms: Collection[str] | None) -> list[Configuration]:
    """Returns all configurations of several algorithms, whose name ``algorithm`` comes first.

    Args:
        grid: one grid for all, or a mapping of grids by algorithm.
        algorithms: their names; None: one algorithm, without a name.
    """
    if algorithms is None:
        return _check_names(expand(grid))
    if not algorithms:
        raise ValueError("factories is empty; expected at least one algorithm")
    own = isinstance(grid, Mapping) and not set(algorithms).isdisjoint(grid)
    if own and set(grid) != set(algorithms):
        raise ValueError(
            f"grid has {', '.join(map(str, grid))}; expected a grid for each of "
            f"{', '.join(algorithms)}, or one for all"
        )
    entries = [(name, e) for name in algorithms for e in expand(grid[name] if own else grid)]
    for _, entry in entries:
        if "algorithm" in entry:
            raise ValueError(
                f"grid has 'algorithm' = {entry['algorithm']!r}; expected other names, since the "
                "algorithms are those of factories"
            )
    return _check_names([{"algorithm": name, **entry} for name, entry in entries])


def _check_names(configurations: list[Configuration]) -> list[Configuration]:
    """Refuses names of other columns in the frames of sweeps, where values would be mixed up."""
    for name in dict.fromkeys(name for entry in configurations for name in entry):
        if name in _COLUMNS:
            raise ValueError(
                f"grid has {name!r}; expected another name, since the frame of a sweep has a "
                f"column {name!r}: rename the parameter, such as by a lambda"
            )
    return configurations


def groups(configurations: Sequence[Configuration], static: Collection[str]) -> list[Group]:
    """Groups configurations by their static values and by their names, in order."""
    gathered: list[tuple[Configuration, tuple[str, ...], list[int]]] = []
    for i, entry in enumerate(configurations):
        fixed = {name: value for name, value in entry.items() if name in static}
        names = tuple(name for name in entry if name not in static)
        for name in names:
            _check_number(name, entry[name])
        for other, other_names, members in gathered:
            if is_same(other, fixed) and set(other_names) == set(names):
                members.append(i)
                break
        else:
            gathered.append((fixed, names, [i]))
    return [
        Group(
            fixed,
            names,
            tuple(members),
            {name: np.array([configurations[i][name] for i in members], float) for name in names},
        )
        for fixed, names, members in gathered
    ]


def is_same(static: Configuration, other: Configuration) -> bool:
    """Returns whether static values are equal and of one kind: 1, 1.0 and True are not the same."""
    return _are_equal(static, other) and all(
        _kind(static[name]) is _kind(other[name]) for name in static
    )


def _scalar(value: Any) -> Any:
    """Returns an array without axes as a number, which frames and files have."""
    known = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    known = known or (isinstance(value, jax.Array) and is_real(value))
    return np.asarray(value)[()] if known and not value.ndim else value


def _are_equal(one: Configuration, other: Configuration) -> bool:
    """Returns whether two configurations have equal values, arrays among them; 1 is not True."""
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if any(isinstance(x, (np.ndarray, jax.Array)) for x in (one, other)):
        shapes = np.shape(one) == np.shape(other)
        return shapes and type(one) is type(other) and bool(np.all(one == other))
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(_same, one, other))
    return (_kind(one) is bool) == (_kind(other) is bool) and bool(one == other)


def _kind(value: Any) -> type:
    for kind, of in (
        (bool, (bool, np.bool_)), (int, numbers.Integral), (float, numbers.Real)
    ):  # fmt: skip
        if isinstance(value, of):
            return kind
    return type(value)


def widths(num_configurations: int, num_blocks_of_seeds: int, num_devices: int) -> Iterator[int]:
    """Yields configurations per block: the cheapest choice first, then narrower ones.

    The cost is slices x (width + a constant): wide blocks share their minibatches, but blocks that
    do not fill the devices waste them.
    """

    def cost(width: int) -> int:
        blocks = -(-num_configurations // width) * num_blocks_of_seeds
        return -(-blocks // num_devices) * (width + _SHARED_COST)

    largest = num_configurations
    while largest:
        width = min(range(largest, 0, -1), key=cost)
        yield width
        largest = width - 1


def cut(num_configurations: int, num_seeds: int, num_devices: int, width: int, seeds: int) -> Plan:
    """Cuts configurations x seeds into slices; the last slice repeats its last block."""
    blocks = [
        Block(configuration, seed)
        for configuration in range(0, num_configurations, width)
        for seed in range(0, num_seeds, seeds)
    ]
    blocks += [blocks[-1]] * (-len(blocks) % num_devices)
    firsts = range(0, len(blocks), num_devices)
    return Plan(width, seeds, tuple(tuple(blocks[i : i + num_devices]) for i in firsts))


def _listed(name: str, values: Any) -> list[Any]:
    try:
        result = [] if isinstance(values, str) else list(values)
    except TypeError:
        result = []
    if not result:
        raise ValueError(f"grid has {values!r} for {name!r}; expected a list of values")
    return result


def _check_number(name: str, value: Any) -> None:
    try:
        good = not isinstance(value, (bool, np.bool_, str)) and math.isfinite(value)
    except (TypeError, OverflowError):
        good = False
    if not good:
        raise ValueError(
            f"grid has {value!r:.60} for {name!r}; expected a finite number, or an annotation of "
            f"the factory's parameter {name!r} that allows this value"
        )


# ---- parts: the groups of a sweep, divided among jobs that share a folder

Share = tuple[Group, list[int]]  # configurations of a group, numbers of the seeds run with them


# Claims divide slices while processes run. Parts are divided before that, by the grid, the seeds
# and the number of parts only, so they need neither locks between hosts nor equal devices, no job
# waits for another, and a repeated job gets the same runs.
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
        ValueError: a number i that is no integer, or outside 1 .. n.

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
        integers = all(isinstance(x, numbers.Integral) for x in (self.number, self.of))
        if not (integers and 1 <= self.number <= self.of):
            raise ValueError(f"part is {self.number!r}; expected 1 .. {self.of!r}, the parts")


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
        (selected(group, rows), seeds)
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


def selected(group: Group, rows: Sequence[int] | np.ndarray) -> Group:
    """Returns a group with some of its configurations, by their positions."""
    return group._replace(
        members=tuple(group.members[i] for i in rows),
        values={name: values[rows] for name, values in group.values.items()},
    )
