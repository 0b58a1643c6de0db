"""The language of the experiment by hand, its tables, and a short run."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.language import diloco
from experiments.language.diloco_report import best, claims, curves, summary
from experiments.language.redraw import redraw
from experiments.language.words import Language, language


def test_text_and_entropy():
    """Two words: "a" is followed by "a" or "bcd" alike, "bcd" by "a" always.

    The chain is at "a" two thirds of the time, so a word has 2/3 log 2 nats, and its mean length
    with the space is (2 * 2 + 4) / 3.
    """
    tongue = Language(("a", "bcd"), np.array([[0, 1], [0, 0]]), np.array([0.5, 0.5]))
    assert tongue.entropy() == pytest.approx(2 / 3 * np.log(2) / (8 / 3), rel=1e-12)
    text = tongue.text(2000, seed=0)
    assert len(text) == 2000
    words = text.split(" ")[:-1]
    assert set(words) == {"a", "bcd"}
    assert "bcd bcd" not in text
    # About 750 words; three standard deviations of their share are 0.05.
    assert words.count("a") / len(words) == pytest.approx(2 / 3, abs=0.05)


def test_languages_are_drawn_once():
    tongue = language()
    assert tongue.text(100, seed=1) == language().text(100, seed=1)
    assert len(set(tongue.words)) == 200
    assert all(len(set(row)) == 8 for row in tongue.successors)
    assert tongue.probabilities.sum() == pytest.approx(1)
    # No chain is more uncertain than its 8 branches, nor are its shortest words.
    weights = tongue.probabilities
    assert 0 < tongue.entropy() < -(weights * np.log(weights)).sum() / 3


def frame():
    """Data-parallel runs of one and two workers, and DiLoCo with two rates; loss at steps 2, 4."""
    rows = []
    for method, workers, steps, rate, last in [
        ("data-parallel", 1, 1, np.nan, 0.9), ("data-parallel", 2, 1, np.nan, 0.5),
        ("DiLoCo", 2, 1, 0.5, 0.6), ("DiLoCo", 2, 1, 1.0, 0.51),
        ("DiLoCo", 2, 2, 0.5, 0.7), ("DiLoCo", 2, 2, 1.0, 0.8),
    ]:  # fmt: skip
        for done, loss in ((2, 1.0), (4, last)):
            rows += [
                (method, workers, steps, rate, 0, done // steps, metric, value)
                for metric, value in (("loss", loss), ("accuracy", 0.1))
            ]
    names = [
        "method", "workers", "local_steps", "outer_rate", "seed", "round", "metric", "value",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=names)


def test_tables_and_claims():
    table = curves(frame(), tokens=10, parameters=500_000)
    last = table[table["steps"] == 4].groupby(["method", "workers", "local_steps"])
    assert last.get_group(("DiLoCo", 2, 2))["tokens"].tolist() == [80, 80]
    assert last.get_group(("DiLoCo", 2, 2))["megabytes"].tolist() == [4.0, 4.0]
    assert last.get_group(("data-parallel", 1, 1))["megabytes"].tolist() == [8.0]
    ends = summary(table)
    assert len(ends) == 6
    chosen = best(ends)
    assert chosen["loss"].tolist() == [0.9, 0.5, 0.51, 0.7]
    assert [claim.holds for claim in claims(ends)] == [True, True, True]
    worse = ends.assign(loss=ends["loss"] + 0.3 * (ends["method"] == "DiLoCo"))
    assert [claim.holds for claim in claims(worse)] == [False, True, False]


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path):
    options = diloco.Options(
        steps=4, local_steps=(2,), workers=(1, 2), outer_rates=(0.5, 1.0), batch_size=2, context=8,
        width=8, depth=1, eval_steps=2, test_windows=4, characters=2000, work=tmp_path / "work",
        output=tmp_path,
    )  # fmt: skip
    diloco.main(options)
    folder = tmp_path / "language" / "diloco"
    text = (folder / "diloco.md").read_text()
    assert text.count("| DiLoCo | 2 | 2 |") == 3  # the best rate, and both
    assert text.count("| at the edge |") == 2  # with one worker and with two
    (folder / "diloco.md").unlink()
    redraw(tmp_path / "language")
    assert (folder / "diloco.md").read_text() == text
    assert (folder / "rates.png").exists()


def test_messages():
    with pytest.raises(ValueError, match=r"steps is 2000; expected a multiple of 7"):
        diloco.Options(local_steps=(7,))
    with pytest.raises(ValueError, match=r"workers is \(\); expected positive numbers"):
        dataclasses.replace(diloco.Options(), workers=())
    with pytest.raises(ValueError, match=r"lr is -1.0; expected a positive number"):
        diloco.Options(lr=-1.0)
    with pytest.raises(ValueError, match="eval_steps is 0; expected at least 1"):
        diloco.Options(eval_steps=0)
