"""Compression on the command line: ``--compress``, ``--feedback`` and ``--compress-down``."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_sim import compression
from fedjax_sim.checks import did_you_mean
from fedjax_sim.compression import Codec, StatefulCodec, Unbiased
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import diana, ef14, ef21, ef21_p, marina, pp_marina

Number = int | float


class CodecEntry(NamedTuple):
    """A codec on the command line."""

    description: str
    build: Callable[..., Codec | StatefulCodec]
    number: str | None  # meaning of the number after the colon; None: there is none
    # Bound of the variance omega for tensors of every size, which gives the default of
    # --feedback-rate; None: there is none.
    variance: Callable[[Number], float | None] = lambda number: None


def _dropped(keep: Number) -> float | None:
    return 1 / keep - 1 if isinstance(keep, float) else None


CODECS: dict[str, CodecEntry] = {
    "top_k": CodecEntry(
        "the largest entries", compression.top_k, "entries per tensor, or their fraction"
    ),
    "random_k": CodecEntry(
        "random entries", compression.random_k, "entries per tensor, or their fraction", _dropped
    ),
    "sign": CodecEntry("signs and the mean magnitude", compression.scaled_sign, None),
    "natural": CodecEntry("powers of two", compression.natural, None, lambda _: 1 / 8),
    "power_sgd": CodecEntry("products of thin matrices", compression.power_sgd, "rank"),
    "qsgd": CodecEntry("levels of the norm", compression.qsgd, "levels"),
    "uniform": CodecEntry("equidistant values", compression.uniform, "values"),
    "luq": CodecEntry("powers of two below the largest entry", compression.luq_codec, "powers"),
}
FEEDBACK = ("ef14", "ef21", "diana", "marina", "pp_marina")
_RATED = ("diana", "marina")  # the rules that take a rate


def compress(
    algorithm: FedAlgorithm, codec: str, feedback: str | None = None, rate: Any = None
) -> FedAlgorithm:
    """Returns an algorithm whose uploads are compressed.

    Args:
        algorithm: any algorithm; with ``feedback`` one whose uploads are changes of the model.
        codec: a name in :data:`CODECS`, with ``:NUMBER`` if it takes a number; "none" returns the
            algorithm, whatever the other options are.
        feedback: one of :data:`FEEDBACK`; None or "none": the clients keep no memory.
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
    built, variance = _built(codec, "compress")
    if feedback not in (None, "none", *FEEDBACK):
        raise ValueError(
            f"feedback is {feedback!r}; expected none, {', '.join(FEEDBACK)}"
            f"{did_you_mean(feedback, FEEDBACK)}"
        )
    if rate is not None and feedback not in _RATED:
        raise ValueError(f"feedback_rate is {rate}; expected --feedback diana or marina with it")
    if feedback in (None, "none"):
        if isinstance(built, StatefulCodec):
            raise ValueError(f"compress is {codec!r}; expected --feedback ef14 or ef21 with it")
        return compression.compressed(algorithm, built, near=compression.zeros)
    if feedback in ("ef14", "ef21"):
        return (ef14 if feedback == "ef14" else ef21)(algorithm, built)
    if not isinstance(built.kind, Unbiased) or not isinstance(built, Codec):
        raise ValueError(
            f"compress is {codec!r}; expected an unbiased codec with feedback {feedback}, for "
            "example random_k:0.1 or natural"
        )
    if feedback == "pp_marina":
        return pp_marina(algorithm, built)
    if rate is None and variance is None:
        raise ValueError(
            f"feedback_rate is None; expected a number in (0, 1] with compress {codec}, whose "
            "variance depends on the tensors"
        )
    rate = 1 / (1 + variance) if rate is None and variance is not None else rate
    return (diana if feedback == "diana" else marina)(algorithm, built, rate)


def compress_messages(algorithm: FedAlgorithm, codec: str) -> FedAlgorithm:
    """Returns an algorithm whose server sends compressed changes of its message (EF21-P).

    Args:
        algorithm: an algorithm whose message does not depend on the round.
        codec: as for :func:`compress`; "none" returns the algorithm.

    Raises:
        ValueError: an unknown name, or a number that is missing or out of range.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> compress_messages(fedavg(0.1), "sign:4")
        Traceback (most recent call last):
        ValueError: compress_down is 'sign:4'; expected sign without a number
    """
    if codec == "none":
        return algorithm
    return ef21_p(algorithm, _built(codec, "compress_down")[0])


def _built(codec: str, option: str) -> tuple[Codec | StatefulCodec, float | None]:
    """Returns the codec that an option names, and the bound of its variance."""
    name, number = _parse(codec, option)
    entry = CODECS[name]
    try:
        built = entry.build() if number is None else entry.build(number)
    except ValueError as error:
        raise ValueError(f"{option} is {codec!r}: {error}") from error
    return built, entry.variance(number or 0)


def _parse(codec: str, option: str) -> tuple[str, Number | None]:
    """Returns the name and the number of a codec."""
    name, colon, text = codec.partition(":")
    if name not in CODECS:
        raise ValueError(
            f"{option} is {codec!r}; expected none or one of {', '.join(CODECS)}"
            f"{did_you_mean(name, CODECS)}"
        )
    meaning = CODECS[name].number
    if meaning is None:
        if colon:
            raise ValueError(f"{option} is {codec!r}; expected {name} without a number")
        return name, None
    try:
        return name, int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"{option} is {codec!r}; expected {name}:NUMBER, the {meaning}") from None
