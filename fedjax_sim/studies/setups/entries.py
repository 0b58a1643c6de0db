"""An algorithm on the command line: hyper-parameters from the signature of its factory.

Hyper-parameters are those parameters of the function that can be written as text: numbers, names
and flags.  A parameter of another type is built from hyper-parameters by the row of
:data:`ADAPTERS` for its annotation, or keeps its default.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedjax_sim import prox
from fedjax_sim.algorithms.staleness import (
    Reweighting,
    StalenessWeight,
    expected_steps,
    polynomial,
    realised_steps,
)
from fedjax_sim.checks import check_choice, check_count
from fedjax_sim.local import (
    ScalarOrSchedule,
    add_decayed_weights,
    clip_by_global_norm,
    exponential_decay,
    transform_oracle,
    unchanged,
)
from fedjax_sim.types import FedAlgorithm, Model, Oracle, Params
from fedjax_sim.wrappers import fine_tuned

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
    check_choice(("realised", "expected"), reweighting=reweighting)
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

# Round t has the client rate lr * lr_decay^t, where the algorithm admits a schedule; gradients are
# clipped to the norm clip, then weight_decay times the model is added, then the algorithm's terms.
# Parameters of these names are the population and the model of the problem, not hyper-parameters.
NUM_CLIENTS = "num_clients"
MODEL = "model"
OF_PROBLEM = (NUM_CLIENTS, MODEL)
# Personal models take tuning_steps local steps of rate tuning_lr, else lr, before an evaluation,
# with the same clipping and decay.
TUNING: dict[str, type] = {"tuning_steps": int, "tuning_lr": float}
COMMON = ("lr_decay", "clip", "weight_decay", *TUNING)
LR = 0.2
_SCHEDULED = set(typing.get_args(ScalarOrSchedule))  # types of a rate that may be a schedule


@dataclasses.dataclass(frozen=True, eq=False)
class AlgorithmEntry:
    """An algorithm on the command line: its factory, and the defaults of its hyper-parameters."""

    name: str  # on tables, of the folder, and in --hyper NAME.KEY=VALUE
    factory: Factory
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # before the function's
    is_own: bool = False  # a function of a study module
    private_statistics: bool = False  # clients keep running statistics unless these are frozen

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """Parameters of the factory."""
        for eval_str in (True, False):
            try:
                return dict(inspect.signature(self.factory, eval_str=eval_str).parameters)
            except (NameError, AttributeError, SyntaxError):  # names for type checkers only
                continue
        return {}

    @property
    def tuned_defaults(self) -> dict[str, Any]:
        """Defaults of the command line: those that the function lacks, and tuned ones."""
        lr = self.parameters.get("lr")
        needs_lr = lr is not None and (not self.is_own or lr.default in (lr.empty, None))
        return ({"lr": LR} if needs_lr else {}) | dict(self.defaults)

    @property
    def hyper_defaults(self) -> dict[str, Any]:
        """Hyper-parameters of the algorithm with their defaults, None where there is none."""
        defaults = {}
        for key, parameter in self.parameters.items():
            if key in OF_PROBLEM:
                continue
            if (adapter := _adapter(parameter)) is not None:
                defaults |= adapter.hyper
            elif _kind(parameter) is not None:
                default = parameter.default
                defaults[key] = None if default is inspect.Parameter.empty else default
        return defaults | self.tuned_defaults

    @property
    def common(self) -> tuple[str, ...]:
        """The names in :data:`COMMON` that are hyper-parameters beside its own parameters."""
        lr = self.parameters.get("lr")
        kinds = set() if lr is None else {*typing.get_args(lr.annotation)}
        functions = [kind for kind in kinds if Callable in (kind, typing.get_origin(kind))]
        scheduled = kinds >= _SCHEDULED or bool(self.is_own and functions)
        without = {*self.parameters} | ({"lr_decay"} if not scheduled else set())
        if self.parameters.keys() & TUNING.keys():  # fine-tunes by definition
            without |= TUNING.keys()
        return tuple(key for key in COMMON if key not in without)

    @property
    def hyper(self) -> tuple[str, ...]:
        """Names of all hyper-parameters."""
        return (*self.hyper_defaults, *self.common)

    @property
    def static_hyper(self) -> dict[str, type]:
        """Hyper-parameters that cannot vary inside a program: names, flags and integers."""
        kinds = {key: _kind(p) for key, p in self.parameters.items() if _adapter(p) is None}
        kinds = {key: kind for key, kind in kinds.items() if key not in OF_PROBLEM}
        adapters = [adapter for p in self.parameters.values() if (adapter := _adapter(p))]
        kinds |= {key: type(value) for adapter in adapters for key, value in adapter.hyper.items()}
        kinds |= TUNING
        return {key: kind for key, kind in kinds.items() if kind in (str, bool, int)}

    @property
    def required(self) -> list[str]:
        """Parameters of the function that have no default."""
        return [
            key
            for key, parameter in self.parameters.items()
            if parameter.default is inspect.Parameter.empty
            and key not in OF_PROBLEM
            and _adapter(parameter) is None
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]

    @property
    def adapted_descriptions(self) -> dict[str, str]:
        """Descriptions of the hyper-parameters that are not parameters of the function."""
        adapters = map(_adapter, self.parameters.values())
        return {k: text for a in adapters if a is not None for k, text in a.description.items()}

    @property
    def reweights_visits(self) -> bool:
        """True for an algorithm that takes the law of its clients' steps per visit."""
        adapters = map(_adapter, self.parameters.values())
        return any(adapter is ADAPTERS[Reweighting] for adapter in adapters)

    def build(
        self,
        hyper: Hyper,
        steps: StepsPerVisit | None = None,
        num_clients: int = 1,
        model: Model | None = None,
    ) -> FedAlgorithm:
        """Returns the algorithm with hyper-parameters of its own and of :data:`COMMON`.

        The population and the model of the problem are given to functions with parameters
        ``num_clients`` and ``model``; without a model such an algorithm fails when it trains.
        """
        # AdamW's decoupled weight decay, for example, is its own hyper-parameter.
        common = {k: hyper[k] for k in COMMON if k in hyper and k not in self.parameters}
        own = {key: value for key, value in hyper.items() if key not in common}
        steps = steps or StepsPerVisit((1.0,), (1.0,))
        for key, parameter in self.parameters.items():
            if (adapter := _adapter(parameter)) is not None:
                values = {key: own.pop(key, default) for key, default in adapter.hyper.items()}
                own[key] = adapter.build(steps, **values)
        of_problem = {NUM_CLIENTS: num_clients, MODEL: model or _no_model}
        own |= {key: value for key, value in of_problem.items() if key in self.parameters}
        tuning = {key: common.pop(key) for key in TUNING if key in common}
        lr: Any = own.get("lr", self.hyper_defaults.get("lr"))
        if "lr_decay" in common:
            lr = own["lr"] = exponential_decay(lr, common.pop("lr_decay"))
        if not common:
            return _tuned(self._made(own), lr, **tuning)
        transform = functools.partial(_regularised, **common)
        if "transform" not in self.parameters:
            return transform_oracle(_tuned(self._made(own), lr, **tuning), transform)
        # Methods that perturb the model take the transform of the gradient at the perturbed one.
        algorithm = self._made(own | {"transform": transform})
        return _tuned(algorithm, lr, **tuning, transform=transform)

    def _made(self, arguments: Mapping[str, Any]) -> FedAlgorithm:
        algorithm = self.factory(**arguments)
        if not isinstance(algorithm, FedAlgorithm):
            raise ValueError(
                f"algorithms has {self.name!r}, which returned {type(algorithm).__name__}; "
                "expected a fedjax_sim.FedAlgorithm"
            )
        return algorithm


