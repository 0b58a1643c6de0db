"""``fedjax-sim tune``: measures a comparison's problem and keeps the fastest choices."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from fedjax_sim import datasets
from fedjax_sim.cli import build, registry
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.run import checked, prepare, tunable
from fedjax_sim.simulation import tuning

# Rounds a measurement dispatches at once.
_ROUNDS = 5


def run_tune(
    config: RunConfig,
    path: pathlib.Path,
    status: Callable[[str], AbstractContextManager] = contextlib.nullcontext,
) -> Iterator[tuple[str, list[tuning.Measured]]]:
    """Measures for one algorithm without client state and one with it, of the configuration's, and
    keeps what it found in ``path``.

    Args:
        config: the run to be executed.
        path: file of choices.
        status: shown while an algorithm is measured.

    Returns:
        ``(algorithm, measurements)``, the fastest first, as they are done.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> import tempfile
        >>> config = RunConfig(algorithms=("fedavg",), cohort_size=4, seeds=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "tuned.json"
        ...     ((name, found),) = run_tune(config, path)
        ...     path.exists(), name, found[0].seconds < 1
        (True, 'fedavg', True)
    """
    hyper = checked(config)
    dataset = datasets.load(config.dataset, config.data_dir)
    with build.arithmetic(config):
        problem = prepare(config, dataset)
    seen: set[bool] = set()
    for name in config.algorithms:
        algorithm = registry.algorithm(name, hyper[name])
        described = tuning.describe(tunable(problem, algorithm), config.batch_size)
        if described["client_state"] in seen:
            continue
        seen.add(described["client_state"])

        def make(conv, algorithm=algorithm) -> tuning.Problem:
            return tunable(prepare(config, dataset, conv), algorithm, _ROUNDS)

        with status(f"measuring {name}"), build.arithmetic(config):
            found = tuning.tune(make)
        tuning.store(path, described, found)
        yield name, found
