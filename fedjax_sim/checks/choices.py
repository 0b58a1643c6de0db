"""Choices among values, parts of a whole, names that do not exist, packages that are absent."""

import difflib
import importlib
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType

from fedjax_sim.checks.numbers import check_count


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the most similar known one, if any."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def install_command(extra: str) -> str:
    """Returns the end of a message: the command that installs an extra of this package.

    docs/versions.md says the same; no index of packages has this one yet.
    """
    return (
        f"pip install '.[{extra}]' in a checkout of the repository, or with the path of its wheel "
        "for the dot"
    )


def import_extra(module: str, extra: str) -> ModuleType:
    """Imports an optional package; the error names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} could not be imported ({error}); install it with: {install_command(extra)}"
        ) from error


def check_choice(choices: Sequence[object], /, **values: object) -> None:
    """Raises ValueError for a value that is none of the choices."""
    for name, value in values.items():
        if value not in choices:
            *others, last = map(repr, choices)
            raise ValueError(f"{name} is {value!r}; expected {', '.join(others)} or {last}")


def check_known(known: Collection[str], /, **values: str) -> None:
    """Raises ValueError for a name that is none of the known ones; the error has a similar one."""
    for name, value in values.items():
        if value not in known:
            expected = f"expected one of {', '.join(known)}{did_you_mean(value, known)}"
            raise ValueError(f"{name} is {value!r}; {expected}")


def check_part(of: str, whole: int, /, **parts: int) -> None:
    """Raises ValueError for numbers that are no integers, or outside of 1 .. a whole."""
    check_count(**{of: whole}, **parts)
    for name, part in parts.items():
        if not 1 <= part <= whole:
            raise ValueError(f"{name} is {part}; expected 1 .. {of} = {whole}")
