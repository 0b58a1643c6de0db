"""The FedSWA experiments: their tables from made-up histories, and a round of one on real data."""

import dataclasses
import json
import math
import os
import pathlib

import numpy as np
import pandas as pd
import pytest

from experiments.fedswa import methods, runs, table2, table3, table4_rho, tables5_6
from experiments.fedswa.claims import Published, claims, gains, released_variant
from experiments.fedswa.comparison import column, comparison, report
from experiments.fedswa.problem import clients, held_out_rows
from experiments.fedswa.runs import tuned
from experiments.fedswa.settings import COLUMNS, SCALES, Options, describe, skewed
from experiments.harness.tables import ordering, unfinished
from fedjax_sim import datasets

CIFAR10 = ("cifar10", "cifar-10")


def history(accuracies):
    """Two seeds, evaluations at rounds 5 and 10; the losses are made up, too."""
    rows = []
    for method, finals in accuracies.items():
        for seed, final in enumerate(finals):
            for metric, values in (
                ("test/accuracy", (0.5 * final, final)),
                ("test/loss", (2.0, 1.5)),
                ("train/loss", (2.0, 1.0)),
            ):
                for done, value in zip((5, 10), values, strict=True):
                    rows.append((method, 0.1, seed, 0, done, metric, value))
    columns = ["method", "lr", "seed", "diverged_at", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def test_comparison_beside_the_paper():
    made = history({"FedAvg": (0.4, 0.5), "FedSWA": (0.5, 0.6), "FedMoSWA": (0.92, 0.98)})
    paper = {"FedAvg": Published(70.0), "FedSWA": Published(72.0, 9), "FedMoSWA": Published(71.0)}
    names = ["FedAvg", "FedSWA", "FedMoSWA"]
    table = comparison(made, names, dict.fromkeys(names, 0.1), paper, 90, Options())
    # Both evaluations, half of the final value and all of it, are in the last 50 rounds.
    assert table["accuracy"].tolist() == pytest.approx([33.75, 41.25, 71.25])
    assert table["last evaluation"].tolist() == pytest.approx([45, 55, 95])
    assert table["rank"].tolist() == [3, 2, 1]
    assert table["paper's rank"].tolist() == [3, 1, 2]
    # Student's t with one degree of freedom: 12.706 s / sqrt(2), s = 0.75 * 7.07.
    assert table["interval"][0] == "± 47.65"
    assert table["rounds to 90 %"].tolist() == ["not reached", "not reached", "10"]
    # FedAvg's mean is 0.3375: half of 0.92 and 0.98 is above.
    assert table["rounds to FedAvg"].tolist()[2] == "5"
    assert table["paper's rounds"].tolist() == ["not reached", "9", "not reached"]
    np.testing.assert_allclose(table["test - train loss"], 0.25)  # 0 and 1/2
    # Two of three pairs are in the paper's order.
    assert "Kendall's tau 0.33" in ordering(table["accuracy"], table["paper"])


def scored(values):
    """Scores of two seeds by method."""
    rows = [(m, seed, v) for m, of_seeds in values.items() for seed, v in enumerate(of_seeds)]
    return pd.DataFrame(rows, columns=["method", "seed", "score"])


def test_claims_have_the_paired_differences():
    """FedMoSWA is 30 and 40 points above FedAvg, 20 and 38 above FedSWA; variants do not count."""
    accuracy = {"FedAvg": (0.4, 0.5), "FedSWA": (0.5, 0.52), "FedMoSWA": (0.7, 0.9)}
    late = scored(accuracy | {"FedSWA-program": (1.0, 1.0)})
    gaps = scored({"FedAvg": (0.3, 0.5), "FedSWA": (0.1, 0.4), "FedMoSWA": (0.4, 0.6)})
    first, second, smaller, larger = claims(late, gaps)
    assert [c.holds for c in (first, second, smaller, larger)] == [True, True, True, False]
    assert first.text == "FedMoSWA is more accurate than FedAvg, FedSWA"
    np.testing.assert_allclose(first.margins, [[30, 40], [20, 38]], rtol=1e-12)
    np.testing.assert_allclose(second.margins, [[10, 2]], rtol=1e-12)
    np.testing.assert_allclose(larger.margins, [[-0.1, -0.1]], rtol=1e-12)
    worse = scored({name: values[::-1] for name, values in accuracy.items()})
    reverse = claims(worse.assign(score=1 - worse["score"]), gaps)
    assert [claim.holds for claim in reverse[:2]] == [False, False]


def test_one_noisy_evaluation_does_not_decide():
    """A run that drops at its last evaluation keeps its rank; evaluations before the last 50
    rounds do not count."""
    made = history({"FedAvg": (0.6,), "FedSWA": (0.7,)})
    late = pd.concat([made.assign(round=made["round"] + 100), made.assign(value=0.0)])
    drop = (late["method"] == "FedSWA") & (late["round"] == 110)
    late.loc[drop & (late["metric"] == "test/accuracy"), "value"] = 0.5
    lrs = {"FedAvg": 0.1, "FedSWA": 0.03}
    table = comparison(late, list(lrs), lrs, {}, 90, Options())
    assert table["accuracy"].tolist() == pytest.approx([45, 42.5])
    assert table["last evaluation"].tolist() == pytest.approx([60, 50])
    # 0.03 is the least candidate of the pilot.
    assert table["lr in its grid"].tolist() == ["", "at the edge"]
    setting = skewed(COLUMNS["cifar10-lenet5"])
    text = report(setting, late, list(lrs), lrs, {}, Options()).text
    assert "at the edge" in text
    assert "in the last 50 rounds" in text
    assert (
        "lr in its grid"
        not in report(setting, late, list(lrs), lrs, {}, Options(pilot_rounds=0)).text
    )


def test_partial_results_say_what_is_missing():
    made = history({"FedAvg": (0.4, 0.5), "FedSWA": (0.5,)})
    names = ["FedAvg", "FedSWA", "FedMo"]
    text = report(
        skewed(COLUMNS["cifar10-lenet5"]), made, names, dict.fromkeys(names, 0.1), {},
        Options(seeds=2, pilot_rounds=0),
    ).text  # fmt: skip
    assert "Not finished yet: FedSWA has 1 seed of 2; FedMo has none." in text
    assert "| FedSWA | 0.1 |" in text
    assert "| FedMo |" not in text
    assert unfinished(made, ["FedAvg"], 2) == ""


@pytest.mark.slow
def test_runs_of_an_earlier_report_are_not_repeated(tmp_path, monkeypatch):
    """They are read from its CSV file, if it is of the same setting and of as many rounds."""
    made = []

    def simulated(setting, configuration, seed, options):
        made.append((configuration["method"], seed))
        runs.run_folder(setting, configuration, seed, options).mkdir(parents=True)
        frame = history({configuration["method"]: (0.5 + 0.1 * seed,)}).assign(seed=seed)
        frame = frame.drop(columns=["method", "lr"])
        return type("Result", (), {"to_frame": staticmethod(lambda: frame)})

    monkeypatch.setattr(runs, "simulated", simulated)
    options = Options(
        rounds=10, pilot_rounds=0, checkpoints=True, work=tmp_path / "first", output=tmp_path
    )
    setting = skewed(COLUMNS["cifar10-lenet5"])
    names = ("FedAvg", "FedSWA")
    column("table2", setting, names[:1], {}, options)
    elsewhere = dataclasses.replace(options, work=tmp_path / "second", seeds=2)
    column("table2", setting, names, {}, elsewhere)
    assert made == [("FedAvg", 0), ("FedAvg", 1), ("FedSWA", 0), ("FedSWA", 1)]
    table = pd.read_csv(tmp_path / "fedswa" / "table2-cpu-10" / f"{setting.name}-lr0.1.csv")
    late = table[table["round"] == 10].set_index(["method", "seed"])["test/accuracy"]
    assert late.to_dict() == {(name, seed): 0.5 + 0.1 * seed for name in names for seed in (0, 1)}
    made.clear()
    column("table2", setting, ("FedMo",), {}, options)  # the report keeps what this does not name
    assert made == [("FedMo", 0)]
    text = (tmp_path / "fedswa" / "table2-cpu-10" / f"{setting.name}-lr0.1.md").read_text()
    assert "2 seeds" in text
    assert "Not finished yet: FedMo has 1 seed of 2." in text
    means = [line.split(" | ")[2] for line in text.splitlines() if " | 0.1 | " in line]
    assert means == ["41.25", "41.25", "37.50"]  # half of 50 and 60, and all of them; of 50
    made.clear()
    column("table2", setting, names, {}, dataclasses.replace(elsewhere, finished=True, seeds=3))
    assert not made
    other = dataclasses.replace(elsewhere, work=tmp_path / "third", pilot_on="test")
    column("table2", setting, names[:1], {}, other)
    assert made == [("FedAvg", 0), ("FedAvg", 1)]


def test_gains_are_paired_by_seed_and_split_into_method_and_program():
    rows = {"FedAvg": (0.40, 0.50), "FedSWA": (0.41, 0.50), "FedSWA-program": (0.42,)}
    late = pd.DataFrame(
        [(m, seed, value) for m, values in rows.items() for seed, value in enumerate(values)],
        columns=["method", "seed", "score"],
    )
    paper = {"FedAvg": Published(70.0), "FedSWA": Published(72.0)}
    table = gains(late, paper)
    assert table["method"].tolist() == ["FedSWA", "FedSWA-program"]
    assert table["points over FedAvg"].tolist() == ["+0.50", "+2.00"]
    assert table["seeds"].tolist() == [2, 1]
    assert table["paper"].tolist() == ["+2.00", ""]
    # Differences 1 and 0: Student's t with one degree of freedom, 12.706 / 2.
    assert table["interval"].tolist() == ["± 6.35", ""]
    assert len(gains(late[late["method"] != "FedAvg"], paper)) == 0
    # 3 - 1 of 2 points.
    line = released_variant({"FedAvg": 60.0, "FedSWA": 61.0, "FedSWA-program": 63.0}, paper)
    assert "gains +1.00 points and the released one +3.00 points" in line
    assert "from the paper's method to the released one is +2.00 points." in line
    assert released_variant({"FedAvg": 60.0, "FedSWA": 61.0}, paper) == ""


def test_held_out_images_belong_to_no_client():
    """A tenth of the training images, always the same; the rest stays with its clients."""
    rows = held_out_rows(50)
    assert len(set(rows)) == 5
    np.testing.assert_array_equal(rows, held_out_rows(50))
    images = {"x": np.arange(5000), "y": np.arange(5000) % 10}
    dataset = datasets.Dataset("made up", images, images, 10, None, None, None, "files")
    setting = skewed(COLUMNS["cifar10-lenet5"])
    everything, part = (
        clients(setting, SCALES["cpu"], dataset, without) for without in (None, held_out_rows(5000))
    )
    assert not set(part.examples["x"]) & set(held_out_rows(5000))
    for i in range(100):
        owned = everything.client(i)["x"]
        expected = owned[~np.isin(owned, held_out_rows(5000))]
        np.testing.assert_array_equal(part.client(i)["x"], expected)


@pytest.mark.parametrize(("on", "chosen"), [("held-out", 0.3), ("test", 0.03)])
def test_rates_are_chosen_by_the_named_accuracy(monkeypatch, on, chosen):
    """Held-out images: the mean of the last third of the pilot; test: the last evaluation."""

    def run(setting, configurations, options, directory, *, held_out, **kwargs):
        # Evaluations at rounds 10, 20 and 30 for lr 0.03 and 0.3.
        values = {0.03: (0.9, 0.1, 0.5), 0.3: (0.1, 0.4, 0.4)}
        metric = "held_out/accuracy" if held_out else "test/accuracy"
        assert held_out == ("held-out" in directory.name)
        rows = [
            (c["method"], c["lr"], 0, 0, done, metric, value)
            for c in configurations
            for done, value in zip((10, 25, 30), values[c["lr"]], strict=True)
        ]
        columns = ["method", "lr", "seed", "diverged_at", "round", "metric", "value"]
        return pd.DataFrame(rows, columns=columns)

    monkeypatch.setattr(runs, "run", run)
    options = Options(lrs=(0.03, 0.3), pilot_on=on)
    assert tuned(skewed(COLUMNS["cifar10-lenet5"]), ["FedAvg"], options) == {"FedAvg": chosen}


def test_diverged_methods_have_no_accuracy_and_the_last_rank():
    made = history({"FedAvg": (0.4, 0.5), "MoFedSAM": (0.3, 0.3)})
    made.loc[made["method"] == "MoFedSAM", "diverged_at"] = 3
    lrs = {"FedAvg": 0.1, "MoFedSAM": 0.3}
    table = comparison(made, list(lrs), lrs, {}, 50, Options())
    assert math.isnan(table["accuracy"][1])
    assert table["rank"].tolist() == [1, 2]


def test_published_tables_are_complete():
    """Numbers of the paper that are quoted elsewhere in it, too."""
    place = list(COLUMNS).index("cifar100-resnet18")
    assert all(len(row) == len(COLUMNS) for row in table2.PAPER.values())
    for method, expected in tables5_6.TABLE6.items():
        if method in table2.PAPER:
            assert table2.PAPER[method][place].accuracy == expected.accuracy
    third = list(table3.COLUMNS).index("cifar100-resnet18-dirichlet0.6")
    for method in ("FedSWA", "FedMoSWA", "FedACG"):
        assert table2.PAPER[method][place] == table3.PAPER[method][third]
    assert table4_rho.PAPER["FedMoSWA"][0] == 67.9
    assert set(table2.PAPER) <= set(methods.METHODS)
    assert set(table3.PAPER) <= set(methods.METHODS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"lrs": (0.1, -1.0)}, "lrs is"),
        ({"methods": ("FedSGD",)}, r"methods is \('FedSGD',\); expected some of FedAvg"),
        ({"columns": ("mnist",)}, r"columns is \('mnist',\); expected some of cifar10-lenet5"),
    ],
)
def test_refuses_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        table2.Table2(**changes)


