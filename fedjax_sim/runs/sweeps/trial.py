"""Trials: everything that the configurations of a group share, from a factory and a setup."""

import dataclasses
import functools
import inspect
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import called, check_is_setup, did_you_mean
from fedjax_sim.engine import Execution, OnHost, Probes, check_run
from fedjax_sim.runs.seeds import Seed, with_axis
from fedjax_sim.runs.storage.files import digest
from fedjax_sim.runs.storage.identity import arrays_digest, timeline_arrays
from fedjax_sim.runs.storage.run_functions import RunTraces, identified, trace_run
from fedjax_sim.runs.sweeps.grid import Configuration, Group, groups
from fedjax_sim.types import FedAlgorithm, Setup, annotated_kinds

_FLOATING = (float, jax.Array, np.ndarray)


def static_names(
    factory: Callable, configurations: Sequence[Mapping[str, Any]], taken: Collection[str] = ()
) -> set[str]:
    """Returns the names of the hyper-parameters that are passed as Python values.

    These are the parameters of the setup, and those with a value that is no number (a text, a flag,
    None), unless the factory annotates the parameter as a number.  A number is static if the
    factory annotates the parameter with types without floating-point numbers, such as ``int``.  All
    others vary inside a program, as traced floating-point numbers.

    Example:
        >>> def factory(lr: float, f: int, rule="median", mu=0.0): ...
        >>> grid = [{"lr": 0.1, "f": 2, "rule": "krum", "mu": 1, "batch_size": 5}]
        >>> sorted(static_names(factory, grid, ["batch_size"]))
        ['batch_size', 'f', 'rule']
    """
    hints = annotated_kinds(factory)
    return {
        name
        for configuration in configurations
        for name, value in configuration.items()
        if name in taken or _is_static(hints.get(name), value)
    }


def _is_static(kinds: set[Any] | None, value: Any) -> bool:
    number = _is_number(value)
    if kinds is None or kinds & {Any, object}:
        return not number
    floating = any(kind in kinds for kind in _FLOATING)
    if number or not floating:
        return not floating
    # A text in the place of a number is refused as one, unless the factory takes texts, too.
    plain = {str: str, bool: bool, np.bool_: bool, type(None): type(None)}
    return plain.get(type(value), type(value)) in kinds or type(value) not in plain


def _is_number(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_, str)):
        return False
    return isinstance(value, numbers.Number) or (np.ndim(value) == 0 and hasattr(value, "dtype"))


ALGORITHM = "algorithm"  # name of the algorithm in configurations, if a sweep has several

Factory = Callable[..., FedAlgorithm]
MakeSetup = Callable[..., Setup]


def _made_by(factory: Factory, fixed: Configuration, **values: Any) -> FedAlgorithm:
    """Returns a factory's algorithm; its mistakes, also with traced numbers, have its name."""
    given = ", ".join([*fixed, *values]) or "no hyper-parameters"
    expected = "a function that returns an algorithm, also for traced numbers"
    return called("factory", given, expected, lambda: factory(**fixed, **values))


class Trial(NamedTuple):
    """Everything that the configurations of a group share."""

    factory: Factory  # called with the traced hyper-parameters, by name
    setup: Setup  # of all seeds: params [n, ...]
    execution: Execution | None  # None: chosen for the number of runs in a block
    probes: Probes

    def traces(self, names: Sequence[str]) -> RunTraces:
        """Returns the traces of the functions, with hyper-parameters as arguments by name."""
        number = np.zeros((), jax.dtypes.canonicalize_dtype(float))
        return trace_run(
            lambda values: self.factory(**values),
            self.setup,
            batched=True,
            execution=self.execution,
            probes=self.probes,
            numbers=dict.fromkeys(names, number),
        )


class RunDigests(NamedTuple):
    """Digests of everything that a run depends on besides its configuration and its seed's name."""

    data: str  # data, timeline, initial model, key, times of evaluation
    algorithm: str  # the factory with its static hyper-parameters
    functions: str  # code of the factory, the objective, the model, the evaluation, the probes
    settings: str  # what all seeds of a configuration have in common
    setup: str  # as data, without further values


