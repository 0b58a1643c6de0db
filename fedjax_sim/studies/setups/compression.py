"""Options of compression: the codec of the uploads, the clients' memory, the codec of messages."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import pydantic

from fedjax_sim import compression
from fedjax_sim.compression import Codec, StatefulCodec, Unbiased
from fedjax_sim.studies.setups.fields import Count, PositiveProbability, Range, group
from fedjax_sim.types import FedAlgorithm
from fedjax_sim.wrappers import diana, ef14, ef21, ef21_p, marina, pp_marina

# The fraction 1 would be all entries, and the number 1 one of them.
Kept = Annotated[
    float,
    Range(
        "a fraction of the entries, below 1, or their number, a whole one",
        lambda x: 0 < x < 1 or (x >= 1 and math.isfinite(x) and x == int(x)),
    ),
]


@group
class NoCodec:
    """Tensors as they are."""

    kind: Literal["none"] = "none"


@group
class TopK:
    """The largest entries."""

    keep: Kept = 0.1
    """Fraction of the entries of a tensor, if below 1, else their number."""
    kind: Literal["top_k"] = "top_k"


@group
class RandomK:
    """Random entries."""

    keep: Kept = 0.1
    """Fraction of the entries of a tensor, if below 1, else their number."""
    kind: Literal["random_k"] = "random_k"


@group
class Sign:
    """Signs and the mean magnitude."""

    kind: Literal["sign"] = "sign"


@group
class NaturalPowers:
    """Powers of two."""

    kind: Literal["natural"] = "natural"


@group
class PowerSgd:
    """Products of thin matrices."""

    rank: Count = 2
    """Rank of the products."""
    kind: Literal["power_sgd"] = "power_sgd"


@group
class Qsgd:
    """Levels of the norm."""

    levels: Count = 8
    """Number of levels."""
    kind: Literal["qsgd"] = "qsgd"


@group
class Uniform:
    """Equidistant values."""

    values: Count = 16
    """Number of values."""
    kind: Literal["uniform"] = "uniform"


@group
class Luq:
    """Powers of two below the largest entry."""

    powers: Count = 6
    """Number of powers."""
    kind: Literal["luq"] = "luq"


CodecOptions = Annotated[
    NoCodec | TopK | RandomK | Sign | NaturalPowers | PowerSgd | Qsgd | Uniform | Luq,
    pydantic.Field(discriminator="kind"),
]


@group
class NoFeedback:
    """The clients keep no memory of what compression lost."""

    kind: Literal["none"] = "none"


@group
class Ef14:
    """Error feedback."""

    kind: Literal["ef14"] = "ef14"


@group
class Ef21:
    """Error feedback that sends changes of gradients."""

    kind: Literal["ef21"] = "ef21"


@group
class Diana:
    """Shifts that learn the uploads, for unbiased codecs."""

    rate: PositiveProbability | None = None
    """Rate of the shifts; default: 1 / (1 + omega) for a codec of variance omega."""
    kind: Literal["diana"] = "diana"


@group
class Marina:
    """Changes of gradients, sometimes whole ones, for unbiased codecs; needs sampling:full."""

    rate: PositiveProbability | None = None
    """Probability of whole uploads; default: 1 / (1 + omega) for a codec of variance omega."""
    kind: Literal["marina"] = "marina"


@group
class PpMarina:
    """MARINA of a part of the clients; needs sampling:full-or-uniform."""

    kind: Literal["pp_marina"] = "pp_marina"


Feedback = Annotated[
    NoFeedback | Ef14 | Ef21 | Diana | Marina | PpMarina, pydantic.Field(discriminator="kind")
]


def compressed(
    algorithm: FedAlgorithm, codec: CodecOptions, feedback: Feedback, down: CodecOptions
) -> FedAlgorithm:
    """Returns an algorithm with compressed uploads and messages."""
    if not isinstance(down, NoCodec):
        algorithm = ef21_p(algorithm, _built("compress_down", down))
    if isinstance(codec, NoCodec):
        if not isinstance(feedback, NoFeedback):
            raise ValueError(f"feedback is {feedback.kind!r}; expected --compress with it")
        return algorithm
    built = _built("compress", codec)
    if isinstance(feedback, NoFeedback):
        if isinstance(built, StatefulCodec):
            raise ValueError(f"compress is {codec.kind!r}; expected feedback ef14 or ef21 with it")
        return compression.compressed(algorithm, built, near=compression.zeros)
    if isinstance(feedback, Ef14 | Ef21):
        return (ef14 if isinstance(feedback, Ef14) else ef21)(algorithm, built)
    if not isinstance(built.kind, Unbiased) or not isinstance(built, Codec):
        raise ValueError(
            f"compress is {codec.kind!r}; expected an unbiased codec with feedback "
            f"{feedback.kind}, for example random_k or natural"
        )
    if isinstance(feedback, PpMarina):
        return pp_marina(algorithm, built)
    variance = _variance(codec)
    default = None if variance is None else 1 / (1 + variance)
    rate = default if feedback.rate is None else feedback.rate
    if rate is None:
        raise ValueError(
            f"feedback.rate is None; expected a number in (0, 1] with compress {codec.kind}, whose "
            "variance depends on the tensors"
        )
    return (diana if isinstance(feedback, Diana) else marina)(algorithm, built, rate)


# Kind -> the codec of its only number, if it has one.
_CODECS: dict[str, Callable[..., Codec | StatefulCodec]] = {
    "top_k": compression.top_k,
    "random_k": compression.random_k,
    "sign": compression.scaled_sign,
    "natural": compression.natural,
    "power_sgd": compression.power_sgd,
    "qsgd": compression.qsgd,
    "uniform": compression.uniform,
    "luq": compression.luq_codec,
}


def _built(option: str, codec: CodecOptions) -> Codec | StatefulCodec:
    numbers = [value for name, value in vars(codec).items() if name != "kind"]
    if isinstance(codec, TopK | RandomK) and codec.keep >= 1:
        numbers = [int(codec.keep)]  # a number of entries, no fraction
    try:
        return _CODECS[codec.kind](*numbers)
    except ValueError as error:
        raise ValueError(f"{option} is {codec.kind!r}: {error}") from error


def _variance(codec: CodecOptions) -> float | None:
    """Returns the bound omega of a codec's variance for tensors of every size, if there is one."""
    if isinstance(codec, RandomK) and codec.keep < 1:
        return 1 / codec.keep - 1
    return 1 / 8 if isinstance(codec, NaturalPowers) else None
