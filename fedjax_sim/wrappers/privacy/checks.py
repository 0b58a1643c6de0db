"""Refusals of private runs, before compilation."""

from collections.abc import Callable
from typing import Any

from fedjax_sim.checks import check_is_algorithm, is_concrete, last_wrapper
from fedjax_sim.types import FedAlgorithm, LastWrapper, Scalar, Task, Timeline
from fedjax_sim.wrappers._memory import check_sends_changes
from fedjax_sim.wrappers.privacy.noise import NoiseLaw
from fedjax_sim.wrappers.received import also_checked


def check_admits_noise(algorithm: FedAlgorithm) -> None:
    """Refuses an algorithm to whose uploads no noise may be added."""
    check_is_algorithm(algorithm)
    if (last := last_wrapper(algorithm)) is not None:
        raise ValueError(f"algorithm is {last.name}(...); expected one without it")
    if algorithm.aggregation is not None:
        raise ValueError(
            "algorithm has another aggregation than the mean; expected the mean, since the "
            "influence of one client on another rule has no known bound"
        )
    check_sends_changes(algorithm)
    if (reason := algorithm.requires.exact_mean) is not None:
        raise ValueError(
            f"algorithm needs the exact mean of the uploads: {reason}; expected "
            "one whose uploads are changes, 0 for a client that does not change the model"
        )


def check_timeline(
    timeline: Timeline,
    num_clients: int,
    noise: NoiseLaw,
    expected_uploads: Scalar,
    most_examples: Scalar | None,
) -> None:
    """Refuses a timeline that does not fit the noise or the public number of uploads."""
    rule = timeline.sampling
    if rule is not None and most_examples is None and is_concrete(expected_uploads):
        number = float(expected_uploads)
        if abs(number - rule.expected_uploads) > 1e-6 * number:
            raise ValueError(
                f"expected_uploads is {number:g}; expected {rule.expected_uploads:g}, the expected "
                "number of uploads per round of the timeline"
            )
    if is_concrete(timeline.clients) and is_concrete(timeline.mask):
        noise.check(timeline, num_clients)


def guarded(
    algorithm: FedAlgorithm,
    check: Callable[[Task, Timeline], None],
    mechanism: Callable[..., Any] | None,
    wrapper: str,
    reason: str,
) -> FedAlgorithm:
    """Returns an algorithm that refuses wrappers around it, for a reason.

    ``check`` follows that of the wrapped algorithm; the accountant reads the ``mechanism``.
    """
    last = LastWrapper(wrapper, reason, algorithm.local, algorithm.update, mechanism)
    return also_checked(algorithm, check).requiring(last=last)
