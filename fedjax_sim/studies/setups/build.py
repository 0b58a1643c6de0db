"""From options to objects: :func:`resolve` turns a configuration into a :class:`ResolvedRun`.

Names become functions by the tables of :mod:`fedjax_sim.studies.setups.names` and
:mod:`fedjax_sim.studies.setups.registry`; the library itself has no registries.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax

from fedjax_sim import models
from fedjax_sim.checks import shapes_of_one
from fedjax_sim.engine import Execution, check_run, strategies
from fedjax_sim.models import Convolution
from fedjax_sim.studies.setups import adapters, attacks, config_checks, own_objects, private_runs
from fedjax_sim.studies.setups.aggregators import check_uploads
from fedjax_sim.studies.setups.clocks import SCHEDULES
from fedjax_sim.studies.setups.code_digest import code_digests
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.config_file import to_json
from fedjax_sim.studies.setups.entries import AGGREGATOR, AlgorithmEntry
from fedjax_sim.studies.setups.problem import Problem, prepare
from fedjax_sim.studies.setups.registry import SHARED, algorithms_of
from fedjax_sim.studies.setups.settings import resolve_hyper, untuned_rates
from fedjax_sim.types import FedAlgorithm, Setup
from fedjax_sim.wrappers import Guarantee

Kind = TypeVar("Kind", bound=RunConfig)


class ResolvedRun(NamedTuple):
    """A comparison whose options are resolved."""

    options: dict[str, Any]  # JSON values of the options, as config.json records them
    output: pathlib.Path
    entries: dict[str, AlgorithmEntry]  # by algorithm
    hyper: dict[str, dict[str, Any]]  # by algorithm
    code: dict[str, str]  # digests of the user's functions, by MODULE:FUNCTION
    problem: Problem  # with a partition per seed: of the first seed, with the keys of all
    setups: dict[str, Setup]  # by algorithm
    setup_of_seed: Callable[[str, int, Convolution], Setup] | None  # with a partition per seed
    lowered: Callable[[Convolution], Problem]  # the problem with its convolutions computed so
    execution: Execution | None  # None: a stored choice, else by the rules of strategies.auto
    arithmetic: Callable[[], contextlib.AbstractContextManager[None]]  # around all computations
    accounts: private_runs.Accounts
    guarantees: dict[str, Guarantee]  # of the private algorithms

    @property
    def seeds(self) -> list[str]:
        """Names of the replicas."""
        first = self.options["seed"]
        return [str(first + i) for i in range(self.options["seeds"])]

    def algorithm(self, name: str) -> FedAlgorithm:
        """Returns one of the algorithms, for the clients of the problem."""
        return self.problem.algorithm(self.entries[name], self.hyper[name])


def resolve(config: RunConfig) -> ResolvedRun:
    """Returns the comparison that the options describe; loads the data.

    Raises:
        ValueError: a value out of range, an unknown name, a model or partition that does not suit
            the data set, a setup that does not suit an algorithm.

    Example:
        >>> resolve(RunConfig(algorithms=("fedavg",), seeds=2)).hyper
        {'fedavg': {'lr': 0.2}}
    """
    check(config)
    entries = algorithms_of(config.algorithms)
    hyper = hyper_parameters(config)
    if jax.process_count() > 1 and config.num_strata is None:
        raise ValueError(
            f"num_strata is None; expected a multiple of the {jax.device_count()} devices of the "
            f"{jax.process_count()} processes"
        )
    code = code_digests(own_objects.references(config))
    dataset = own_objects.load_dataset(config)

    shown = config  # with a partition per seed: that of the first seed, and the keys of all
    if config.partition_per_seed:
        first = of_seed(config, config.seed)
        shown = dataclasses.replace(config, partition_seed=first.partition_seed)

    def lowered(conv: Convolution) -> Problem:
        with arithmetic(config):
            return prepare(shown, dataset, conv, attack_seed=config.partition_seed)

    def setup_of_seed(algorithm: str, seed: int, conv: Convolution) -> Setup:
        with arithmetic(config):
            # What an algorithm is built from (attackers, accounting) is that of all seeds.
            own = prepare(of_seed(config, seed), dataset, conv, attack_seed=config.partition_seed)
            return one_seed(own.setup_of(algorithm))

    problem = lowered(models.auto)
    setups = {name: problem.setup_of(name) for name in hyper}
    accounts = private_runs.accounts_of(config, problem.setup)
    if config.privacy_epsilon is not None:
        hyper = accounts.with_noise(hyper, config.privacy_epsilon)
    for name, setup in setups.items():
        with arithmetic(config):
            algorithm = problem.algorithm(entries[name], hyper[name])
            check_uploads(hyper[name].get(AGGREGATOR), setup.timeline)
            check_run({name: algorithm}, setup, len(problem.keys))
            try:
                # What only the model's leaves can show, such as none that are private.
                jax.eval_shape(algorithm.init, shapes_of_one(setup.params, batched=True))
            except ValueError as error:  # of several algorithms, which one
                raise ValueError(f"algorithms has {name!r}: {error}") from error
            private_runs.check_parts(algorithm, hyper[name], setup)
    guarantees = accounts.guarantees(hyper)
    return ResolvedRun(
        to_json(config),
        config.output,
        entries,
        hyper,
        code,
        problem,
        setups,
        setup_of_seed if config.partition_per_seed else None,
        lowered,
        execution(config),
        functools.partial(arithmetic, config),
        accounts,
        guarantees,
    )


def check(config: RunConfig) -> None:
    """Refuses values and names that no data set could make valid.

    Raises:
        ValueError: naming the field, its value and what was expected.
    """
    config_checks.check(config)
    attacks.check(config)
    if config.adapters is not None:
        adapters.parse(config.adapters)
    private_runs.check(config)
    for _ in own_objects.references(config):  # loads every function that the options name
        pass
    for name in config.algorithms:
        if config.clock == "none" and name in SCHEDULES:
            raise ValueError(
                f"clock is 'none'; expected a law of step durations for {name}, as in the preset "
                "asynchronous"
            )


def of_seed(config: Kind, seed: int) -> Kind:
    """Returns the options of one seed alone, whose partition has a seed of its own.

    Example:
        >>> of_seed(RunConfig(partition_per_seed=True, seeds=3), 2).partition_seed
        2
    """
    partition_seed = config.partition_seed + seed
    return dataclasses.replace(
        config, seed=seed, seeds=1, partition_seed=partition_seed, partition_per_seed=False
    )


def one_seed(setup: Setup) -> Setup:
    """Returns a setup of one seed without the axis of seeds."""
    timeline, params = jax.tree.map(lambda x: x[0], (setup.timeline, setup.params))
    return dataclasses.replace(setup, timeline=timeline, params=params)


def hyper_parameters(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm, see :func:`resolve_hyper`.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, or a value out of range.

    Example:
        >>> config = RunConfig(algorithms=("fedprox",), lr=0.2, hyper=("fedprox.mu=1",))
        >>> hyper_parameters(config)
        {'fedprox': {'lr': 0.2, 'mu': 1.0}}
    """
    shared = {name: getattr(config, name) for name in SHARED}
    entries = algorithms_of(config.algorithms)
    hyper = resolve_hyper(entries, config.hyper, shared, config.rates)
    swept = any("tuning_steps=" in text for text in getattr(config, "grid", ()))
    for name, entry in entries.items():
        unused = "tuning_lr" not in entry.parameters and "tuning_steps" not in hyper[name]
        if "tuning_lr" in hyper[name] and unused and not swept:
            value = hyper[name]["tuning_lr"]
            raise ValueError(f"tuning_lr is {value} for {name}; expected --tuning-steps with it")
    return hyper