def test_every_output_says_the_scale():
    setting = skewed(COLUMNS["cifar10-lenet5"])
    small = describe(setting, Options(scale="cpu"))
    assert "6-16-120-84 (authors' program: 64-64-384-192)" in small
    assert "200 of the paper's 1000 rounds" in small
    full = describe(setting, Options(scale="paper", seeds=3))
    assert "1000 of the paper's 1000 rounds, 100 of 100 clients" in full
    assert "(paper:" not in full
    wide = describe(setting, Options(scale="cpu-wide", pilot_rounds=0))
    assert "LeNet-5 32-32-192-96 (authors' program: 64-64-384-192)" in wide
    assert wide.endswith("lr 0.1 for all methods")
    assert "rates by the held-out accuracy after a pilot of 30 rounds" in full


def test_compressed_decay_ends_where_the_papers_does():
    setting = skewed(COLUMNS["cifar10-lenet5"])
    plain, compressed = (Options(compressed=flag) for flag in (False, True))
    assert plain.lr_decay(setting) == 0.998
    np.testing.assert_allclose(compressed.lr_decay(setting) ** 200, 0.998**1000, rtol=1e-12)
    assert "rates times 0.99 per round (paper: 0.998)" in describe(setting, compressed)
    assert compressed.label == "cpu-compressed"


