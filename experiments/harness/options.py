"""Options of experiments: their checks, their folders, and how texts describe them."""

import dataclasses
import pathlib
from collections.abc import Container, Iterable
from typing import Any, get_args

__all__ = [
    "MACHINE", "Folders", "check_choice", "check_grid", "check_names", "counted", "settings"
]  # fmt: skip

# Options that are not part of an experiment: folders of a machine, and what to do with runs there.
MACHINE = ("data_dir", "data", "work", "runs", "output", "finished")


def check_grid(**grids: tuple[float, ...]) -> None:
    """Raises a ValueError for a grid that is empty or has a number that is not positive.

    Example:
        >>> check_grid(lrs=(0.1, -1.0))
        Traceback (most recent call last):
        ...
        ValueError: lrs is (0.1, -1.0); expected positive numbers
    """
    for name, values in grids.items():
        if not values or not all(value > 0 for value in values):
            raise ValueError(f"{name} is {values}; expected positive numbers")


def check_names(option: str, names: Any, known: Iterable[str], *, empty: bool = False) -> None:
    """Raises a ValueError if ``names``, a string or several, are not all known.

    Args:
        empty: whether no names at all are allowed (they stand for a default).

    Example:
        >>> check_names("methods", ("FedAvg",), ["FedAvg", "FedSWA"])
        >>> check_names("methods", ("FedSGD",), ["FedAvg", "FedSWA"])
        Traceback (most recent call last):
        ...
        ValueError: methods is ('FedSGD',); expected some of FedAvg, FedSWA
    """
    allowed = list(known)
    one = isinstance(names, str)
    several = (names,) if one else tuple(names)
    if any(name not in allowed for name in several) or not (several or empty):
        expected = "one" if one else "some"
        raise ValueError(
            f"{option} is {names!r}; expected {expected} of {', '.join(map(str, allowed))}"
        )


def check_choice(**values: tuple[Any, Any]) -> None:
    """Raises a ValueError for values that are not among those of a ``Literal``.

    Example:
        >>> from typing import Literal
        >>> check_choice(weighting=("all", Literal["seen", "uniform"]))
        Traceback (most recent call last):
        ...
        ValueError: weighting is 'all'; expected one of seen, uniform
    """
    for name, (value, literal) in values.items():
        check_names(name, (value,) if not isinstance(value, str) else value, get_args(literal))


def counted(count: int, noun: str) -> str:
    """The count with its noun.

    Example:
        >>> counted(1, "seed"), counted(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def settings(options: Any, without: Container[str] = MACHINE) -> dict[str, Any]:
    """The values of a dataclass of options, without those of this machine.

    Example:
        >>> @dataclasses.dataclass
        ... class Options:
        ...     seeds: int = 3
        ...     output: pathlib.Path = pathlib.Path("out")
        >>> settings(Options())
        {'seeds': 3}
    """
    return {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in without
    }


@dataclasses.dataclass(frozen=True)
class Folders:
    """The folders of a run; the options of an experiment extend this class."""

    data_dir: pathlib.Path | None = None  # default: the environment variable FEDJAX_SIM_DATA
    work: pathlib.Path = pathlib.Path("results")  # finished runs, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")
