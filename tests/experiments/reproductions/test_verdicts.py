"""The rule of the verdicts: every verdict and every boundary of it."""

import math

import pytest

from experiments.reproductions.verdicts import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OTHER,
    RULE,
    SHORT,
    UNDECIDED,
    VERDICTS,
    Evidence,
    verdict,
)


def seeds(low, high, count=3):
    return Evidence("seeds", count, low, high)


def exact(margin):
    return Evidence("exact", 1, margin, margin)


def number(margin, count=3):
    return Evidence("number", count, margin, margin)


LONG, LESS = (1000, 1000), (999, 1000)
MISSING = "999 of 1,000 rounds or units of time"
NAN = math.nan
CASES = {
    "interval above 0": (seeds(0.1, 2), {}, HOLDS, ""),
    "interval below 0": (seeds(-2, -0.1), {}, FAILS, ""),
    "interval around 0": (seeds(-1, 2), {}, UNDECIDED, "the interval contains 0"),
    "interval from 0": (seeds(0, 2), {}, UNDECIDED, "the interval contains 0"),
    "interval to 0": (seeds(-2, 0), {}, UNDECIDED, "the interval contains 0"),
    "all seeds level": (seeds(0, 0), {}, UNDECIDED, "the interval contains 0"),
    "a single seed": (seeds(NAN, NAN, 1), {}, UNDECIDED, "a single seed"),
    "a single seed with an interval": (seeds(1, 2, 1), {}, UNDECIDED, "a single seed"),
    "no seeds kept": (seeds(NAN, NAN, 0), {}, UNDECIDED, "no interval over seeds"),
    "two seeds": (seeds(1, 2, 2), {}, UNDECIDED, "2 of 3 seeds"),
    "quick, four seeds": (seeds(1, 2, 4), {"least_seeds": 5}, UNDECIDED, "4 of 5 seeds"),
    "quick, five seeds": (seeds(1, 2, 5), {"least_seeds": 5}, HOLDS, ""),
    "a run has no number": (seeds(NAN, NAN), {}, UNDECIDED, "a run has no number"),
    "one part diverged, none fails": (seeds(NAN, 2), {}, UNDECIDED, "a run has no number"),
    "one part diverged, one fails": (seeds(NAN, -1), {}, FAILS, ""),
    "difference beats holds": (seeds(1, 2), {"differences": ["narrow"]}, OTHER, "narrow"),
    "difference beats fails": (seeds(-2, -1), {"differences": ["narrow"]}, OTHER, "narrow"),
    "difference beats a single seed": (
        seeds(NAN, NAN, 1), {"differences": ["narrow", "no decay"]}, OTHER, "narrow; no decay",
    ),
    "difference beats the tolerance": (exact(1), {"differences": ["rate"]}, OTHER, "rate"),
    "difference beats length": (
        seeds(1, 2), {"differences": ["narrow"], "length": LESS}, OTHER,
        f"narrow; {MISSING}",
    ),
    "at length": (seeds(1, 2), {"length": LONG}, HOLDS, ""),
    "longer": (seeds(-2, -1), {"length": (2000, 1000)}, FAILS, ""),
    "short": (seeds(1, 2), {"length": LESS}, SHORT, MISSING),
    "short, below 0": (seeds(-2, -1), {"length": LESS}, SHORT, MISSING),
    "undecided beats short": (seeds(-1, 2), {"length": LESS}, UNDECIDED, "the interval contains 0"),
    "exact, inside": (exact(0.1), {}, HOLDS, ""),
    "exact, at the tolerance": (exact(0), {}, HOLDS, ""),
    "exact, outside": (exact(-1e-9), {}, FAILS, ""),
    "exact, not a number": (exact(NAN), {}, UNDECIDED, "a run has no number"),
    "exact needs no seeds": (exact(1), {"least_seeds": 5}, HOLDS, ""),
    "number, at the tolerance": (number(0), {}, UNDECIDED, "the interval contains 0"),
    "number, outside": (number(-0.1), {}, FAILS, ""),
    "number, two seeds": (number(0.5, 2), {}, UNDECIDED, "2 of 3 seeds"),
    "number, single seed": (number(0.5, 1), {}, UNDECIDED, "a single seed"),
    "number, quick": (number(0.5), {"least_seeds": 5}, HOLDS, ""),
    "number, short": (number(0.5), {"length": LESS}, SHORT, MISSING),
    "nothing ran": (None, {}, NOT_RUN, ""),
    "nothing ran, with a difference": (None, {"differences": ["narrow"]}, NOT_RUN, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    evidence, options, expected, why = CASES[name]
    assert verdict(evidence, **options) == (expected, why)


def test_every_verdict_has_a_case_and_is_in_the_rule():
    assert {expected for *_, expected, _ in CASES.values()} == set(VERDICTS)
    assert all(f"**{name}**" in RULE for name in VERDICTS)


def test_evidence_is_read_from_a_row_of_texts():
    row = {"kind": "seeds", "seeds": "3", "low": "-0.5", "high": "1.25"}
    assert Evidence.of(row) == Evidence("seeds", 3, -0.5, 1.25)
    empty = Evidence.of(row | {"seeds": "", "low": "", "high": "nan"})
    assert empty[:2] == ("seeds", 0)
    assert math.isnan(empty.low)
    assert math.isnan(empty.high)
