"""What ``fedjax-sim run --dry-run`` does: the forecast of every algorithm of a comparison."""

import pathlib
from collections.abc import Iterator

from fedjax_sim import datasets
from fedjax_sim.cli import build, registry
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.run import checked, executed, prepare
from fedjax_sim.simulation.forecast import Forecast, forecast


def run_forecast(
    config: RunConfig, tuning_file: pathlib.Path | None = None
) -> Iterator[tuple[str, Forecast]]:
    """``(algorithm, forecast)`` of a comparison's algorithms, as they are done; writes nothing.

    Args:
        config: the comparison.
        tuning_file: as for :func:`~fedjax_sim.cli.run.compare`.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> config = RunConfig(algorithms=("fedavg",), seeds=2, model="softmax_regression")
        >>> ((name, found),) = run_forecast(config)
        >>> name, found.parameters
        ('fedavg', 650)
    """
    hyper = checked(config)
    dataset = datasets.load(config.dataset, config.data_dir)
    with build.arithmetic(config):
        problem = prepare(config, dataset)
    for name in config.algorithms:
        with build.arithmetic(config):
            own, cohort = executed(config, dataset, problem, name, hyper[name], tuning_file)
            found = forecast(
                registry.algorithm(name, hyper[name]),
                own.task,
                own.timeline,
                own.params,
                own.keys,
                cohort=cohort,
                weighting=build.weighting(config),
                eval_fn=own.eval_fn,
                eval_every=config.eval_every,
            )
        yield name, found
