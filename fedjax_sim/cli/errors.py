"""Errors of the command line: one line for bad options, a traceback for everything later."""

import contextlib
import pathlib
import re
import traceback
from collections.abc import Iterator

from fedjax_sim.execution import distributed


class Failure(Exception):
    """A command that ends with a message; ``code`` is its exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def resolving() -> Iterator[None]:
    """Context in which options become objects; its errors are one line."""
    try:
        yield
    except ValueError as error:
        raise Failure(_option_named(str(error)), 2) from error
    except (FloatingPointError, ImportError) as error:  # no optimum; an extra is missing
        raise Failure(str(error), 1) from error


@contextlib.contextmanager
def running(output: pathlib.Path | None) -> Iterator[None]:
    """Context of the work itself; an error shows its traceback and says what was kept."""
    kept = "" if output is None else f"; everything before the error is kept in {output}"
    try:
        yield
    except FloatingPointError as error:  # a run diverged, which is no defect
        raise Failure(f"{error}{kept}", 1) from error
    except Exception as error:
        distributed.wait_if_lost(error)
        traceback.print_exc()
        raise Failure(f"{type(error).__name__}: {error}{kept}", 1) from error


def _option_named(message: str) -> str:
    """The message with ``--name`` for the field that it begins with."""
    from fedjax_sim.cli.config import SweepConfig

    field = re.match(r"(\w+) (?:is|has|lacks) ", message)
    if field and field[1] in SweepConfig.__dataclass_fields__:
        return f"--{field[1].replace('_', '-')}{message[field.end(1) :]}"
    return message
