"""Check of arguments that name one of a few choices."""

from collections.abc import Sequence


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
