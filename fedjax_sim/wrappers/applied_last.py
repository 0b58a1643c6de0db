"""Check of an algorithm whose outermost wrapper must stay the outermost one."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_sim.types import FedAlgorithm, Task, Timeline


class AppliedLast(NamedTuple):
    """Check of a wrapper that no other wrapper may enclose, such as a private one.

    It keeps the functions ``local`` and ``update`` that the wrapper returned, so that
    :func:`check_applied_last` notices if another wrapper has replaced one of them.
    """

    inner: Callable[[Task, Timeline], None]  # check of the wrapped algorithm
    own: Callable[[Task, Timeline], None]  # check of the wrapper
    local: Callable[..., Any]
    update: Callable[..., Any]
    wrapper: str  # its name
    reason: str  # why it must be the last one
    mechanism: Any = None  # (timeline, num_clients) -> fedjax_sim.privacy.events.Mechanism

    def __call__(self, task: Task, timeline: Timeline) -> None:
        self.inner(task, timeline)
        self.own(task, timeline)


def check_applied_last(algorithm: FedAlgorithm) -> None:
    """Refuses a wrapper around one that must be applied last.

    Raises:
        ValueError: naming the inner wrapper and the reason.
    """
    check = algorithm.check
    check = getattr(check, "inner", check) if not isinstance(check, AppliedLast) else check
    if not isinstance(check, AppliedLast):
        return
    if algorithm.local is not check.local or algorithm.update is not check.update:
        raise ValueError(
            f"algorithm wraps {check.wrapper}(...); expected {check.wrapper} as the last wrapper: "
            f"{check.reason}"
        )
