"""``outcome.json`` of a run's folder: divergence and communication, for figures and tables.

The file follows from the run's history and setup and identifies nothing, so it may be deleted; a
folder without it has no bits, and rounds of divergence are those of the evaluations.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.checks import called, check_count, shapes_of_one, shapes_text
from fedjax_sim.runs.history import Clock
from fedjax_sim.timelines.accounting import uploads_of
from fedjax_sim.tree import bits_if_all_report, bits_of_arrays, message_bits, upload_bits
from fedjax_sim.types import FedAlgorithm, PyTree, Selector, Setup
from fedjax_sim.wrappers import NEEDS_DATA, dry_client, dry_visit


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Divergence and communication of a run."""

    rounds: int  # done
    diverged_at: Mapping[str, int]  # by seed; 0: the server state stayed finite
    num_clients: int
    upload_bits: int | None  # of one upload; None: unknown
    download_bits: int | None  # of one message to a client
    # Clients' reports until a round, by seed: reports per round if all rounds have equally many,
    # else [[round, reports], ...] for every evaluated round.
    uploads: Mapping[str, int | Sequence[Sequence[int]]]
    partial_model: bool = False  # metrics of the server's model mean nothing

    def bits(self, seed: str, rounds: Iterable[int]) -> list[int | None]:
        """Returns the bits that server and clients have sent until rounds; None: unknown.

        Example:
            >>> outcome = Outcome(9, {"0": 0}, 5, 32, 64, {"0": 2})
            >>> outcome.bits("0", [0, 9]), outcome.bits("1", [9])
            ([0, 1728], [None])
        """
        uploads = self.uploads.get(seed)
        if self.upload_bits is None or self.download_bits is None or uploads is None:
            return [None for _ in rounds]
        size = self.upload_bits + self.download_bits
        if isinstance(uploads, int):
            return [size * uploads * done for done in rounds]
        until = {0: 0, **{done: size * reports for done, reports in uploads}}
        return [until.get(done) for done in rounds]

    def with_bits(self, upload: int, download: int) -> "Outcome":
        """Returns the outcome with other sizes of an upload and a message."""
        return dataclasses.replace(self, upload_bits=upload, download_bits=download)


def describe(
    algorithm: FedAlgorithm,
    setup: Setup,
    seeds: Sequence[str],
    clock: Clock,
    *,
    batched: bool,
    shapes: tuple[PyTree, PyTree] | None = None,
) -> dict[str, Any]:
    """Returns the part of a run's outcome that is known before the run: its communication.

    Bits are those of the arrays that a message and an upload consist of, or of their codes if the
    algorithm is wrapped in compression (for MARINA the expected number, for PP-MARINA the mean over
    the timeline's uploads).  Frozen leaves of the model are not sent.  Messages that all clients
    receive in every round with a report (EF21-P) are shared among the reports: the bits of a
    message are the mean over these.  Without a server an upload counts once per link that it is
    sent over (the mean over clients and over the period of the graphs), and there are no messages.
    Those of candidates that a selection does not choose are shared, too: if they send scores, all
    candidates receive a message, and an upload has the bits of the scores.

    Args:
        algorithm, setup, seeds, clock: those of the run.
        batched: the setup has an axis of seeds.
        shapes: message and upload, if they are known (:func:`visit_shapes`).
    """
    upload, download = None, None
    candidates = clock.mask.sum(-1, dtype=np.int64)  # [n, T]
    selector = algorithm.selection
    reports = uploads_of(candidates, selector)
    # An algorithm may need a real oracle even for the shapes of its uploads.
    with contextlib.suppress(*NEEDS_DATA):
        shapes = shapes or visit_shapes(algorithm, setup, batched=batched)
    if shapes is not None:
        message, sent = shapes
        download = _counted("message", message_bits(algorithm), message)
        upload = _counted("upload", upload_bits(algorithm), sent)
        if (whole := bits_if_all_report(algorithm)) is not None:
            # Clients know how many uploads arrive, not how many are sent.
            arrived = np.asarray(setup.timeline.arrived).sum(-1, dtype=np.int64)
            every = uploads_of(arrived, selector) == setup.task.num_clients
            share = reports[np.broadcast_to(every, reports.shape)].sum() / max(reports.sum(), 1)
            all_report = _counted("upload_if_all", whole, sent)
            upload = round(float(share * all_report + (1 - share) * upload))
        if algorithm.requires.messages_to_all:
            messages = setup.task.num_clients * np.count_nonzero(reports)
            download = round(download * messages / max(int(reports.sum()), 1))
        if (links := algorithm.requires.bits.links) is not None:
            upload, download = round(links * upload), 0
        if selector is not None:
            asked = candidates.sum() / max(int(reports.sum()), 1)
            try:
                score, report = _selection_bits(selector, setup, batched=batched)
            except NEEDS_DATA:  # they need a real oracle, too
                download, upload = None, None
            else:
                download = round(download * asked) if selector.score is not None else download
                upload += round(score * asked) + report
    num_rounds = setup.timeline.num_rounds
    evaluated = range(setup.eval_every, num_rounds, setup.eval_every)
    rounds = np.array([*evaluated, num_rounds])
    uploads: dict[str, Any] = {}
    for seed, per_round in zip(seeds, reports, strict=True):
        if (per_round == per_round[0]).all():
            uploads[seed] = int(per_round[0])
        else:
            until = np.cumsum(per_round)[rounds - 1]
            uploads[seed] = np.stack([rounds, until], axis=1).tolist()
    return {
        "num_clients": setup.task.num_clients,
        "upload_bits": upload,
        "download_bits": download,
        "uploads": uploads,
        "partial_model": algorithm.requires.partial_model,
    }


def _selection_bits(selector: Selector, setup: Setup, *, batched: bool) -> tuple[int, int]:
    """Returns the bits of a candidate's score and of a report, 0 where a selector has none."""
    params = shapes_of_one(setup.params, batched=batched)
    oracle, work = dry_client(setup.timeline.max_steps)
    score, report = (
        0 if part is None
        else bits_of_arrays(jax.eval_shape(lambda x, part=part: part(x, oracle, work), params))
        for part in (selector.score, selector.report)
    )  # fmt: skip
    return score, report


def _counted(name: str, count: Callable[[PyTree], int], sent: PyTree) -> int:
    """Returns a number of bits; the function of the algorithm may be a codec's ``bits``."""
    name = f"algorithm.requires.bits.{name}"
    bits = called(name, shapes_text(sent), "a function of it that returns a number", count, sent)
    check_count(0, **{f"{name}, the bits of {shapes_text(sent)}": bits})
    return int(bits)


def visit_shapes(algorithm: FedAlgorithm, setup: Setup, *, batched: bool) -> tuple[PyTree, PyTree]:
    """Returns the shapes of one client's message and upload."""
    params = jax.eval_shape(lambda x: jax.tree.map(jnp.asarray, x), setup.params)
    if batched:
        params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), params)
    message, upload, _ = jax.eval_shape(lambda x: visit(algorithm, setup, x), params)
    return message, upload


def visit(algorithm: FedAlgorithm, setup: Setup, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """Returns one client's message, upload and state, to be traced for their shapes only."""
    return dry_visit(algorithm, params, setup.task.num_clients, setup.timeline.max_steps)