class Trials:
    """Makes the trial of every combination of static hyper-parameters.

    Static hyper-parameters go to the setup's function if it takes them, the others to the factory;
    those that are parameters of both go to both.

    Args:
        factories: one factory, or factories by algorithm; then every configuration has a name
            ``algorithm``, which no factory receives.
        setup: setup of all configurations, or a function of static hyper-parameters.
        execution, probes: of all trials.
    """

    def __init__(
        self,
        factories: Factory | Mapping[str, Factory],
        setup: Setup | MakeSetup,
        execution: Execution | None,
        probes: Probes,
    ):
        self._several = isinstance(factories, Mapping)
        for factory in factories.values() if isinstance(factories, Mapping) else [factories]:
            if isinstance(factory, FedAlgorithm) or not callable(factory):
                raise ValueError(
                    f"factory is {factory!r:.60}; expected a function of the hyper-parameters that "
                    "returns an algorithm: fs.fedavg, not fs.fedavg(0.1)"
                )
        if not callable(setup):
            check_is_setup(setup)
        self._factories: Any = factories
        self._setup, self._execution, self._probes = setup, execution, probes
        taken = set() if isinstance(setup, Setup) else parameter_names(setup)
        self.per_seed = "seed" in taken
        self.taken = taken - {"seed"}  # parameters of the setup

    def groups(self, configurations: Sequence[Configuration]) -> list[Group]:
        """Returns the groups of configurations that share a program."""
        result, taken = [], self.taken | ({ALGORITHM} if self._several else set())
        names = [entry[ALGORITHM] if self._several else None for entry in configurations]
        for name in dict.fromkeys(names):
            members = [i for i, other in enumerate(names) if other == name]
            entries = [configurations[i] for i in members]
            factory = self._factories[name] if self._several else self._factories
            result += [
                group._replace(members=tuple(members[i] for i in group.members))
                for group in groups(entries, static_names(factory, entries, taken))
            ]
        return result

    def make(self, static: Configuration, seed: Seed | None = None) -> Trial:
        """Returns the trial of a combination; with ``per_seed``, the trial of one seed alone."""
        factory = functools.partial(_made_by, self._factory(static), self._of_factory(static))
        return Trial(factory, self._make_setup(static, seed), self._execution, self._probes)

    def check(
        self, static: Configuration, members: Sequence[Mapping[str, Any]], seeds: Sequence[Seed]
    ) -> list[FedAlgorithm]:
        """Returns the algorithms of a group's configurations; refuses a group that cannot run.

        The factory sees the values of all ``members`` here, since it cannot check traced numbers.
        """
        factory, fixed = self._factory(static), self._of_factory(static)
        check_names(factory, [*fixed, *members[0]])
        algorithms: list[FedAlgorithm] = []
        for seed in seeds if self.per_seed else [None]:
            setup = self._make_setup(static, seed)  # a factory may need what this computes
            algorithms = [_made_by(factory, fixed, **values) for values in members]
            count = 1 if self.per_seed else len(seeds)
            check_run(algorithms, setup, count, execution=self._execution)
            if isinstance(setup.task.placement, OnHost):
                raise ValueError(
                    "setup.task has its examples on the host (offload.on_host); expected a task "
                    "without a placement or placed by client: the runs of a sweep share the "
                    "examples on the device. Run the configurations with simulate"
                )
        return algorithms

    def _factory(self, static: Configuration) -> Factory:
        return self._factories[static[ALGORITHM]] if self._several else self._factories

    def _of_factory(self, static: Configuration) -> Configuration:
        own = parameter_names(self._factory(static))
        names = [name for name in static if name not in self.taken or name in own]
        return {name: static[name] for name in names if not (self._several and name == ALGORITHM)}

    def _make_setup(self, static: Configuration, seed: Seed | None) -> Setup:
        if isinstance(self._setup, Setup):
            return self._setup
        values = {name: value for name, value in static.items() if name in self.taken}
        check_names(self._setup, [*values, *(["seed"] if self.per_seed else [])])
        if not self.per_seed:
            return self._setup(**values)
        return with_axis(self._setup(**values, seed=seed))


def identities(
    trial: Trial,
    names: Sequence[str],
    keys: Array,
    extra: Mapping[str, Any] | None,
    *,
    per_seed: bool,
) -> list[RunDigests]:
    """Returns the identities of the runs of each seed.

    Args:
        trial, keys: those of the seeds.
        names: of the hyper-parameters that the program takes as arguments.
        extra: further values that results depend on.
        per_seed: each seed has a setup of its own, so objective and evaluation may close over the
            seed's data.
    """
    setup = trial.setup
    batched = setup.timeline.clients.ndim == 3
    words = np.asarray(jax.random.key_data(keys))
    data = arrays_digest((setup.task, setup.eval_fn))
    traces = trial.traces(names)
    algorithm = common = digest(identified(traces)["algorithm"])
    functions = digest(identified(traces._replace(execution=None)))
    if per_seed:  # the bound of local steps, which depends on the data, is in the trace
        bounded = dataclasses.replace(setup.timeline, max_steps=2)
        one = trial._replace(setup=dataclasses.replace(setup, timeline=bounded))
        common = digest(identified(one.traces(names))["algorithm"])

    shape = setup.timeline.clients.shape[-2:]
    # With simulated time, the number of updates until a horizon depends on the seed.
    in_rounds = np.array_equal(np.unique(setup.timeline.time), np.arange(1, shape[0] + 1))
    settings = digest(
        common,
        None if per_seed else functions,
        setup.eval_every,
        shape if in_rounds else None,
        dict(extra or {}),
    )

    def of_seed(seed: int) -> list[Any]:
        timeline = setup.timeline
        if batched:
            timeline = jax.tree.map(lambda x: np.asarray(x)[seed], timeline)
        model = jax.tree.map(lambda x: np.asarray(x)[seed], setup.params)
        arrays = [*map(np.asarray, jax.tree.leaves(model)), *timeline_arrays(timeline)]
        return [data, *arrays, words[seed], setup.eval_every]

    return [
        RunDigests(digest(*own, dict(extra or {})), algorithm, functions, settings, digest(*own))
        for own in map(of_seed, range(len(words)))
    ]


def parameter_names(function: Callable) -> set[str]:
    """Returns the names of parameters, and of keywords ``**names: Unpack[TypedDict]``."""
    return {*inspect.signature(function).parameters, *annotated_kinds(function)} - {"return"}


def check_names(function: Callable, names: Sequence[str]) -> None:
    """Refuses hyper-parameters that a function does not take, or lacks."""
    try:
        signature = inspect.signature(function)
        signature.bind_partial(**dict.fromkeys(names))  # a misspelt name, before the missing one
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        given = ", ".join(names) or "nothing"
        known = parameter_names(function)
        unknown = next((name for name in names if name not in known), None)
        hint = "" if unknown is None else did_you_mean(unknown, known - set(names))
        raise ValueError(
            f"grid gives {given} to {getattr(function, '__qualname__', function)}: {error}{hint}"
        ) from error
