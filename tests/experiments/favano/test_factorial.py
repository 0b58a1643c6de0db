"""FAVANO's table over all combinations of the open choices, with made-up accuracies."""

import dataclasses
import json

import pandas as pd
import pytest

from experiments.favano import factorial, mnist, mnist_report
from experiments.favano.factorial import DEFAULT, Choices, all_choices
from experiments.favano.mnist_report import PAPER
from experiments.favano.mnist_runs import SETTINGS

PLANTED = Choices("standardised", "deterministic", "strict", "unscaled")


class FakeRuns:
    """Accuracies that equal the paper's at the planted setting: half a point off per other choice.

    Seeds from 3 on are one point higher.
    """

    def __init__(self, options):
        self.options, self.tried = options, []

    def __call__(self, method, setting, seeds, *, changes, law="", **rest):
        assert not rest
        name = method.label.split(",")[0]
        self.tried.append((method.label, setting, changes.standardised, law))
        wrong = changes.standardised != (PLANTED.pixels == "standardised")
        wrong += name in ("QuAFL", "FAVANO") and law != PLANTED.law
        wrong += name == "FAVANO" and method.label != "FAVANO, deterministic alpha"
        wrong += name == "FedBuff" and not method.label.endswith("lr unscaled")
        # One of the four server rates is more accurate on the seed of its own.
        best = ("FedBuff, server rate 0.3", "FedBuff, server rate 0.03, lr unscaled")
        high = seeds[0] == 100 and method.label in best
        paper = PAPER[name][list(SETTINGS).index(setting)][0]
        value = (paper - 0.5 * wrong + (seeds[0] >= 3) + high) / 100
        return pd.DataFrame({"round": 1, "seed": list(seeds), "accuracy": value})


def test_every_cell_once():
    """FAVANO sees 2 x 3 x 4 settings less two of the literal law, whose means are the printed."""
    settings = list(all_choices())
    assert len(settings) == len(set(settings)) == 48
    assert settings[0] == DEFAULT == Choices("raw", "stochastic", "renewal", "scaled")
    seen = {method: {setting.seen_by(method) for setting in settings} for method in PAPER}
    assert {method: len(cells) for method, cells in seen.items()} == {
        "FedAvg": 2, "QuAFL": 8, "FedBuff": 4, "FAVANO": 22,
    }  # fmt: skip


def test_planted_setting_is_selected_and_reported_on_other_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(factorial, "Runs", FakeRuns)
    options = mnist.Options(part="factorial", output=tmp_path, work=tmp_path / "work")
    mnist.main(options)
    folder = options.folder
    selection = pd.read_csv(folder / "factorial-selection.csv")
    assert len(selection) == 48
    best = selection.sort_values("distance").iloc[0]
    assert tuple(best[list(Choices._fields)]) == PLANTED
    assert best["distance"] == pytest.approx(0, abs=1e-9)
    # In each column: FedAvg 1 wrong choice, QuAFL 2, FedBuff 2, FAVANO 3, half a point each.
    assert selection["distance"].iloc[0] == pytest.approx(3 * 0.5 * 8)
    shown = pd.read_csv(folder / "factorial.csv")
    assert len(shown) == 2 * 12
    fresh = mnist_report.distances(shown)
    # All twelve cells are a point high; the default's cells are at 1 - 0.5 x wrong choices.
    assert fresh["distance"].tolist() == pytest.approx([3 * (0.5 + 0 + 0 + 0.5), 12.0])
    # The cells of the nearest setting are the claims.
    lines = (folder / "factorial.md").read_text().splitlines()
    claims = [line for line in lines if "| Table 2, " in line]
    assert len(claims) == 12
    assert all("| number | 10 |" in line for line in claims)
    cells = pd.read_csv(folder / "factorial-cells.csv")
    assert set(cells["seed"]) == set(range(13))
    assert len(cells[cells["seed"] == 0]) == 36 * 3
    buffered = cells[cells["method"] == "FedBuff"]
    assert set(buffered["label"]) == {
        "FedBuff, server rate 0.3", "FedBuff, server rate 0.03, lr unscaled"
    }  # fmt: skip
    text = (folder / "factorial.md").read_text()
    assert "nearest 0.0, default 12.0" in text
    assert "those of 10 further seeds" in text
    assert json.loads((folder / "factorial.json").read_text())["seeds"] == 3
    assert (folder / "factorial.png").exists()


def test_another_machine_continues_from_the_table_of_cells(tmp_path, monkeypatch):
    made = []

    class Counted(FakeRuns):
        def __call__(self, method, setting, seeds, **options):
            made.append((method.label, setting, tuple(seeds)))
            return super().__call__(method, setting, seeds, **options)

    monkeypatch.setattr(factorial, "Runs", Counted)
    options = mnist.Options(part="factorial", output=tmp_path, work=tmp_path / "work")
    mnist.main(options)
    whole = {path.name: path.read_bytes() for path in options.folder.glob("*.csv")}
    rows = whole["factorial-cells.csv"].decode().splitlines(keepends=True)
    (options.folder / "factorial-cells.csv").write_text("".join(rows[: 1 + 3 * 40 + 2]))
    made.clear()
    mnist.main(options)
    # 40 cells and two of three seeds of another one are there; all cells of the first seeds come
    # before the two settings on other seeds: 2 x 12 less FedAvg's of equal pixels.
    again = [visit for visit in made if visit[2] == (0, 1, 2)]
    assert len(again) == 108 - 40
    assert {path.name: path.read_bytes() for path in options.folder.glob("*.csv")} == whole
    # Cells of another horizon are other cells.
    made.clear()
    mnist.main(dataclasses.replace(options, horizon=10.0))
    assert sum(visit[2] == (0, 1, 2) for visit in made) == 108
