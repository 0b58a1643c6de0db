"""The wrapper that passes uploads and messages through codecs."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_sim import tree
from fedjax_sim.checks import (
    called,
    check_is_algorithm,
    check_messages_encode,
    check_statistics_last,
    check_takes,
)
from fedjax_sim.compression.codec import Codec, check_codec, decoded
from fedjax_sim.tree import with_message_bits, with_upload_bits
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    PyTree,
    Upload,
    Work,
    specified,
)

Near = Callable[
    [Message, Upload], Upload
]  # (message, upload) -> the server's vector near the upload

# Branches of the visit's key; the algorithm's own draws use the key itself or small numbers.
_UPLOAD, _MESSAGE = 2**31, 2**31 + 1


def zeros(message: Message, upload: Upload) -> Upload:
    """Returns zeros: the receiver has no vector near the upload.

    Example:
        >>> zeros({"w": jnp.ones(2)}, jnp.ones(1)).tolist()
        [0.0]
    """
    return tree.zeros_like(upload)


def own_message(message: Message, upload: Upload) -> Upload:
    """Returns the message if the upload has its structure, shapes and dtypes, else zeros.

    The server then decodes the upload near the message that it sent to the client.  Of a message
    around another one (``freeze``) it is that inside.  An upload with other parts beside a model
    has these near 0; what clients of a network send to each other is decoded near the mean of what
    all of them have.

    Example:
        >>> own_message({"w": jnp.ones(2)}, {"w": jnp.zeros(2)})["w"].tolist()
        [1.0, 1.0]
        >>> own_message({"w": jnp.ones(2)}, {"w": jnp.zeros(3)})["w"].tolist()
        [0.0, 0.0, 0.0]
    """
    while not same_form(message, upload) and hasattr(message, "inner"):
        message = message.inner
    if hasattr(upload, "decoded_near"):
        return upload.decoded_near(message)
    return message if same_form(message, upload) else zeros(message, upload)


@specified
def compressed(
    algorithm: FedAlgorithm, codec: Codec, down: Codec | None = None, near: Near | None = None
) -> FedAlgorithm:
    """Returns an algorithm whose uploads, and messages, pass through codecs.

    Every client's upload is decoded, then averaged.  The random draws use the visit's key, so they
    depend neither on the rest of the cohort nor on its execution.  The algorithm's server and its
    clients' states do not change: where uploads add up over the rounds, in the server (SCAFFOLD,
    FedDyn) or in the clients' controls (Scaffnew), the codec's errors stay in the sum and shift the
    limit; ``ef14`` corrects those of FedDyn and Scaffnew.  An upload of zeros decoded near zeros
    stays zero.  Of IFCA's uploads the codec encodes the one model that a client sends; the number
    of its cluster arrives unchanged, and so do AFL's losses, the weights of FedProto's classes, and
    what ``skip_nonfinite`` says of an upload.

    Args:
        algorithm: any algorithm.
        codec: codec of the uploads.
        down: codec of the messages; they are decoded near the client's state if it has the form of
            a message, else near 0, which suits the lattice only if the state is a model near the
            message (Ditto, not FedDyn's gradients).  The draws are separate for every client, as if
            the message were encoded for each of them.  Personal models follow from the decoded
            message; those of ``private`` and ``fine_tuned`` only if these are applied before:
            around ``compressed`` they read the model from the message as it was sent.
        near: ``(message, upload) -> near``, the vector that the server decodes an upload with; it
            matters to :func:`~fedjax_sim.compression.lattice` only.  None: :func:`own_message` for
            an algorithm that states that its uploads are models (``requires.uploads_models``, as
            FAVANO and the networks of :mod:`~fedjax_sim.topologies`), else :func:`zeros`, since
            near the message differences of models (FedAvg, FedBuff) wrap as soon as the model's
            entries exceed the lattice's radius.  QuAFL, whose message contains more than the model,
            takes its codecs itself: ``quafl(lr, up=codec.through, down=codec.through)``.

    Raises:
        ValueError: no algorithm, no codec, a codec with memory
            (:class:`~fedjax_sim.compression.StatefulCodec`), or an algorithm whose clients upload
            running statistics (apply
            :func:`~fedjax_sim.wrappers.running_statistics.running_statistics` last); ``down``
            around one that requires exact messages; ``near`` of other arguments, and, when uploads
            are encoded, of another form than the upload.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> from fedjax_sim.compression import lattice, qsgd
        >>> noisy = compressed(fedavg(lr=0.1), qsgd(levels=7))
        >>> rounded = compressed(fedavg(lr=0.1), lattice(8, 1e-3))
        >>> params = {"w": jnp.zeros(1000)}
        >>> 32 * 1000 / qsgd(levels=7).bits(params)  # compression
        7.936507936507937
    """
    check_is_algorithm(algorithm)
    check_statistics_last("compressed", algorithm, only_uploaded=True)
    check_codec(codec)
    if near is not None:
        check_takes("near", near, ("message", "upload"))
    if down is not None:
        check_codec(down, "down")
        check_messages_encode(algorithm)
    usual = own_message if algorithm.requires.uploads_models else zeros
    decode_near = usual if near is None else near

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        received = _received(down, message, state, work)
        upload, new = algorithm.local(received, state, oracle, work.inside())
        key = jax.random.fold_in(work.key, _UPLOAD)
        part = coded_part(upload)
        expected = "a function that JAX can trace and that returns a tree like the upload"
        known = called("near", "(message, upload)", expected, decode_near, message, part)
        tree.check_alike("near", known, part, "the upload")
        return with_coded_part(upload, decoded(codec, key, part, known)), new

    def personal(message: Message, state: ClientState, oracle: Oracle, work: Work) -> Params:
        assert algorithm.personal is not None
        received = _received(down, message, state, work)
        return algorithm.personal(received, state, oracle, work.inside())

    def bits(upload: Upload) -> int:
        if not hasattr(upload, "coded"):
            return codec.bits(upload)
        return codec.bits(jax.eval_shape(coded_part, upload)) + upload.exact_bits()

    wrapped = algorithm if down is None else with_message_bits(algorithm, down.bits)
    return with_upload_bits(wrapped, bits)._replace(
        local=local, personal=None if algorithm.personal is None else personal
    )


def coded_part(upload: Upload) -> PyTree:
    """Returns what a codec encodes: the upload, or the part that it names itself (IFCA)."""
    return upload.coded() if hasattr(upload, "coded") else upload


def with_coded_part(upload: Upload, part: PyTree) -> Upload:
    """Returns an upload with another value of its coded part."""
    return upload.restored(part) if hasattr(upload, "coded") else part


def exact_bits(upload: Upload) -> int:
    """Returns the bits of what no codec encodes."""
    return upload.exact_bits() if hasattr(upload, "coded") else 0


def _received(down: Codec | None, message: Message, state: ClientState, work: Work) -> Message:
    """Returns the message as a client decodes it."""
    if down is None:
        return message
    reference = state if same_form(state, message) else tree.zeros_like(message)
    return decoded(down, jax.random.fold_in(work.key, _MESSAGE), message, reference)


def same_form(a: PyTree, b: PyTree) -> bool:
    """Returns True for pytrees of one structure with leaves of the same shapes and dtypes."""

    def form(x: PyTree) -> tuple:
        leaves, structure = jax.tree.flatten(x)
        return structure, [(jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves]

    return form(a) == form(b)
