"""Imports of optional packages, which load on first use."""

import importlib
from types import ModuleType


def library(name: str, extra: str) -> ModuleType:
    """Returns a module of an optional package.

    Args:
        name: of the module.
        extra: of this package, which installs it.

    Raises:
        ImportError: the package is not installed.

    Example:
        >>> library("dp_accounting", "privacy").GaussianDpEvent(2.0).noise_multiplier
        2.0
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"{package} is not installed; expected the extra: pip install 'fedjax-sim[{extra}]'"
        ) from error
