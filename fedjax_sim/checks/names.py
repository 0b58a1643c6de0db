"""Messages about names that do not exist and packages that are not installed."""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: the most similar known one, if any."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def import_extra(module: str, extra: str | None) -> ModuleType:
    """Imports an optional package; the error names the extra, or the package, that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0] if extra is None else f"fedjax_sim[{extra}]"
        raise ImportError(
            f"{module} could not be imported ({error}); install it with: pip install '{package}'"
        ) from error