@pytest.mark.slow
def test_a_round_on_real_data(tmp_path):
    root = os.environ.get("FEDJAX_SIM_DATA")
    if root is None or not any((pathlib.Path(root) / name).is_dir() for name in CIFAR10):
        pytest.skip("FEDJAX_SIM_DATA names no folder with CIFAR-10")
    options = table2.Table2(
        scale="smoke",
        rounds=1,
        methods=("FedAvg",),
        pilot_rounds=0,
        work=tmp_path / "work",
        output=tmp_path / "out",
    )
    table2.main(options)
    (folder,) = (tmp_path / "out" / "fedswa").iterdir()
    assert folder.name == "table2-smoke-1"
    name = "cifar10-lenet5-dirichlet0.6-lr0.1"
    assert {path.name for path in folder.iterdir()} == {
        f"{name}{end}" for end in (".csv", ".json", ".md", ".png")
    }
    saved = pd.read_csv(folder / f"{name}.csv")
    assert {"test/accuracy", "test/loss", "train/loss"} < set(saved.columns)
    assert "1 of the paper's 1000 rounds, 10 of 100 clients" in (folder / f"{name}.md").read_text()
    facts = json.loads((folder / f"{name}.json").read_text())
    assert facts["command"].startswith("python -m ")
    assert facts["environment"]["versions"]["jax"]
    before = (tmp_path / "work").stat().st_mtime
    table2.main(dataclasses.replace(options))  # nothing is left to run
    assert (tmp_path / "work").stat().st_mtime == before
    pd.testing.assert_frame_equal(pd.read_csv(folder / f"{name}.csv"), saved)
