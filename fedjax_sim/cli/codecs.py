"""Compression on the command line: ``--compress CODEC`` and ``--feedback RULE``."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_sim import compression
from fedjax_sim.checks import did_you_mean
from fedjax_sim.compression import Codec, StatefulCodec
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import diana, ef14, ef21, marina

Number = int | float


class CodecEntry(NamedTuple):
    """A codec on the command line."""

    description: str
    build: Callable[..., Codec | StatefulCodec]
    number: str | None  # meaning of the number after the colon; None: there is none
    # Variance omega of an unbiased codec with this number, None if it depends on the tensor; False:
    # the codec is a contraction.
    variance: Callable[[Number], float | None] | bool


def _dropped(keep: Number) -> float | None:
    return 1 / keep - 1 if isinstance(keep, float) else None


CODECS: dict[str, CodecEntry] = {
    "top_k": CodecEntry(
        "the largest entries", compression.top_k, "entries per tensor, or their fraction", False
    ),
    "random_k": CodecEntry(
        "random entries", compression.random_k, "entries per tensor, or their fraction", _dropped
    ),
    "sign": CodecEntry("signs and the mean magnitude", compression.scaled_sign, None, False),
    "natural": CodecEntry("powers of two", compression.natural, None, lambda _: 1 / 8),
    "power_sgd": CodecEntry("products of thin matrices", compression.power_sgd, "rank", False),
    "qsgd": CodecEntry("levels of the norm", compression.qsgd, "levels", lambda _: None),
    "uniform": CodecEntry("equidistant values", compression.uniform, "values", lambda _: None),
}
FEEDBACK = ("ef14", "ef21", "diana", "marina")


def compress(
    algorithm: FedAlgorithm, codec: str, feedback: str | None = None, rate: Any = None
) -> FedAlgorithm:
    """Returns an algorithm whose uploads are compressed.

    Args:
        algorithm: any algorithm; with ``feedback`` one whose uploads are changes of the model.
        codec: a name in :data:`CODECS`, with ``:NUMBER`` if it takes a number; "none" returns the
            algorithm, whatever the other options are.
        feedback: one of :data:`FEEDBACK`; None or "none": the clients keep no memory.  Error
            feedback divides an unbiased codec by 1 + omega.
        rate: alpha of DIANA, or MARINA's probability of whole uploads; None: 1 / (1 + omega).

    Raises:
        ValueError: an unknown name, a number that is missing or out of range, a codec that does not
            suit the rule, or another algorithm.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = compress(fedavg(0.1), "random_k:0.1", "diana")
    """
    if codec == "none":
        return algorithm
    name, number = _parse(codec)
    entry = CODECS[name]
    try:
        built = entry.build() if number is None else entry.build(number)
    except ValueError as error:
        raise ValueError(f"compress is {codec!r}: {error}") from error
    if feedback in (None, "none"):
        if rate is not None:
            raise ValueError(f"feedback_rate is {rate}; expected feedback diana or marina with it")
        if isinstance(built, StatefulCodec):
            raise ValueError(f"compress is {codec!r}; expected feedback ef14 or ef21 with it")
        return compression.compressed(algorithm, built, near=compression.zeros)
    if feedback not in FEEDBACK:
        raise ValueError(
            f"feedback is {feedback!r}; expected none, {', '.join(FEEDBACK)}"
            f"{did_you_mean(feedback, FEEDBACK)}"
        )
    unbiased = callable(entry.variance)
    variance = entry.variance(number or 0) if callable(entry.variance) else None
    if feedback in ("ef14", "ef21"):
        if rate is not None:
            raise ValueError(f"feedback_rate is {rate}; expected feedback diana or marina with it")
        if unbiased:
            if variance is None or not isinstance(built, Codec):
                raise ValueError(
                    f"compress is {codec!r}; expected a contraction with feedback {feedback}, for "
                    "example top_k:0.1, random_k:0.1, sign or power_sgd:1"
                )
            built = compression.contractive(built, variance)
        return (ef14 if feedback == "ef14" else ef21)(algorithm, built)
    if not unbiased or not isinstance(built, Codec):
        raise ValueError(
            f"compress is {codec!r}; expected an unbiased codec with feedback {feedback}, for "
            "example random_k:0.1 or natural"
        )
    if rate is None and variance is None:
        raise ValueError(
            f"feedback_rate is None; expected a number in (0, 1] with compress {codec}, whose "
            "variance depends on the tensors"
        )
    rate = 1 / (1 + variance) if rate is None and variance is not None else rate
    return (diana if feedback == "diana" else marina)(algorithm, built, rate)


def _parse(codec: str) -> tuple[str, Number | None]:
    """Returns the name and the number of a codec."""
    name, colon, text = codec.partition(":")
    if name not in CODECS:
        raise ValueError(
            f"compress is {codec!r}; expected none or one of {', '.join(CODECS)}"
            f"{did_you_mean(name, CODECS)}"
        )
    meaning = CODECS[name].number
    if meaning is None:
        if colon:
            raise ValueError(f"compress is {codec!r}; expected {name} without a number")
        return name, None
    try:
        return name, int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"compress is {codec!r}; expected {name}:NUMBER, the {meaning}") from None
