"""Errors of the command line: one line for everything but defects, which show their traceback."""

import contextlib
import functools
import pathlib
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_sim.engine import distributed
from fedjax_sim.runs import FolderError, FolderInUseError, RecoveryWarning


class Failure(Exception):
    """A command that ends with a message; ``code`` is its exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


@contextlib.contextmanager
def resolving(options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Context in which options become objects; its errors are one line."""
    try:
        yield
    except ValueError as error:
        raise Failure(_option_named(str(error), options), 2) from error
    except (FloatingPointError, ImportError, FolderInUseError) as error:
        # There is no optimum, an extra is missing, another process works in the output folder.
        raise Failure(_option_named(str(error), options), 1) from error
    except OSError as error:
        raise Failure(_of_system(error), 1) from error


@contextlib.contextmanager
def running(output: pathlib.Path | None) -> Iterator[None]:
    """Context of the work itself; an error shows its traceback and says what was kept."""
    kept = "" if output is None else f"; everything before the error is kept in {output}"
    try:
        yield
    except FloatingPointError as error:  # a run diverged, which is no defect
        raise Failure(f"{error}{kept}", 1) from error
    except (FolderError, FolderInUseError) as error:
        raise Failure(str(error), 1) from error
    except OSError as error:
        resume = "" if output is None else "; the same command continues from its last checkpoint"
        raise Failure(f"{_of_system(error)}{kept}{resume}", 1) from error
    except Exception as error:
        distributed.wait_if_lost(error)
        traceback.print_exc()
        raise Failure(f"{type(error).__name__}: {error}{kept}", 1) from error


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Context in which a warning about a damaged file is one line."""
    show = warnings.showwarning

    def in_one_line(message: Any, category: type[Warning], *where: Any, **options: Any) -> None:
        if issubclass(category, RecoveryWarning):
            print(f"fedjax-sim: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **options)

    warnings.showwarning = in_one_line
    try:
        yield
    finally:
        warnings.showwarning = show


def _of_system(error: OSError) -> str:
    """Returns the path and the cause of an error of the operating system."""
    cause = error.strerror or str(error) or type(error).__name__
    return cause if error.filename is None else f"{error.filename}: {cause}"


def _option_named(message: str, options: Mapping[str, str] | None) -> str:
    """The message with ``--name`` for the field that it begins with."""
    if options is None:
        options = _every_option()
    field = re.match(r"([\w.]+) (?:is|has|lacks) ", message)
    if field and field[1] in options:
        return f"--{options[field[1]].replace('_', '-')}{message[field.end(1) :]}"
    return message


@functools.cache
def _every_option() -> dict[str, str]:
    """Returns the names of the flags of runs, sweeps, tunings, clients and advice."""
    from fedjax_sim.cli.advise import AdviseOptions
    from fedjax_sim.cli.draw_clients import ClientsOptions
    from fedjax_sim.cli.grid import SweepOptions
    from fedjax_sim.cli.run_options import RunOptions
    from fedjax_sim.cli.space import TuneOptions
    from fedjax_sim.studies.setups import HIDDEN, names_of

    kinds = (RunOptions, SweepOptions, TuneOptions, ClientsOptions, AdviseOptions)
    fields = {name: field for kind in kinds for name, field in names_of(kind).items()}
    typed = {name: field for name, field in fields.items() if HIDDEN not in field.marks}
    return {name: name for name, field in typed.items() if not field.alternatives}
