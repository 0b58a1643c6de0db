"""Check of an algorithm whose outermost wrapper must stay the outermost one."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_sim.types import FedAlgorithm, Task, Timeline


class AppliedLast(NamedTuple):
    """Check of a wrapper that no other wrapper may enclose, such as a private one.

    It keeps the functions ``local`` and ``update`` that the wrapper returned, so that
    :func:`applied_last` notices if another wrapper has replaced one of them.
    """

    inner: Callable[[Task, Timeline], None]  # check of the wrapped algorithm
    own: Callable[[Task, Timeline], None]  # check of the wrapper
    local: Callable[..., Any]
    update: Callable[..., Any]
    wrapper: str  # its name
    reason: str  # why it must be the last one
    # (timeline, num_clients) -> fedjax_sim.wrappers.privacy.events.Mechanism; None: clients add the
    # noise.
    mechanism: Any = None

    def __call__(self, task: Task, timeline: Timeline) -> None:
        self.inner(task, timeline)
        self.own(task, timeline)


def applied_last(algorithm: FedAlgorithm) -> AppliedLast | None:
    """Returns the check of a wrapper that must be applied last; None: there is none.

    Raises:
        ValueError: another wrapper encloses it.
    """
    check = algorithm.check
    if not isinstance(check, AppliedLast):
        check = getattr(check, "inner", None)  # of a wrapper that has a check of its own
    if not isinstance(check, AppliedLast):
        return None
    if algorithm.local is not check.local or algorithm.update is not check.update:
        raise ValueError(
            f"algorithm wraps {check.wrapper}(...); expected {check.wrapper} as the last wrapper: "
            f"{check.reason}"
        )
    if algorithm.aggregation is not None and check.mechanism is not None:
        raise ValueError(
            f"algorithm is {check.wrapper}(...) with another aggregation than the mean; expected "
            "the mean, since the influence of one client on another rule has no known bound"
        )
    return check
