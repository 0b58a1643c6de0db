"""``fedjax-sim run --dry-run``: the forecast of every algorithm of a comparison."""

import pathlib
from collections.abc import Iterator, Sequence

from fedjax_sim.cli import measured
from fedjax_sim.runs import Forecast, Options, forecast
from fedjax_sim.studies.setups.build import ResolvedRun


def run_forecast(
    comparison: ResolvedRun, measured_files: Sequence[pathlib.Path] = ()
) -> Iterator[tuple[str, Forecast]]:
    """Yields ``(algorithm, forecast)`` for a comparison's algorithms; writes nothing.

    Args:
        comparison: the comparison.
        measured_files: as for :func:`~fedjax_sim.cli.run.compare`.

    Example:
        >>> from fedjax_sim.studies.setups.build import resolve
        >>> from fedjax_sim.studies.setups.presets import options
        >>> from fedjax_sim.studies.setups.study import Study
        >>> run = options(algorithms=("fedavg",), seeds=2, model="softmax_regression")
        >>> ((name, forecast),) = run_forecast(resolve(Study(run)))
        >>> name, forecast.parameters
        ('fedavg', 650)
    """
    choices = measured.choices(comparison, measured_files)
    for name in comparison.hyper:
        with comparison.arithmetic():
            setup, execution = measured.executed(comparison, name, choices.get(name))
            algorithm = comparison.algorithm(name)
            keys = comparison.problem.keys
            result = forecast(
                algorithm, setup, keys, delta=None, options=Options(execution=execution)
            )
        yield name, result._replace(privacy=comparison.guarantee)
