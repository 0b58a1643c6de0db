"""Calls of a study's functions, whose errors are one line that names the place."""

import contextlib
import os
import pathlib
import sysconfig
import traceback
from collections.abc import Iterator


@contextlib.contextmanager
def own_code(part: str) -> Iterator[None]:
    """Context of calls of a study's ``part``: an error in them is one line that names the place."""
    try:
        yield
    except Exception as error:
        frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
        text = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, SyntaxError):
            frames.append((error.filename or "", error.lineno))
            text = error.msg
        own = [(file, line) for file, line in frames if _is_own(file)]
        if not own:
            raise
        file, line = own[-1]
        place = f"{os.path.basename(file)}, line {line}"
        raise ValueError(f"{part} raised {type(error).__name__}: {text} ({place})") from error


_PACKAGE = str(pathlib.Path(__file__).parents[2])


def _is_own(file: str) -> bool:
    """Returns True for a file of neither this package, an installed one nor Python itself."""
    installed = (_PACKAGE, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    return os.path.isfile(file) and not file.startswith(installed)
