"""From options to objects: :func:`resolve` turns a configuration into a :class:`ResolvedRun`.

Names become functions by the tables of :mod:`fedjax_sim.cli.names` and
:mod:`fedjax_sim.cli.registry`; the library itself has no registries.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from fedjax_sim import datasets, models
from fedjax_sim.cli import config_checks
from fedjax_sim.cli.clocks import SCHEDULES
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.config_file import to_json
from fedjax_sim.cli.names import MODELS, PARTITIONS
from fedjax_sim.cli.problem import Problem, prepare
from fedjax_sim.cli.registry import SHARED
from fedjax_sim.cli.settings import resolve_hyper
from fedjax_sim.execution import strategies
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.models.convolution.lowering import Convolution
from fedjax_sim.types import FedAlgorithm, Setup


class ResolvedRun(NamedTuple):
    """A comparison whose options are resolved."""

    options: dict[str, Any]  # JSON values of the options, as config.json records them
    output: pathlib.Path
    hyper: dict[str, dict[str, Any]]  # by algorithm
    problem: Problem
    setups: dict[str, Setup]  # by algorithm
    lowered: Callable[[Convolution], Problem]  # the problem with its convolutions computed so
    execution: Execution | None  # None: a stored choice, else by the rules of strategies.auto
    arithmetic: Callable[[], contextlib.AbstractContextManager[None]]  # around all computations

    @property
    def seeds(self) -> list[str]:
        """Names of the replicas."""
        first = self.options["seed"]
        return [str(first + i) for i in range(self.options["seeds"])]

    def algorithm(self, name: str) -> FedAlgorithm:
        """Returns one of the algorithms, for the clients of the problem."""
        return self.problem.algorithm(name, self.hyper[name])


def resolve(config: RunConfig) -> ResolvedRun:
    """Returns the comparison that the options describe; loads the data.

    Raises:
        ValueError: a value out of range, an unknown name, a model or partition that does not suit
            the data set.

    Example:
        >>> resolve(RunConfig(algorithms=("fedavg",), seeds=2)).hyper
        {'fedavg': {'lr': 0.2}}
    """
    check(config)
    hyper = hyper_parameters(config)
    if jax.process_count() > 1 and config.num_strata is None:
        raise ValueError(
            f"num_strata is None; expected a multiple of the {jax.device_count()} devices of the "
            f"{jax.process_count()} processes"
        )
    dataset = datasets.load(config.dataset, config.data_dir)

    def lowered(conv: Convolution) -> Problem:
        with arithmetic(config):
            return prepare(config, dataset, conv)

    problem = lowered(models.auto)
    return ResolvedRun(
        to_json(config),
        config.output,
        hyper,
        problem,
        {name: problem.setup_of(name) for name in hyper},
        lowered,
        execution(config),
        functools.partial(arithmetic, config),
    )


def check(config: RunConfig) -> None:
    """Refuses values and names that no data set could make valid.

    Raises:
        ValueError: naming the field, its value and what was expected.
    """
    config_checks.check(config)
    names = {
        "dataset": datasets.NAMES,
        "model": ("auto", *MODELS),
        "partition": PARTITIONS,
    }
    for field, known in names.items():
        if (value := getattr(config, field)) not in known:
            raise ValueError(f"{field} is {value!r}; expected one of {', '.join(known)}")
    for name in config.algorithms:
        if config.clock == "none" and name in SCHEDULES:
            raise ValueError(
                f"clock is 'none'; expected a law of step durations for {name}, as in the preset "
                "asynchronous"
            )


def hyper_parameters(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Returns the hyper-parameters of each algorithm: defaults, then options, then ``--hyper``.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, or a value out of range.

    Example:
        >>> config = RunConfig(algorithms=("fedprox",), lr=0.2, hyper=("fedprox.mu=1",))
        >>> hyper_parameters(config)
        {'fedprox': {'lr': 0.2, 'mu': 1.0}}
    """
    shared = {name: getattr(config, name) for name in SHARED}
    return resolve_hyper(config.algorithms, config.hyper, shared)


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
