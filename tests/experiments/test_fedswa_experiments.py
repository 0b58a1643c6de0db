"""The FedSWA experiments: their tables from made-up histories, and a round of one on real data."""

import dataclasses
import json
import math
import os
import pathlib

import numpy as np
import pandas as pd
import pytest

from experiments import (
    fedswa_common,
    fedswa_table2,
    fedswa_table3,
    fedswa_table4_rho,
    fedswa_table5_6_ablation,
)
from experiments.fedswa_report import Published, agreement, comparison

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
    methods = ["FedAvg", "FedSWA", "FedMoSWA"]
    table = comparison(made, methods, dict.fromkeys(methods, 0.1), paper, target=90)
    assert table["accuracy"].tolist() == pytest.approx([45, 55, 95])
    assert table["rank"].tolist() == [3, 2, 1]
    assert table["paper's rank"].tolist() == [3, 1, 2]
    # Student's t with one degree of freedom: 12.706 s / sqrt(2), s = 7.07.
    assert table["interval"][0] == "± 63.53"
    assert table["rounds to 90 %"].tolist() == ["not reached", "not reached", "10"]
    # FedAvg's mean is 0.45: half of 0.92 and 0.98 is above.
    assert table["rounds to FedAvg"].tolist()[2] == "5"
    assert table["paper's rounds"].tolist() == ["not reached", "9", "not reached"]
    np.testing.assert_allclose(table["test - train loss"], 0.5)
    assert "Kendall's tau 0.33" in agreement(table)  # two of three pairs in the paper's order


def test_diverged_methods_have_no_accuracy_and_the_last_rank():
    made = history({"FedAvg": (0.4, 0.5), "MoFedSAM": (0.3, 0.3)})
    made.loc[made["method"] == "MoFedSAM", "diverged_at"] = 3
    lrs = {"FedAvg": 0.1, "MoFedSAM": 0.3}
    table = comparison(made, list(lrs), lrs, {}, target=50)
    assert math.isnan(table["accuracy"][1])
    assert table["rank"].tolist() == [1, 2]


def test_published_tables_are_complete():
    """Numbers of the paper that are quoted elsewhere in it, too."""
    place = list(fedswa_table2.COLUMNS).index("cifar100-resnet18")
    for method, expected in fedswa_table5_6_ablation.TABLE6.items():
        if method in fedswa_table2.PAPER:
            assert fedswa_table2.PAPER[method][place].accuracy == expected.accuracy
    third = list(fedswa_table3.COLUMNS).index("cifar100-resnet18-dirichlet0.6")
    for method in ("FedSWA", "FedMoSWA", "FedACG"):
        assert fedswa_table2.PAPER[method][place] == fedswa_table3.PAPER[method][third]
    assert fedswa_table4_rho.PAPER["FedMoSWA"][0] == 67.9
    assert set(fedswa_table2.PAPER) <= set(fedswa_common.METHODS)
    assert set(fedswa_table3.PAPER) <= set(fedswa_common.METHODS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"lrs": (0.1, -1.0)}, "lrs is"),
        ({"methods": ("FedSGD",)}, "methods has \\['FedSGD'\\]; expected some of FedAvg"),
        ({"columns": ("mnist",)}, "columns has \\['mnist'\\]; expected some of cifar10-lenet5"),
    ],
)
def test_refuses_bad_options(changes, message):
    with pytest.raises(ValueError, match=message):
        fedswa_table2.Table2(**changes)


def test_every_output_says_the_scale():
    setting = fedswa_common.skewed(fedswa_table2.COLUMNS["cifar10-lenet5"])
    small = fedswa_common.describe(setting, fedswa_common.Options(scale="cpu"))
    assert "6-16-120-84 (paper: 64-64-384-192)" in small
    assert "200 of the paper's 1000 rounds" in small
    full = fedswa_common.describe(setting, fedswa_common.Options(scale="paper", seeds=3))
    assert "1000 of the paper's 1000 rounds, 100 of 100 clients" in full
    assert "(paper:" not in full


def test_compressed_decay_ends_where_the_papers_does():
    setting = fedswa_common.skewed(fedswa_table2.COLUMNS["cifar10-lenet5"])
    plain, compressed = (fedswa_common.Options(compressed=flag) for flag in (False, True))
    assert fedswa_common.lr_decay(setting, plain) == 0.998
    np.testing.assert_allclose(
        fedswa_common.lr_decay(setting, compressed) ** 200, 0.998**1000, rtol=1e-12
    )
    assert "rates times 0.99 a round (paper: 0.998)" in fedswa_common.describe(setting, compressed)
    assert fedswa_common.run_label(compressed) == "cpu-compressed"


@pytest.mark.slow
def test_a_round_on_real_data(tmp_path):
    root = os.environ.get("FEDJAX_SIM_DATA")
    if root is None or not any((pathlib.Path(root) / name).is_dir() for name in CIFAR10):
        pytest.skip("FEDJAX_SIM_DATA names no folder with CIFAR-10")
    options = fedswa_table2.Table2(
        scale="smoke",
        rounds=1,
        methods=("FedAvg",),
        pilot_rounds=0,
        work=tmp_path / "work",
        output=tmp_path / "out",
    )
    fedswa_table2.main(options)
    (folder,) = (tmp_path / "out").iterdir()
    name = "cifar10-lenet5-dirichlet0.6"
    assert {path.name for path in folder.iterdir()} == {
        f"{name}{end}" for end in (".csv", ".json", ".md", ".png")
    }
    saved = pd.read_csv(folder / f"{name}.csv")
    assert set(saved["metric"]) >= {"test/accuracy", "test/loss", "train/loss"}
    assert "1 of the paper's 1000 rounds, 10 of 100 clients" in (folder / f"{name}.md").read_text()
    facts = json.loads((folder / f"{name}.json").read_text())
    assert facts["command"].startswith("python -m experiments.")
    assert facts["environment"]["versions"]["jax"]
    before = (tmp_path / "work").stat().st_mtime
    fedswa_table2.main(dataclasses.replace(options))  # nothing is left to run
    assert (tmp_path / "work").stat().st_mtime == before
    pd.testing.assert_frame_equal(pd.read_csv(folder / f"{name}.csv"), saved)
