"""Computing times, waiting times and bits sent of a timeline."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedjax_sim.checks import check_at_least, check_choice, check_count
from fedjax_sim.types import Selector, Timeline, plain_integers, shown


@shown
class Spans(NamedTuple):
    """The V visits of a timeline in simulated time, in the order of its T updates.

    A client computes from ``start`` to ``done`` and waits from ``done`` to ``report``.
    """

    time: np.ndarray  # [T] times of the server updates
    update: np.ndarray  # [V] int    server update that the visit reports to
    client: np.ndarray  # [V] int
    start: np.ndarray  # [V] time at which the client begins to compute
    done: np.ndarray  # [V] time at which it has done its last step
    report: np.ndarray  # [V] time at which the server receives the upload
    staleness: np.ndarray  # [V] int
    num_steps: np.ndarray  # [V] int


def spans(
    timeline: Timeline,
    *,
    begins: Literal["broadcast", "report"] = "broadcast",
    interaction: float = 0.0,
) -> Spans:
    """Returns when the clients of a timeline computed and when they waited with their reports.

    A timeline contains the times of the updates, the broadcast that each visit started from and how
    long the client waited at the end of the visit.  When the visit began depends on the schedule.
    Work that a client does after its last report is not part of a timeline.  Time during which a
    client was absent counts as computing.

    Args:
        timeline: one timeline, ``[T, S]``.
        begins: when a client begins a visit.

            "broadcast": at the broadcast that it starts from, or at its previous report if that is
            later (:func:`~fedjax_sim.timelines.synchronous`, and
            :func:`~fedjax_sim.timelines.contacts` with ``receives="new"``).

            "report": at its previous report, the first time at 0 (both kinds of ``contacts``, and
            :func:`~fedjax_sim.timelines.arrivals` with ``assign="same"``).
        interaction: time that the server needs for one update, counted after it has the reports:
            the argument of ``synchronous`` and ``arrivals``; 0 for ``contacts``.

    Raises:
        ValueError: a batch of timelines, another value of ``begins``, a negative interaction, or a
            visit that would end before it begins, because the schedule was a different one.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import deterministic, synchronous
        >>> timeline = synchronous(
        ...     jax.random.key(0), deterministic(np.array([2.0, 5.0])), horizon=30.0,
        ...     num_clients=2, cohort_size=2, num_steps=2)
        >>> visits = spans(timeline, interaction=3.0)
        >>> fast = visits.client == 0
        >>> visits.start[fast].tolist(), visits.done[fast].tolist(), visits.report[fast].tolist()
        ([0.0, 13.0], [4.0, 17.0], [10.0, 23.0])
    """
    mask = np.asarray(timeline.mask)
    if mask.ndim != 2:
        raise ValueError(f"timeline.mask has shape {mask.shape}; expected one timeline, [T, S]")
    check_choice(("broadcast", "report"), begins=begins)
    check_at_least(0, interaction=interaction)
    update, slot = np.nonzero(mask)

    def per_visit(values) -> np.ndarray:
        return np.asarray(values)[update, slot]

    time = np.asarray(timeline.time, np.float64)
    client, version = per_visit(timeline.clients), per_visit(timeline.version)
    report = time[update] - interaction
    idle = 0.0 if timeline.idle is None else per_visit(timeline.idle).astype(np.float64)
    # Broadcast v is the model after update v - 1.
    start = _previous_report(client, report)
    if begins == "broadcast":
        start = np.maximum(start, np.concatenate([[0.0], time])[version])
    done = report - idle
    # Times are sums of durations.  They have single precision if a jitted function returned them.
    precision = np.asarray(timeline.time).dtype
    rounding = 8 * np.finfo(precision).eps * (np.abs(report) + interaction)
    if (early := done < start - rounding).any():
        v = int(np.argmax(early))
        raise ValueError(
            f"begins is {begins!r} and interaction {interaction}, but client {client[v]} has done "
            f"its work for update {update[v]} at {done[v]:g}, before it begins at {start[v]:g}; "
            "expected the schedule of this timeline"
        )
    done = np.clip(done, start, report)
    steps = per_visit(timeline.num_steps)
    return Spans(time, update, client, start, done, report, update - version, steps)


@plain_integers
def bits_moved(
    timeline: Timeline,
    up: int | np.ndarray,
    down: int | np.ndarray,
    *,
    to_all: int | None = None,
    selector: Selector | None = None,
    number: int = 32,
) -> np.ndarray:
    r"""Cumulative number of bits sent until each update, in both directions, ``[..., T]``.

    .. math:: B_t = \sum_{u \le t} (b_{up} + b_{down})\, |S_u|

    Every upload is paired with one message from the server: the model that the client started from,
    or the model that the client receives at the contact.  It is counted with the upload.  The
    initial model, which every client has, and messages to clients that never report do not count,
    unless all M clients need every message: then a round with a report has M of them.

    With a selector the timeline has candidates, :math:`c` in a round, of which at most its ``size``
    upload.  If the selector has scores, as Power-of-Choice has, all candidates receive the model to
    compute them and send one number each; the chosen ones then train on the model that they have.
    Without scores the others send and receive nothing.  A selector with reports adds one number to
    every upload.  Draws with replacement may have fewer uploads than they are counted here.

    Args:
        timeline: one timeline or a batch.
        up: bits per upload, ``Codec.bits`` of the codec; an uncompressed model has
            ``fedjax_sim.compression.identity().bits(params)``.  An array ``[T]`` or ``[..., T]`` if
            uploads of the rounds have different sizes
            (MARINA: ``np.where(full, whole, codec.bits(params))``).
        down: bits per message from the server to a client, a number or an array like ``up``.
        to_all: M, for messages that all clients need (``requires.messages_to_all``:
            :func:`~fedjax_sim.ef21_p`); None: those who report.
        selector: that of an algorithm which :func:`fedjax_sim.selection.select` returned.
        number: bits of a selector's score or report.

    Returns:
        64-bit integers.

    Raises:
        ValueError: numbers of bits that are negative or no integers; ``to_all`` below 1, or with a
            selector.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = fs.timelines.cyclic(3, 4, 2, num_steps=1)
        >>> bits_moved(timeline, up=100, down=3200).tolist()
        [6600, 13200, 19800]
        >>> bits_moved(timeline, up=np.array([3200, 100, 100]), down=3200).tolist()
        [12800, 19400, 26000]
        >>> bits_moved(timeline, up=100, down=3200, to_all=4).tolist()
        [13000, 26000, 39000]

        Power-of-Choice chooses one of two candidates, who both receive the model and send a loss:

        >>> chosen = fs.selection.power_of_choice(1)
        >>> bits_moved(timeline, up=100, down=3200, selector=chosen).tolist()
        [6564, 13128, 19692]
    """
    check_count(0, number=number)
    if to_all is not None:
        check_count(1, to_all=to_all)
        if selector is not None:
            raise ValueError(
                f"to_all is {to_all} with a selector; expected None, as messages go to candidates"
            )
    sizes = [np.asarray(bits) for bits in (up, down)]
    for name, bits in zip(("up", "down"), sizes, strict=True):
        if bits.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {bits.dtype}; expected integers")
        check_at_least(0, **{name: bits.min()})
    candidates = np.asarray(timeline.mask).sum(-1, dtype=np.int64)
    reports = uploads_of(candidates, selector)
    messages, numbers = reports if to_all is None else to_all * (reports > 0), 0
    if selector is not None:
        messages = reports if selector.score is None else candidates
        numbers = (selector.score is not None) * candidates
        numbers = numbers + (selector.report is not None) * reports
    of_up, of_down = (bits.astype(np.int64) for bits in sizes)
    return np.cumsum(reports * of_up + messages * of_down + numbers * number, axis=-1)


def uploads_of(candidates: np.ndarray, selector: Selector | None) -> np.ndarray:
    """Returns numbers of uploads, at most a selector's size of the candidates."""
    if selector is None or selector.size is None:
        return candidates
    return np.minimum(candidates, selector.size)


def _previous_report(client: np.ndarray, report: np.ndarray) -> np.ndarray:
    """Time of the same client's previous report; 0 where there is none."""
    order = np.argsort(client, kind="stable")
    same_client = client[order][1:] == client[order][:-1]
    previous = np.zeros(len(client))
    previous[order[1:][same_client]] = report[order[:-1][same_client]]
    return previous
