"""Bounds of :mod:`fedjax_sim.theory` as functions of the symbols that their papers use."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_sim.theory import ProblemConstants
from fedjax_sim.theory.favano.progress import ProgressConstants

THESIS = {"M": "clients", "K": "local_steps", "R": "rounds"}
FEDDUALAVG = THESIS | {"B": "B_h"}
BIAS = {"k": "steps", "K": "horizon"}
LOJASIEWICZ = THESIS | {
    "mu": "lojasiewicz_mu", "alpha": "lojasiewicz_alpha", "zeta": "zeta_mean",
}  # fmt: skip
FEDSWA = {
    "m": "clients", "s": "cohort_size", "n": "examples", "K": "local_steps", "T": "rounds",
    "beta": "L", "lipschitz": "G", "F": "Delta", "D": "distance",
}  # fmt: skip
FAVANO = {
    "n": "clients", "s": "cohort_size", "K": "local_steps", "T": "rounds", "F": "Delta",
    "G": "dissimilarity", "B": "dissimilarity_factor",
    "tau_max": "max_staleness", "tau_avg": "mean_staleness",
}  # fmt: skip


def by_symbols(
    function: Callable[..., Any], symbols: Mapping[str, str], **defaults: Any
) -> Callable[..., Any]:
    """The function with the paper's symbols as keyword arguments.

    Symbols of constants are collected in :class:`ProblemConstants`, FAVANO's a and b in its
    ``progress``; sigma also serves as sigma4.  Constants that the function does not need may be
    given.
    """

    def call(*args: Any, **values: Any) -> Any:
        named = defaults | {symbols.get(name, name): value for name, value in values.items()}
        constants = {name: named.pop(name) for name in ProblemConstants._fields if name in named}
        if "sigma" in constants:
            constants.setdefault("sigma4", constants["sigma"])
        if "b" in named:
            named["progress"] = ProgressConstants(named.pop("a", 1.0), named.pop("b"))
        if "constants" not in inspect.signature(function).parameters:
            return function(*args, **named)
        return function(ProblemConstants(**constants), *args, **named)

    return call
