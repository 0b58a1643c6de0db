"""Pages of the questions: current, complete, one figure each."""

import json

import pandas as pd
import pytest

from experiments.harness import Report
from experiments.questions import __main__ as script
from experiments.questions.page import Answer, Page, Study, finished, index, studies, text


def study(name="rain"):
    def page(tables, facts):
        mean = tables[""]["loss"].mean()
        answers = [Answer("less", f"{mean:g}", True), Answer("more", "1", False)]
        return Page(f"The loss is {mean:g}.", "a loss of 1", "Losses.", answers, "2 seeds.")

    return Study(name, "Rain", "Does it rain?", lambda tables, facts: (Report("Rain"), {}), page)


@pytest.fixture
def results(tmp_path):
    """Files of one finished study."""
    folder = tmp_path / "rain"
    folder.mkdir()
    pd.DataFrame({"loss": [0.25, 0.5]}).to_csv(folder / "rain.csv", index=False)
    (folder / "rain.json").write_text(json.dumps({"command": "python -m experiments.x"}))
    return tmp_path


def test_pages_have_the_numbers_of_the_files(results):
    every = [study(), study("unfinished")]
    done = finished(every, results)
    assert list(done) == ["rain"]
    whole = text(every[0], done["rain"], results)
    assert "**Found.** The loss is 0.375." in whole
    assert "**What would refute it.** a loss of 1" in whole
    assert "| more | 1 | **no** |" in whole
    assert "`python -m experiments.x`" in whole
    assert whole.count("![") == 1
    assert "[Rain](questions/rain.md) | The loss is 0.375." in index(every, done)
    assert "No study has results yet." in index(every, {})


@pytest.fixture(scope="module")
def committed():
    """The pages of the committed results, computed once."""
    return finished(studies())


def test_committed_pages_are_current(committed, monkeypatch):
    monkeypatch.setattr(script, "finished", lambda every: committed)
    script.main(script.Options(check=True))


def test_every_finished_study_has_a_notebook_and_fits_on_a_screen(committed):
    for name, page in committed.items():
        assert (script.DOCS.parent / "notebooks" / f"{name}.ipynb").exists()
        assert len(page.found) < 400, name
        assert page.answers
        assert page.refuted_by
