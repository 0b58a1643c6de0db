"""Algorithms on the command line: their hyper-parameters and defaults.

Nothing is registered.  Every function of ``fedjax_sim.algorithms.__all__`` that returns a
:class:`~fedjax_sim.types.FedAlgorithm` is an algorithm.  Its hyper-parameters are those parameters
of the function that can be written as text: numbers, names and flags.  A parameter of another type
is built from hyper-parameters by the row of :data:`ADAPTERS` for its annotation, or keeps its
default.  :mod:`fedjax_sim.cli.settings` reads their values, :mod:`fedjax_sim.cli.docstrings` has
descriptions and papers.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedjax_sim import algorithms, prox
from fedjax_sim.algorithms.staleness import (
    Reweighting,
    StalenessWeight,
    expected_steps,
    polynomial,
    realised_steps,
)
from fedjax_sim.local import ScalarOrSchedule, exponential_decay
from fedjax_sim.transforms import add_decayed_weights, clip_by_global_norm, transform_oracle
from fedjax_sim.types import FedAlgorithm, Oracle

Hyper = Mapping[str, Any]
Factory = Callable[..., FedAlgorithm]


class StepsPerVisit(NamedTuple):
    """Law of the number of local steps of one visit, per client."""

    p_active: tuple[float, ...]  # [M] probability of at least one step
    mean: tuple[float, ...]  # [M] expected number of steps


class Adapter(NamedTuple):
    """Hyper-parameters that stand for a parameter which cannot be written as text."""

    hyper: dict[str, Any]  # name -> default
    description: dict[str, str]  # name -> text for fedjax-sim list
    build: Callable[..., Any]  # (StepsPerVisit, **hyper) -> the parameter


def _reweighting(steps: StepsPerVisit, reweighting: str) -> Reweighting:
    if reweighting not in ("realised", "expected"):
        raise ValueError(f"reweighting is {reweighting!r}; expected 'realised' or 'expected'")
    if reweighting == "realised":
        return realised_steps(jnp.array(steps.p_active))
    return expected_steps(jnp.array(steps.mean))


# Annotation of a parameter -> what stands for it on the command line.
ADAPTERS: dict[Any, Adapter] = {
    prox.Composite: Adapter(
        {"l1": 1e-4},
        {"l1": "weight of the l1 penalty on kernels."},
        lambda _, l1: prox.composite(prox.L1(l1), where=prox.kernels),
    ),
    StalenessWeight: Adapter(
        {"staleness_power": 0.0},
        {"staleness_power": "power c of the weight (1 + staleness)^-c of an upload."},
        lambda _, staleness_power: polynomial(staleness_power),
    ),
    Reweighting: Adapter(
        {"reweighting": "realised"},
        {"reweighting": "divisor of a client's progress: its realised or its expected steps."},
        _reweighting,
    ),
}

# Defaults of parameters that have none, or another one, in the function.  One client rate for all
# where possible, so that curves compare methods.  The values were chosen on the quickstart from
# coarse grids by the test accuracy that a run reports: they are sensible, but the table of a preset
# is no ranking of methods.  Those of the asynchronous algorithms were only checked to train on the
# preset asynchronous: favano counts the steps of one visit as about one, so its rate is larger;
# async_sgd applies single stale gradients, so its rate is smaller.
LR = 0.2
DEFAULTS: dict[str, dict[str, Any]] = {
    "agd": {"smoothness": 2.0, "mu": 0.1},
    "async_sgd": {"lr": 0.02},
    "favano": {"lr": 1.0},
    "fedac": {"lr": 0.05, "mu": 0.1},
    "fedadagrad": {"server_lr": 0.1},
    "fedadam": {"server_lr": 0.03},
    "fedasync": {"staleness_power": 0.5},
    "fedavgm": {"server_lr": 1.0, "momentum": 0.7},
    "fedbuff": {"server_lr": 1.0, "staleness_power": 0.5},
    "feddyn": {"mu": 0.1},
    "fedprox": {"mu": 0.1},
    "fedsgd": {"lr": 0.5},
    "fedyogi": {"server_lr": 0.03},
    "mb_ac_sgd": {"lr": 0.5, "mu": 0.1},
    "mb_sgd": {"lr": 0.5},
    "scaffold": {"server_lr": 1.0},
}

# Round t has the client rate lr * lr_decay^t, where the algorithm admits a schedule; gradients are
# clipped to the norm clip, then weight_decay times the model is added, then the algorithm's terms.
COMMON = ("lr_decay", "clip", "weight_decay")
# Options that set a hyper-parameter of several algorithms.
SHARED = (*COMMON, "lr", "server_lr")


@functools.cache
def _parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(ALGORITHMS[name], eval_str=True).parameters)


def _factories() -> dict[str, Factory]:
    functions = {name: getattr(algorithms, name) for name in algorithms.__all__}
    factories = {}
    for name, function in functions.items():
        if not inspect.isfunction(function):
            continue
        signature = inspect.signature(function, eval_str=True)
        takes = [parameter.annotation for parameter in signature.parameters.values()]
        if signature.return_annotation is FedAlgorithm and FedAlgorithm not in takes:
            factories[name] = function
    return factories


ALGORITHMS: dict[str, Factory] = dict(sorted(_factories().items()))


def hyper_defaults(name: str) -> dict[str, Any]:
    """Returns the hyper-parameters of an algorithm with their defaults, None where there is none.

    Example:
        >>> hyper_defaults("fedprox")
        {'lr': 0.2, 'mu': 0.1}
    """
    defaults = {}
    for key, parameter in _parameters(name).items():
        if (adapter := _adapter(parameter)) is not None:
            defaults |= adapter.hyper
        elif _kind(parameter) is not None:
            default = parameter.default
            defaults[key] = None if default is inspect.Parameter.empty else default
    return defaults | tuned_defaults(name)


def common_hyper(name: str) -> tuple[str, ...]:
    """Returns the names in :data:`COMMON` that an algorithm has.

    Example:
        >>> common_hyper("fedavg"), common_hyper("fedac")
        (('lr_decay', 'clip', 'weight_decay'), ('clip', 'weight_decay'))
    """
    lr = _parameters(name).get("lr")
    scheduled = lr is not None and lr.annotation == ScalarOrSchedule
    return tuple(key for key in COMMON if key != "lr_decay" or scheduled)


@functools.cache
def static_hyper() -> dict[str, type]:
    """Returns the hyper-parameters that are names or flags, which cannot vary inside a program.

    Returns:
        ``str`` or ``bool`` by name.

    Example:
        >>> static_hyper()["option"], "lr" in static_hyper()
        (<class 'str'>, False)
    """
    defaults = (hyper_defaults(name).items() for name in ALGORITHMS)
    return {k: type(v) for items in defaults for k, v in items if isinstance(v, str | bool)}


def adapted_descriptions(name: str) -> dict[str, str]:
    """Returns the descriptions of the hyper-parameters that are not parameters of the function.

    Example:
        >>> adapted_descriptions("fedmid")
        {'l1': 'weight of the l1 penalty on kernels.'}
    """
    adapters = map(_adapter, _parameters(name).values())
    return {k: text for a in adapters if a is not None for k, text in a.description.items()}


def reweights_visits(name: str) -> bool:
    """Returns True for an algorithm that must be given the law of its clients' steps per visit.

    Example:
        >>> reweights_visits("favano"), reweights_visits("quafl")
        (True, False)
    """
    adapters = map(_adapter, _parameters(name).values())
    return any(adapter is ADAPTERS[Reweighting] for adapter in adapters)


def algorithm(name: str, hyper: Hyper, steps: StepsPerVisit | None = None) -> FedAlgorithm:
    """Returns the algorithm with these hyper-parameters, its own and those in :data:`COMMON`.

    Args:
        name: name of the algorithm.
        hyper: hyper-parameters.
        steps: law of the steps per visit, for algorithms that :func:`reweights_visits` names.

    Example:
        >>> hyper = {"lr": 0.1, "weight_decay": 1e-3}
        >>> algorithm("fedavg", hyper).init({"w": jnp.zeros(2)}).params["w"].tolist()
        [0.0, 0.0]
    """
    own = {key: value for key, value in hyper.items() if key not in COMMON}
    common = {key: hyper[key] for key in COMMON if key in hyper}
    steps = steps or StepsPerVisit((1.0,), (1.0,))
    for key, parameter in _parameters(name).items():
        if (adapter := _adapter(parameter)) is not None:
            values = {key: own.pop(key, default) for key, default in adapter.hyper.items()}
            own[key] = adapter.build(steps, **values)
    if "lr_decay" in common:
        own["lr"] = exponential_decay(own["lr"], common.pop("lr_decay"))
    factory = ALGORITHMS[name]
    if not common:
        return factory(**own)
    transform = functools.partial(_regularised, **common)
    # Methods that perturb the model take the transform of the gradient at the perturbed one.
    if "transform" in _parameters(name):
        return factory(**own, transform=transform)
    return transform_oracle(factory(**own), transform)


def tuned_defaults(name: str) -> dict[str, Any]:
    """Returns the defaults of the command line: those that the function lacks, and tuned ones.

    Example:
        >>> tuned_defaults("fedprox")
        {'lr': 0.2, 'mu': 0.1}
    """
    shared = {"lr": LR} if "lr" in _parameters(name) else {}
    return shared | DEFAULTS.get(name, {})


def required_hyper(name: str) -> list[str]:
    """Returns the parameters of the function that have no default.

    Example:
        >>> required_hyper("fedprox")
        ['lr', 'mu']
    """
    return [
        key
        for key, parameter in _parameters(name).items()
        if parameter.default is inspect.Parameter.empty and _adapter(parameter) is None
    ]


def _kind(parameter: inspect.Parameter) -> type | None:
    """The type of a parameter that can be written as text."""
    annotation = parameter.annotation
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal or annotation is str:
        return str
    if annotation is bool:
        return bool
    return float if annotation in (float, int) or float in options else None


def _adapter(parameter: inspect.Parameter) -> Adapter | None:
    for kind, adapter in ADAPTERS.items():
        if parameter.annotation == kind or kind in typing.get_args(parameter.annotation):
            return adapter
    return None


def _regularised(oracle: Oracle, clip: Any = None, weight_decay: Any = None) -> Oracle:
    oracle = oracle if clip is None else clip_by_global_norm(oracle, clip)
    return oracle if weight_decay is None else add_decayed_weights(oracle, weight_decay)
