"""Step sizes that theory prescribes, from measured constants."""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.diagnostics.constants import Constants
from fedjax_sim.theory.step_sizes import best_lr
from fedjax_sim.types import Scalar

Formula = Callable[..., Array]  # of keyword arguments named like the constants


def optimal_lr(
    rule: Formula, constants: Constants, *, limit: Scalar | None = None, **given: Any
) -> Array:
    r"""The client rate that a theorem prescribes, or at which a bound is smallest.

    ``rule`` is a function of :mod:`fedjax_sim.theory`: a prescribed rate such as
    :func:`~fedjax_sim.theory.fedavg.convex_lr`, which is called, or a bound with an argument
    ``lr`` such as :func:`~fedjax_sim.theory.fedavg.convex_bound`, which is minimised on the grid of
    :func:`~fedjax_sim.theory.step_sizes.best_lr`.  Its arguments are found by :func:`arguments`.

    Args:
        rule: what to call.
        constants: as measured.
        limit: of a bound's grid; default 1 / L, above which no theorem on FedAvg or FedAc allows
            rates.
        given: the other arguments (M, K, R; lambda as ``augmentation``), or replacements for
            constants.  A function is called as ``rule`` is, with the same arguments.

    Raises:
        ValueError: constants that are unknown, arguments that nothing takes, a bound that holds at
            no rate; as ``rule``.

    Example:
        >>> from fedjax_sim.theory import fedac_convex, fedavg
        >>> constants = Constants(L=1.0, sigma=1.0, zeta=0.0, B=1.0)
        >>> sizes = {"M": 4, "K": 4, "R": 100}
        >>> exact = optimal_lr(fedavg.convex_lr, constants, **sizes)
        >>> numeric = optimal_lr(fedavg.convex_bound, constants, **sizes)
        >>> round(float(exact), 3), round(float(numeric), 3)
        (0.085, 0.032)
        >>> rate = optimal_lr(fedac_convex.fedac_i_lr, constants, **sizes,
        ...     augmentation=fedac_convex.fedac_i_augmentation)
        >>> bool(0 < rate < 1)
        True
    """
    formulas = [rule, *filter(callable, given.values())]
    taken = {name for formula in formulas for name in inspect.signature(formula).parameters}
    if unknown := sorted(set(given) - taken):
        raise ValueError(f"{rule.__name__} has no arguments {unknown}; expected some of {taken}")
    if "lr" in given or "lr" not in inspect.signature(rule).parameters:
        return rule(**arguments(rule, constants, given))
    fixed = arguments(rule, constants, {**given, "lr": None})
    del fixed["lr"]
    largest = 1 / given.get("L", constants.L) if limit is None else limit
    with jax.debug_nans(False):  # NaN is what bounds return where they do not hold
        found = best_lr(lambda lr: rule(**fixed, lr=lr), largest)
    if not bool(jnp.isfinite(found.value)):
        raise ValueError(f"limit is {largest}; expected rates below it at which the bound holds")
    return found.lr


def arguments(function: Formula, constants: Constants, given: Mapping[str, Any]) -> dict[str, Any]:
    """A function's keyword arguments, from what is given and, by their names, the constants.

    * An argument that is a function is called with its own arguments, found likewise.
    * ``potential`` is ``Delta + mu / 2 B^2``, FedAc-I's at the start and more than FedAc-II's.
    * Beside a known ``Q``, ``sigma`` is the larger of sigma and sigma4: such theorems ask that one
      sigma bound both moments.
    * Arguments whose default is None may be unknown; a ``zeta`` that is unknown is not 0.

    Raises:
        ValueError: naming the constants that are missing.

    Example:
        >>> from fedjax_sim.theory import fedavg
        >>> arguments(fedavg.drift_bound, Constants(L=2.0, sigma=1.0), {"lr": 0.1, "K": 5})
        Traceback (most recent call last):
        ValueError: drift_bound needs zeta; expected it among the constants or the arguments
    """
    found: dict[str, Any] = {}
    missing: list[str] = []
    parameters = inspect.signature(function).parameters
    Q = given.get("Q", constants.Q) if "Q" in parameters else None
    for name, parameter in parameters.items():
        if name in given:
            value = given[name]
            if callable(value):
                formula = cast(Formula, value)
                value = formula(**arguments(formula, constants, given))
            found[name] = value
        elif name in Constants._fields or name == "potential":
            value = _constant(name, constants, Q)
            if not math.isnan(value):
                found[name] = value
            elif parameter.default is not None:
                missing.append(name)
        elif parameter.default is inspect.Parameter.empty:
            missing.append(name)
    if missing:
        which = "it" if len(missing) == 1 else "them"
        raise ValueError(
            f"{getattr(function, '__name__', function)} needs {', '.join(missing)}; expected "
            f"{which} among the constants or the arguments"
        )
    return found


def _constant(name: str, constants: Constants, Q: Any) -> float:
    if name == "potential":
        return constants.Delta + constants.mu / 2 * constants.B**2
    if name == "sigma" and Q is not None and not math.isnan(Q):
        return float(np.maximum(constants.sigma, constants.sigma4))  # NaN if either is
    return getattr(constants, name)
