"""The tables of docs/coming_from: every number of ours is the value of the call beside it.

Theirs are outputs of experiments/porting/theirs/*.sh, which install the other packages.
"""

import pathlib
import runpy

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parent.parent.parent / "docs" / "coming_from"
PAGES = runpy.run_path(str(FOLDER / "pages.py"))
ROWS = PAGES["rows"]()
SIMULATORS = sorted({row["simulator"] for row in ROWS})
SLOW = {"dirichlet", "unbalanced", "qsgd"}  # many random draws
# Pages show five digits; float32 errs by less.
SHOWN = {"rtol": 5e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def parts():
    return runpy.run_path(str(FOLDER / "parts.py"))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            marks=[pytest.mark.slow] if row["id"] in SLOW else [],
            id=f"{row['simulator']}-{row['id']}",
        )
        for row in ROWS
    ],
)
def test_row(row, parts):
    np.testing.assert_allclose(eval(row["call"], parts), row["ours"], **SHOWN)
    if "get" in row:
        # Means over other random draws have no common digits, but one law.
        tolerance = {"rtol": 0, "atol": row["within"]} if "within" in row else SHOWN
        np.testing.assert_allclose(eval(row["get"], parts), row["theirs"], **tolerance)


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_page_has_the_present_table(simulator):
    text = (FOLDER / f"{simulator}.md").read_text()
    assert PAGES["table"](simulator) in text


def test_rows_are_named_once_and_say_where_they_differ():
    names = [(row["simulator"], row["id"]) for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert row["theirs"] == row["ours"] or "get" in row or "note" in row, row["id"]


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_a_script_fills_theirs(simulator):
    script = FOLDER.parent.parent / "experiments" / "porting" / "theirs" / f"{simulator}.sh"
    text = script.read_text()
    for row in ROWS:
        if row["simulator"] == simulator:
            assert (f'"{row["id"]}":' in text) != bool(row.get("read")), row["id"]