def _no_model(params: Params, x: Any) -> Any:
    raise ValueError(
        "the model of the study is None, since its setup is its own; expected an algorithm of the "
        "study that has its model, such as {'fedntd': lambda lr=0.1: fs.fedntd(model, lr)}"
    )


def _kind(parameter: inspect.Parameter) -> type | None:
    """The type of a parameter that can be written as text."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty and parameter.kind in (
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.KEYWORD_ONLY,
    ):
        default = parameter.default
        annotation = type(default) if isinstance(default, bool | str) else float
        if default is None:
            return None
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal or annotation is str:
        return str
    if annotation in (bool, int):
        return annotation
    return float if annotation is float or float in options else None


def _adapter(parameter: inspect.Parameter) -> Adapter | None:
    for kind, adapter in ADAPTERS.items():
        if parameter.annotation == kind or kind in typing.get_args(parameter.annotation):
            return adapter
    return None


def _tuned(
    algorithm: FedAlgorithm,
    lr: Any,
    tuning_steps: int | None = None,
    tuning_lr: Any = None,
    transform: Callable[[Oracle], Oracle] = unchanged,
) -> FedAlgorithm:
    """The algorithm with fine-tuned personal models, if there are steps."""
    if tuning_steps is None:
        return algorithm
    check_count(1, tuning_steps=tuning_steps)
    rate = lr if tuning_lr is None else tuning_lr
    if rate is None:
        raise ValueError(
            f"tuning_steps is {tuning_steps} for an algorithm without lr; expected --tuning-lr"
        )
    return fine_tuned(algorithm, rate, steps=tuning_steps, transform=transform)


def _regularised(oracle: Oracle, clip: Any = None, weight_decay: Any = None) -> Oracle:
    oracle = oracle if clip is None else clip_by_global_norm(oracle, clip)
    return oracle if weight_decay is None else add_decayed_weights(oracle, weight_decay)
