"""From a grid of hyper-parameters to blocks of runs that fit a device.

A *configuration* is one choice of all hyper-parameters, a *block* the configurations x seeds that
one device runs at once, a *slice* one block for every device.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Configuration = dict[str, Any]
Grid = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

# A step of a block costs as much as its configurations and these many more: minibatches and
# permutations are made once for all of them. From W1 and W4 on two cores, where it is 3 to 10.
_SHARED_COST = 4


class Group(NamedTuple):
    """Configurations that one program runs."""

    static: Configuration  # what they have in common
    names: tuple[str, ...]  # of the hyper-parameters that vary
    members: tuple[int, ...]  # numbers of the configurations
    values: dict[str, np.ndarray]  # of each name, [len(members)]


class Block(NamedTuple):
    """Where one device's runs start: ``width`` configurations from ``configuration`` on,
    ``seeds`` seeds from ``seed`` on."""

    configuration: int
    seed: int


class Plan(NamedTuple):
    """How a group is cut: ``slices`` of one block a device, of width x seeds runs each.

    A block at the end of the configurations or seeds repeats the last one to be full.
    """

    width: int  # configurations a block
    seeds: int  # seeds a block
    slices: tuple[tuple[Block, ...], ...]

    def configurations(self, block: Block, count: int) -> list[int]:
        """The block's positions among ``count`` configurations, ``[width]``."""
        return [min(block.configuration + i, count - 1) for i in range(self.width)]

    def seed_numbers(self, block: Block, count: int) -> list[int]:
        """The block's positions among ``count`` seeds, ``[seeds]``."""
        return [min(block.seed + i, count - 1) for i in range(self.seeds)]


def expand(grid: Grid) -> list[Configuration]:
    """All configurations: the Cartesian product of a mapping, the last name varying fastest, or the
    entries of a list.

    Raises:
        ValueError: no configurations, two equal ones, or a name without values.

    Example:
        >>> expand({"lr": [0.1, 0.2], "cohort_size": [5]})
        [{'lr': 0.1, 'cohort_size': 5}, {'lr': 0.2, 'cohort_size': 5}]
    """
    if isinstance(grid, Mapping):
        axes = [_listed(name, values) for name, values in grid.items()]
        found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*axes)]
    else:
        found = [dict(entry) for entry in grid]
    if not found:
        raise ValueError(f"grid is {grid!r}; expected at least one configuration")
    for i, entry in enumerate(found):
        if entry in found[:i]:
            raise ValueError(f"grid has {entry!r} twice; expected distinct configurations")
    return found


def groups(configurations: Sequence[Configuration], static: Collection[str]) -> list[Group]:
    """The configurations by their static values (and by which names they have), in order.

    Raises:
        ValueError: a value that varies inside a program and is not a finite number.

    Example:
        >>> grid = expand({"lr": [0.1, 0.2], "batch_size": [10, 20]})
        >>> [(g.static, g.values["lr"].tolist()) for g in groups(grid, {"batch_size"})]
        [({'batch_size': 10}, [0.1, 0.2]), ({'batch_size': 20}, [0.1, 0.2])]
    """
    gathered: list[tuple[Configuration, tuple[str, ...], list[int]]] = []
    for i, entry in enumerate(configurations):
        fixed = {name: value for name, value in entry.items() if name in static}
        names = tuple(name for name in entry if name not in static)
        for name in names:
            _check_number(name, entry[name])
        for other, other_names, members in gathered:
            if other == fixed and set(other_names) == set(names):
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


def widths(num_configurations: int, num_blocks_of_seeds: int, num_devices: int) -> Iterator[int]:
    """Configurations a block, the cheapest choice first, then ever narrower ones.

    The cost of a choice is slices x (width + a constant): wide blocks share their minibatches, but
    blocks that do not fill the devices waste them.

    Example:
        >>> next(widths(49, 3, 2)), next(widths(49, 3, 1)), list(widths(3, 1, 1))
        (25, 49, [3, 2, 1])
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
    """Cuts configurations x seeds into slices; the last one repeats its last block to be full.

    Example:
        >>> cut(3, 2, num_devices=1, width=2, seeds=2).slices
        ((Block(configuration=0, seed=0),), (Block(configuration=2, seed=0),))
    """
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
        found = [] if isinstance(values, str) else list(values)
    except TypeError:
        found = []
    if not found:
        raise ValueError(f"grid has {values!r} for {name!r}; expected a list of values")
    return found


def _check_number(name: str, value: Any) -> None:
    try:
        good = not isinstance(value, (bool, np.bool_, str)) and math.isfinite(value)
    except (TypeError, OverflowError):
        good = False
    if not good:
        raise ValueError(
            f"grid has {value!r} for {name!r}; expected a finite number, or a function with a "
            f"parameter {name!r} as the setup"
        )
