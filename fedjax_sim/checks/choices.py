"""Checks of arguments that are one of a few choices, or a part of a whole."""

from collections.abc import Sequence

from fedjax_sim.checks.numbers import check_count


def check_choice(choices: Sequence[object], /, **values: object) -> None:
    """Raises ValueError for a value that is none of the choices.

    Example:
        >>> check_choice(("I", "II"), option="III")
        Traceback (most recent call last):
        ...
        ValueError: option is 'III'; expected 'I' or 'II'
    """
    for name, value in values.items():
        if value not in choices:
            *others, last = map(repr, choices)
            raise ValueError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")


def check_part(of: str, whole: int, /, **parts: int) -> None:
    """Raises ValueError for numbers that are no integers, or outside of 1 .. a whole.

    Example:
        >>> check_part("num_clients", 3, cohort_size=4)
        Traceback (most recent call last):
        ...
        ValueError: cohort_size is 4; expected 1 .. num_clients = 3
    """
    check_count(**{of: whole}, **parts)
    for name, part in parts.items():
        if not 1 <= part <= whole:
            raise ValueError(f"{name} is {part}; expected 1 .. {of} = {whole}")
