"""From the names and numbers of a configuration to algorithms.

A further algorithm on the command line is a row of :data:`ALGORITHMS`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim import algorithms, prox
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.local import ScalarOrSchedule, exponential_decay
from fedjax_sim.transforms import add_decayed_weights, clip_by_global_norm, transform_oracle
from fedjax_sim.types import FedAlgorithm, Oracle, Scalar

Hyper = Mapping[str, Any]


class Choice(NamedTuple):
    """An algorithm on the command line."""

    factory: Callable[..., FedAlgorithm]
    defaults: Hyper  # of those hyper-parameters that have no default in the factory, or another
    paper: str


def _l1_on_kernels(weight: Scalar) -> prox.Composite:
    return prox.composite(prox.L1(weight), where=prox.kernels)


def _sparse(factory: Callable[..., FedAlgorithm]) -> Callable[..., FedAlgorithm]:
    """A composite method with an l1 penalty on the model's kernels."""

    def build(lr: ScalarOrSchedule, l1: Scalar = 1e-4, server_lr: Scalar = 1.0) -> FedAlgorithm:
        return factory(lr, _l1_on_kernels(l1), server_lr)

    return build


# One client rate for all, so that curves compare methods; it and the rest were chosen on the
# quickstart from coarse grids (client rates 0.05 to 0.4) by the test accuracy it reports: the
# defaults are sensible, but the quickstart's table is no ranking of methods.
ALGORITHMS: dict[str, Choice] = {
    "fedavg": Choice(algorithms.fedavg, {"lr": 0.2}, "McMahan et al., 2017"),
    "fedprox": Choice(algorithms.fedprox, {"lr": 0.2, "mu": 0.1}, "Li et al., 2020"),
    "fedavgm": Choice(
        algorithms.fedavgm, {"lr": 0.2, "server_lr": 1.0, "momentum": 0.7}, "Hsu et al., 2019"
    ),
    "fedadam": Choice(algorithms.fedadam, {"lr": 0.2, "server_lr": 0.03}, "Reddi et al., 2021"),
    "fedyogi": Choice(algorithms.fedyogi, {"lr": 0.2, "server_lr": 0.03}, "Reddi et al., 2021"),
    "fedadagrad": Choice(
        algorithms.fedadagrad, {"lr": 0.2, "server_lr": 0.1}, "Reddi et al., 2021"
    ),
    "scaffold": Choice(
        algorithms.scaffold, {"lr": 0.2, "server_lr": 1.0}, "Karimireddy et al., 2020"
    ),
    "fedsgd": Choice(algorithms.fedsgd, {"lr": 0.5}, "McMahan et al., 2017"),
    "feddyn": Choice(algorithms.feddyn, {"lr": 0.2, "weight": 0.1}, "Acar et al., 2021"),
    "fedacg": Choice(algorithms.fedacg, {"lr": 0.2}, "Kim et al., 2024"),
    "fedsam": Choice(algorithms.fedsam, {"lr": 0.2}, "Qu et al., 2022"),
    "mofedsam": Choice(algorithms.mofedsam, {"lr": 0.2}, "Qu et al., 2022"),
    "fedasam": Choice(algorithms.fedasam, {"lr": 0.2}, "Caldarola et al., 2022"),
    "fedlesam": Choice(algorithms.fedlesam, {"lr": 0.2}, "Fan et al., 2024"),
    "fedgamma": Choice(algorithms.fedgamma, {"lr": 0.2}, "Dai et al., 2023"),
    "fedsmoo": Choice(algorithms.fedsmoo, {"lr": 0.2}, "Sun et al., 2023"),
    "fedswa": Choice(algorithms.fedswa, {"lr": 0.2}, "Liu et al., 2025"),
    "fedmo": Choice(algorithms.fedmo, {"lr": 0.2}, "Liu et al., 2025"),
    "fedmoswa": Choice(algorithms.fedmoswa, {"lr": 0.2}, "Liu et al., 2025"),
    "fedac": Choice(
        algorithms.fedac, {"lr": 0.05, "mu": 0.1, "num_steps": 20.0}, "Yuan and Ma, 2020"
    ),
    "fedmid": Choice(_sparse(algorithms.fedmid), {"lr": 0.2}, "Yuan et al., 2021"),
    "fedmid_osp": Choice(_sparse(algorithms.fedmid_osp), {"lr": 0.2}, "Yuan et al., 2021"),
    "feddualavg": Choice(_sparse(algorithms.feddualavg), {"lr": 0.2}, "Yuan et al., 2021"),
    "feddualavg_osp": Choice(_sparse(algorithms.feddualavg_osp), {"lr": 0.2}, "Yuan et al., 2021"),
    "fedavg_subgradient": Choice(
        _sparse(algorithms.fedavg_subgradient), {"lr": 0.2}, "Yuan et al., 2021"
    ),
    "averaged_feddualavg": Choice(
        lambda lr, l1=1e-4: algorithms.averaged_feddualavg(lr, _l1_on_kernels(l1)),
        {"lr": 0.2},
        "Yuan, 2023",
    ),
    "averaged_fedavg": Choice(algorithms.averaged_fedavg, {"lr": 0.2}, "Yuan, 2023"),
    "mb_sgd": Choice(algorithms.mb_sgd, {"lr": 0.5}, "Woodworth et al., 2020"),
    "mb_ac_sgd": Choice(algorithms.mb_ac_sgd, {"lr": 0.5, "mu": 0.1}, "Yuan and Ma, 2020"),
}

