"""What a timeline adds up to: who computed when, who waited, how many bits were sent."""

from typing import Literal, NamedTuple

import numpy as np

from fedjax_sim.types import Timeline


class Spans(NamedTuple):
    """The V visits of a timeline in simulated time, in the order of its T updates.

    From ``start`` to ``done`` a client computes, from there to ``report`` it waits.
    """

    time: np.ndarray  # [T] of the server updates
    update: np.ndarray  # [V] int    which one the visit reports to
    client: np.ndarray  # [V] int
    start: np.ndarray  # [V] when it began to work on its model
    done: np.ndarray  # [V]
    report: np.ndarray  # [V]
    staleness: np.ndarray  # [V] int
    num_steps: np.ndarray  # [V] int


def spans(
    timeline: Timeline,
    *,
    begins: Literal["broadcast", "report"] = "broadcast",
    interaction: float = 0.0,
) -> Spans:
    """When the clients of a timeline computed, and when they waited with their reports.

    The timeline tells when updates are made, which broadcast a visit started from and how long it
    waited at the end; when the visit began depends on the schedule.  What a client does after its
    last report is not in it.  Time that a client was away counts as computing.

    Args:
        timeline: one, ``[T, S]``.
        begins: a client begins when the "broadcast" that it starts from is made, or after its last
            report if that is later (:func:`~fedjax_sim.timelines.synchronous`, and
            :func:`~fedjax_sim.timelines.contacts` with ``receives="new"``); or always with its
            last "report", the first time at 0 (both kinds of ``contacts``, and
            :func:`~fedjax_sim.timelines.arrivals` with ``assign="same"``).
        interaction: the server's time for one update, at whose beginning it has the reports: the
            argument of ``synchronous`` and ``arrivals``; 0 for ``contacts``.

    Raises:
        ValueError: a batch of timelines, another ``begins``, a negative interaction, a visit that
            would end before it begins: the schedule was another one.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import deterministic, synchronous
        >>> timeline = synchronous(
        ...     jax.random.key(0), deterministic(np.array([2.0, 5.0])), horizon=30.0,
        ...     num_clients=2, cohort_size=2, num_steps=2)
        >>> found = spans(timeline, interaction=3.0)
        >>> fast = found.client == 0
        >>> found.start[fast].tolist(), found.done[fast].tolist(), found.report[fast].tolist()
        ([0.0, 13.0], [4.0, 17.0], [10.0, 23.0])
    """
    mask = np.asarray(timeline.mask)
    if mask.ndim != 2:
        raise ValueError(f"timeline has clients of shape {mask.shape}; expected one, [T, S]")
    if begins not in ("broadcast", "report"):
        raise ValueError(f"begins is {begins!r}; expected 'broadcast' or 'report'")
    if not interaction >= 0:
        raise ValueError(f"interaction is {interaction}; expected a time >= 0")
    update, slot = np.nonzero(mask)

    def of_visits(values) -> np.ndarray:
        return np.asarray(values)[update, slot]

    time = np.asarray(timeline.time, np.float64)
    client, version = of_visits(timeline.clients), of_visits(timeline.version)
    report = time[update] - interaction
    idle = 0.0 if timeline.idle is None else of_visits(timeline.idle).astype(np.float64)
    # Broadcast v is what update v - 1 made.
    start = _previous(client, report)
    if begins == "broadcast":
        start = np.maximum(start, np.concatenate([[0.0], time])[version])
    done = report - idle
    # Of single-precision times, a sum of three.
    rounding = 4 * np.finfo(np.float32).eps * (np.abs(report) + interaction)
    if (early := done < start - rounding).any():
        v = int(np.argmax(early))
        raise ValueError(
            f"begins is {begins!r} and interaction {interaction}, but client {client[v]} has done "
            f"its work for update {update[v]} at {done[v]:g}, before it begins at {start[v]:g}; "
            "expected the timeline's own schedule"
        )
    done = np.clip(done, start, report)
    steps = of_visits(timeline.num_steps)
    return Spans(time, update, client, start, done, report, update - version, steps)


def bits_moved(timeline: Timeline, up: int, down: int) -> np.ndarray:
    r"""Bits that have been sent up to each update, in both directions together, ``[..., T]``.

    .. math:: B_t = (b_{up} + b_{down}) \sum_{u \le t} |S_u|

    Every report goes with one message from the server: the model that the client started from, or
    the one it leaves a contact with.  It is counted with the report.  Not counted are the initial
    model, which everyone has, and messages to clients who never reported.

    Args:
        timeline: one, or a batch.
        up, down: bits of a message from and to a client, ``Codec.bits`` of it; an uncompressed
            model has ``fedjax_sim.compression.identity().bits(params)``.

    Returns:
        64-bit integers.

    Raises:
        ValueError: a negative number of bits.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.cyclic(3, 4, 2, num_steps=1)
        >>> bits_moved(timeline, up=100, down=3200).tolist()
        [6600, 13200, 19800]
    """
    for name, bits in (("up", up), ("down", down)):
        if bits < 0:
            raise ValueError(f"{name} is {bits}; expected a number of bits >= 0")
    reports = np.asarray(timeline.mask).sum(-1, dtype=np.int64)
    return np.cumsum(reports, axis=-1) * (int(up) + int(down))


def _previous(client: np.ndarray, report: np.ndarray) -> np.ndarray:
    """The time of each client's report before this one; 0 where there is none."""
    order = np.argsort(client, kind="stable")
    again = client[order][1:] == client[order][:-1]
    before = np.zeros(len(client))
    before[order[1:][again]] = report[order[:-1][again]]
    return before
