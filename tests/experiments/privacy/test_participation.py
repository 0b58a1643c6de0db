"""The table of participation rules: our column is computed again, and the page has the table."""

import pathlib

import pytest

from experiments.privacy.participation import RULES, TABLE, guarantee, table, theirs

PAGE = pathlib.Path(__file__).parents[3] / "docs/howto/privacy_mechanisms.md"
SAMPLED = {("balls_in_bins", "banded"), ("b_min_sep", "independent"), ("b_min_sep", "banded")}


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            cell,
            id=f"{cell.rule}-{cell.law}",
            marks=[pytest.mark.slow] if cell[:2] in SAMPLED or cell.law == "banded" else [],
        )
        for cell in TABLE
    ],
)
def test_our_epsilons(cell):
    if cell.epsilon is None:
        with pytest.raises(ValueError, match="timeline has"):
            guarantee(cell.rule, cell.law)
        return
    found, other = guarantee(cell.rule, cell.law), theirs()[cell[:2]]
    # Recorded with three decimals, computed at intervals of 1e-3 of the losses.
    assert found.epsilon == pytest.approx(cell.epsilon, abs=2e-3)
    if cell[:2] in SAMPLED:
        # Ours has an error bound, so it must be above the estimate from as many losses.
        assert found.accountant == "monte_carlo"
        assert other.epsilon < cell.epsilon
    else:
        assert cell.epsilon <= other.epsilon + 1e-3


def test_every_rule_meets_every_law_and_the_page_shows_it():
    pairs = {cell[:2] for cell in TABLE}
    assert pairs == {(rule, law) for rule in RULES for law in ("independent", "tree", "banded")}
    assert table() in PAGE.read_text()
    assert set(theirs()) == {cell[:2] for cell in TABLE if cell.epsilon is not None}
