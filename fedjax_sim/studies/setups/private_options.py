"""Texts of private runs: ``--privacy-clip`` and ``--privacy-noise-law``."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.types import Timeline
from fedjax_sim.wrappers import AdaptiveClip, Clip, min_separation, most_visits, num_draws, privacy

ADAPTIVE = "adaptive"
INDEPENDENT = "independent"
# Meaning of the number after the colon; True: it is required.
LAWS = {
    INDEPENDENT: ("", False),
    "tree": ("rounds per tree", False),
    "efficient_tree": ("rounds per tree", False),
    "banded": ("bands", True),
}


class LawText(NamedTuple):
    """A law of noise on the command line."""

    name: str
    number: int | None


def clip_of(clip: Any) -> Clip | AdaptiveClip:
    """Returns the clip of a hyper-parameter: a number, also a traced one, or a text.

    A text is a number, ``adaptive:QUANTILE``, ``adaptive:QUANTILE:INITIAL``, or a bound per part of
    the upload, ``NAME=BOUND:NAME=BOUND``.

    Raises:
        ValueError: another text, or a value out of range.

    Example:
        >>> clip_of(0.5), clip_of("0=0.5:1=2"), clip_of("adaptive:0.5:0.1").initial
        (0.5, {'0': 0.5, '1': 2.0}, 0.1)
    """
    if not isinstance(clip, str):
        return clip
    first, *rest = clip.split(":")
    try:
        if first == ADAPTIVE:
            quantile, *initial = map(float, rest)
            if len(initial) > 1:
                raise ValueError
            finite = np.isfinite([quantile, *initial]).all()
            built = privacy.adaptive_clip(quantile, **dict(zip(["initial"], initial, strict=False)))
        elif "=" in clip:
            pairs = [part.partition("=")[::2] for part in (first, *rest)]
            built = {name: float(bound) for name, bound in pairs}
            finite = len(built) == len(pairs) and all(0 < b < math.inf for b in built.values())
        else:
            built = float(clip)
            finite = 0 < built < math.inf
    except ValueError as error:
        reason = f": {error}" if str(error).startswith(("quantile", "initial")) else ""
        raise ValueError(_expected(clip) + reason) from None
    if not finite:
        raise ValueError(_expected(clip))
    return built


def _expected(clip: str) -> str:
    return (
        f"privacy_clip is {clip!r}; expected a positive number, adaptive:QUANTILE, "
        "adaptive:QUANTILE:INITIAL or NAME=BOUND:NAME=BOUND"
    )


def parse_law(law: str) -> LawText:
    """Returns the name and the number of a law of noise.

    Raises:
        ValueError: an unknown name, or a number that is missing, not expected or below 1.

    Example:
        >>> parse_law("tree"), parse_law("banded:4")
        (LawText(name='tree', number=None), LawText(name='banded', number=4))
    """
    name, colon, text = law.partition(":")
    if name not in LAWS:
        raise ValueError(
            f"privacy_noise_law is {law!r}; expected one of {', '.join(LAWS)}"
            f"{did_you_mean(name, LAWS)}"
        )
    meaning, required = LAWS[name]
    if not colon and not required:
        return LawText(name, None)
    if not meaning:
        raise ValueError(f"privacy_noise_law is {law!r}; expected {name} without a number")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"privacy_noise_law is {law!r}; expected {name}:NUMBER, the {meaning}")
    return LawText(name, int(text))


def law_of(law: str | None, timeline: Timeline) -> privacy.NoiseLaw | None:
    """Returns the law of noise for a concrete timeline; None for independent noise.

    A tree has by default the fewest rounds from one visit of a client to its next, or all rounds if
    no client returns.  Bands have the sensitivity of the timeline's visits.

    Raises:
        ValueError: as :func:`parse_law`; clients that return in the next round, or more bands than
            rounds.

    Example:
        >>> from fedjax_sim.timelines import cyclic
        >>> law_of("tree", cyclic(8, num_clients=8, cohort_size=2, num_steps=1)) is None
        False
    """
    name, number = parse_law(law or INDEPENDENT)
    if name == INDEPENDENT:
        return None
    rounds = num_draws(timeline)
    separation = min_separation(timeline) or rounds
    if separation < 2:
        raise ValueError(
            f"privacy_noise_law is {law!r}; expected a timeline in which no client takes part in "
            "two rounds in a row, for example --sampling cyclic"
        )
    if name != "banded":
        efficient = name == "efficient_tree"
        return privacy.tree_aggregation(number or separation, efficient=efficient)
    assert number is not None
    if number > rounds:
        raise ValueError(
            f"privacy_noise_law is {law!r}; expected at most {rounds} bands, the rounds"
        )
    return privacy.banded(
        _coefficients(rounds, number), rounds, separation=separation, visits=most_visits(timeline)
    )


@functools.cache
def _coefficients(num_rounds: int, bands: int) -> np.ndarray:
    return privacy.banded_coefficients(num_rounds, bands)
