"""The mark of algorithms that update running statistics, and the wrappers that must not see them.

The gradient of a statistic is its value minus its next value, so a wrapper outside of
:func:`~fedjax_sim.wrappers.running_statistics.running_statistics` would train, decay or clip
statistics as if they were weights.
"""

from collections.abc import Callable
from typing import NamedTuple

from fedjax_sim.tree.leaves import Selection
from fedjax_sim.types import FedAlgorithm, Task, Timeline


class UpdatesStatistics(NamedTuple):
    """Check of an algorithm that updates the running statistics of its task's model."""

    inner: Callable[[Task, Timeline], None]
    where: Selection  # the statistics
    uploaded: bool = True  # clients upload their statistics

    def __call__(self, task: Task, timeline: Timeline) -> None:
        self.inner(task, timeline)


def check_statistics_last(
    wrapper: str, algorithm: FedAlgorithm, *, only_uploaded: bool = False
) -> None:
    """Refuses an algorithm that updates running statistics, which a wrapper would change.

    Args:
        only_uploaded: accept algorithms whose clients keep their statistics.

    Raises:
        ValueError: naming the wrapper.

    Example:
        >>> import fedjax_sim as fs
        >>> is_mean = lambda path, leaf: path[-1] == "mean"
        >>> statistics = fs.running_statistics(fs.fedavg(0.1), is_mean)
        >>> check_statistics_last("fine_tuned", statistics)
        Traceback (most recent call last):
        ValueError: algorithm updates running statistics; expected running_statistics(fine_tuned...
    """
    check = algorithm.check
    if isinstance(check, UpdatesStatistics) and (check.uploaded or not only_uploaded):
        raise ValueError(
            f"algorithm updates running statistics; expected running_statistics({wrapper}(...)): "
            "apply running_statistics last"
        )