def untuned(config: RunConfig) -> str | None:
    """Returns a note on algorithms without a rate tuned for the preset; None: all have one.

    Example:
        >>> from fedjax_sim.studies.setups.names import PRESETS
        >>> config = dataclasses.replace(PRESETS["femnist"], algorithms=("fedavg", "ditto"))
        >>> untuned(config)
        'not tuned for these settings, default rate: ditto.lr=0.2'
    """
    shared = {name: getattr(config, name) for name in SHARED}
    entries, hyper = algorithms_of(config.algorithms), hyper_parameters(config)
    rates = untuned_rates(entries, hyper, config.hyper, shared, config.rates)
    if not rates:
        return None
    texts = " ".join(f"{name}.lr={rate}" for name, rate in rates.items())
    return f"not tuned for these settings, default rate: {texts}"


@contextlib.contextmanager
def arithmetic(config: RunConfig) -> Iterator[None]:
    """Context in which arrays and programs have the configured precision."""
    products = {"float32": "float32", "tf32": "tensorfloat32"}.get(config.precision)
    with contextlib.ExitStack() as settings:
        if products is not None:
            settings.enter_context(jax.default_matmul_precision(products))
        if config.precision == "float64":
            settings.enter_context(jax.enable_x64(True))
        yield


def execution(config: RunConfig) -> Execution | None:
    """Returns the execution strategy of the clients; None for ``auto``."""
    match config.execution:
        case "vmapped":
            return strategies.vmapped()
        case "chunked":
            return strategies.chunked(config.chunk_size)
        case "sequential":
            return strategies.sequential()
    return None
