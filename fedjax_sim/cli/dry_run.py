"""``fedjax-sim run --dry-run``: the forecast of every algorithm of a comparison."""

import pathlib
from collections.abc import Iterator, Sequence

from fedjax_sim.cli import measured
from fedjax_sim.runs import Forecast, Options, forecast
from fedjax_sim.studies.setups import ResolvedRun


def run_forecast(
    comparison: ResolvedRun, measured_files: Sequence[pathlib.Path] = ()
) -> Iterator[tuple[str, Forecast]]:
    """Yields ``(algorithm, forecast)`` for a comparison's algorithms; writes nothing."""
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
