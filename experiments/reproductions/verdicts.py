"""The rule that gives every claim of a paper its verdict."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.harness.tables import EXACT, NUMBER

HOLDS, FAILS, OTHER = "holds", "does not hold", "other setting"
UNDECIDED, SHORT, NOT_RUN = "undecided", "not at the paper's length", "not run"
VERDICTS = (HOLDS, FAILS, OTHER, UNDECIDED, SHORT, NOT_RUN)
LEAST, LEAST_QUICK = 3, 5  # seeds; of runs that take less than ten minutes

RULE = f"""A claim gets the first of these verdicts that applies.

1. **{NOT_RUN}**: there is no result.
2. **{OTHER}**: a setting of the paper or of its program is known to differ from ours, whichever way
   our numbers point. The difference is named.
3. **{UNDECIDED}**: the 95 % interval of the paired differences over seeds contains 0, or there are
   fewer than {LEAST} seeds ({LEAST_QUICK} where a run takes less than ten minutes), or no interval.
   A table's number needs {LEAST} seeds, and its interval may not contain an end of the tolerance.
   Formulas, theorems and deterministic runs need none.
4. **{SHORT}**: decided, but after fewer rounds or less time than the paper's.
5. **{HOLDS}** or **{FAILS}**: the interval lies on the claim's side of 0, or on the other side. A
   formula, theorem or deterministic run holds within a tolerance; a table's number if the
   interval of ours - paper lies within one. If a claim has several parts ("better than A and
   B"), all of them have to hold, and it does not hold as soon as one does not.

That the cause of a difference was not found is no reason for a verdict."""


class Evidence(NamedTuple):
    """What a report says about a claim: 95 % interval of the margin, positive where it holds."""

    kind: str  # of experiments.harness.tables
    seeds: int
    low: float
    high: float

    @classmethod
    def of(cls, row: Mapping[str, str]) -> "Evidence":
        """The evidence in a row of a report's table of claims."""
        low, high = (float(row[name] or "nan") for name in ("low", "high"))
        return cls(row["kind"], int(row["seeds"] or 0), low, high)


def verdict(
    evidence: Evidence | None,
    differences: Sequence[str] = (),
    length: tuple[float, float] | None = None,
    least_seeds: int = LEAST,
) -> tuple[str, str]:
    """The verdict and what decided it.

    Args:
        evidence: None if nothing was run.
        differences: known differences from the paper's setting.
        length: of our runs and of the paper's; None if the claim has none.
    """
    if evidence is None:
        return NOT_RUN, ""
    kind, seeds, low, high = evidence
    ran, paper = length or (0, 0)
    short = ran < paper
    missing = f"{ran:,g} of {paper:,g} rounds or units of time" * short
    if differences:
        return OTHER, "; ".join(filter(None, [*differences, missing]))
    if kind != EXACT:
        least = LEAST if kind == NUMBER else least_seeds
        few = "a single seed" if seeds == 1 else f"{seeds} of {least} seeds"
        if seeds < least:
            return UNDECIDED, few if seeds else "no interval over seeds"
    if math.isnan(low) and not high < 0:
        return UNDECIDED, "a run has no number"
    if kind != EXACT and low <= 0 <= high:
        return UNDECIDED, "the interval contains 0"
    if short:
        return SHORT, missing
    return (HOLDS if low >= 0 else FAILS), ""
