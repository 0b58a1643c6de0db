"""Checks of arguments that are one of a few choices, or a part of a whole."""

from collections.abc import Sequence

from fedjax_sim.checks.numbers import check_count


def check_choice(choices: Sequence[object], /, **values: object) -> None:
    """Raises ValueError for a value that is none of the choices."""
    for name, value in values.items():
        if value not in choices:
            *others, last = map(repr, choices)
            raise ValueError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")


def check_part(of: str, whole: int, /, **parts: int) -> None:
    """Raises ValueError for numbers that are no integers, or outside of 1 .. a whole."""
    check_count(**{of: whole}, **parts)
    for name, part in parts.items():
        if not 1 <= part <= whole:
            raise ValueError(f"{name} is {part}; expected 1 .. {of} = {whole}")