# Round t has the client rate lr * lr_decay^t, where the algorithm admits a schedule; gradients are
# clipped to the norm clip, then weight_decay times the model is added, then the algorithm's terms.
COMMON = ("lr_decay", "clip", "weight_decay")


def hyper_parameters(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of each algorithm: defaults, then lr and server_lr, then hyper.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, or a value out of range.

    Example:
        >>> config = RunConfig(algorithms=("fedprox",), lr=0.2, hyper=("fedprox.mu=1",))
        >>> hyper_parameters(config)
        {'fedprox': {'lr': 0.2, 'mu': 1.0}}
    """
    for name in config.algorithms:
        if name not in ALGORITHMS:
            raise ValueError(f"algorithms has {name!r}; expected some of {', '.join(ALGORITHMS)}")
    resolved = {name: dict(ALGORITHMS[name].defaults) for name in config.algorithms}
    for key in COMMON:
        if (value := getattr(config, key)) is not None:
            for name in resolved:
                if key not in common_hyper(name):
                    raise ValueError(f"{key} is {value}, but {name} does not have it")
                resolved[name][key] = value
    for key in ("lr", "server_lr"):
        value = getattr(config, key)
        takers = [name for name in resolved if key in resolved[name]]
        if value is not None and not takers:
            raise ValueError(f"{key} is {value}, but none of {', '.join(resolved)} has one")
        for name in takers:
            resolved[name][key] = resolved[name][key] if value is None else value
    for setting in config.hyper:
        name, key, text = _parse(setting)
        if name not in resolved:
            raise ValueError(f"hyper has {setting!r}; expected one of {', '.join(resolved)}")
        known = hyper_defaults(name)
        every = (*known, *common_hyper(name))
        if key not in every:
            raise ValueError(f"hyper has {setting!r}; {name} has {', '.join(every)}")
        named = isinstance(known.get(key), str)
        resolved[name][key] = text if named else number(setting, key, text)
    for name, hyper in resolved.items():
        try:
            algorithm(name, hyper)
        except ValueError as error:  # what only the factory can tell
            raise ValueError(f"hyper has {hyper} for {name}: {error}") from error
    return resolved


def hyper_defaults(name: str) -> dict[str, Any]:
    """The own hyper-parameters of an algorithm that can be written on a command line.

    Example:
        >>> hyper_defaults("fedprox")
        {'lr': 0.2, 'mu': 0.1}
    """
    not_writable = ("server", "transform", "anchored")
    choice = ALGORITHMS[name]
    parameters = inspect.signature(choice.factory).parameters
    defaults = {key: p.default for key, p in parameters.items() if key not in not_writable}
    return defaults | dict(choice.defaults)


def common_hyper(name: str) -> tuple[str, ...]:
    """Those of :data:`COMMON` that an algorithm has.

    Example:
        >>> common_hyper("fedavg"), common_hyper("fedac")
        (('lr_decay', 'clip', 'weight_decay'), ('clip', 'weight_decay'))
    """
    lr = inspect.signature(ALGORITHMS[name].factory).parameters["lr"]
    return tuple(key for key in COMMON if key != "lr_decay" or lr.annotation == ScalarOrSchedule)


def algorithm(name: str, hyper: Hyper) -> FedAlgorithm:
    """The algorithm with these hyper-parameters, its own and :data:`COMMON` ones.

    Example:
        >>> hyper = {"lr": 0.1, "weight_decay": 1e-3}
        >>> algorithm("fedavg", hyper).init({"w": np.zeros(2)}).params["w"].tolist()
        [0.0, 0.0]
    """
    own = {key: value for key, value in hyper.items() if key not in COMMON}
    common = {key: hyper[key] for key in COMMON if key in hyper}
    factory = ALGORITHMS[name].factory
    if "lr_decay" in common:
        own["lr"] = exponential_decay(own["lr"], common.pop("lr_decay"))
    if not common:
        return factory(**own)
    transform = functools.partial(_regular, **common)
    # Methods that perturb the model take the transform of the gradient at the perturbed one.
    if "transform" in inspect.signature(factory).parameters:
        return factory(**own, transform=transform)
    return transform_oracle(factory(**own), transform)


def _regular(oracle: Oracle, clip: Any = None, weight_decay: Any = None) -> Oracle:
    oracle = oracle if clip is None else clip_by_global_norm(oracle, clip)
    return oracle if weight_decay is None else add_decayed_weights(oracle, weight_decay)


def number(setting: str, key: str, text: str) -> float:
    """The value of a hyper-parameter: rates are positive, other numbers not negative.

    Raises:
        ValueError: it is not.

    Example:
        >>> number("fedprox.mu=0", "mu", "0")
        0.0
    """
    positive = key.endswith("lr")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
        expected = "a positive number" if positive else "a number of at least 0"
        raise ValueError(f"hyper has {setting!r}; expected {expected}")
    return value


def _parse(setting: str) -> tuple[str, str, str]:
    target, equals, text = setting.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and name and key and text):
        raise ValueError(f"hyper has {setting!r}; expected ALGORITHM.NAME=VALUE")
    return name, key, text
