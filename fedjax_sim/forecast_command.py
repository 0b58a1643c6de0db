"""What ``fedjax-sim run --dry-run`` does: the forecast of every algorithm of a comparison."""

import pathlib
from collections.abc import Iterator

from fedjax_sim import algorithm_choices, choices, datasets
from fedjax_sim.compare import checked, executed, prepare
from fedjax_sim.config import CompareConfig
from fedjax_sim.forecast import Forecast, forecast


def run_forecast(
    config: CompareConfig, tuning_file: pathlib.Path | None = None
) -> Iterator[tuple[str, Forecast]]:
    """``(algorithm, forecast)`` of a comparison's algorithms, as they are done; writes nothing.

    Args:
        config: the comparison.
        tuning_file: as for :func:`~fedjax_sim.compare.compare`.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> config = CompareConfig(algorithms=("fedavg",), seeds=2, model="softmax_regression")
        >>> ((name, found),) = run_forecast(config)
        >>> name, found.parameters
        ('fedavg', 650)
    """
    hyper = checked(config)
    dataset = datasets.load(config.dataset, config.data_dir)
    with choices.arithmetic(config):
        problem = prepare(config, dataset)
    for name in config.algorithms:
        with choices.arithmetic(config):
            own, cohort = executed(config, dataset, problem, name, hyper[name], tuning_file)
            found = forecast(
                algorithm_choices.algorithm(name, hyper[name]),
                own.task,
                own.timeline,
                own.params,
                own.keys,
                cohort=cohort,
                weighting=choices.weighting(config),
                eval_fn=own.eval_fn,
                eval_every=config.eval_every,
            )
        yield name, found
