"""Imports of the packages of the extra ``privacy``, which load on first use."""

import importlib
from types import ModuleType


def library(name: str) -> ModuleType:
    """Returns a module of dp-accounting or jax-privacy.

    Example:
        >>> library("dp_accounting").GaussianDpEvent(2.0).noise_multiplier
        2.0
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0].replace("_", "-")
        raise ImportError(
            f"{package} is not installed; expected the extra: pip install 'fedjax-sim[privacy]'"
        ) from error
