"""The benchmark of PFLlib: its partition, its table, and the methods that run."""

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from experiments.personalised import pfllib, report
from experiments.personalised.methods import DEFAULT, METHODS, PUBLISHED
from experiments.personalised.options import Options
from experiments.personalised.problem import CLIENTS, divided, make_setup
from fedjax_sim.datasets import Dataset


def test_all_examples_are_divided_and_a_quarter_is_for_testing():
    """By PFLlib's rule with its seed: the sizes are those of the partition of the library."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 4000).astype(np.int32)
    part = {"x": np.arange(4000.0)[:, None], "y": labels}
    head = {key: value[:3000] for key, value in part.items()}
    tail = {key: value[3000:] for key, value in part.items()}
    train, test = divided(Dataset("toy", head, tail, 10, None, None, None, "files"), 1)
    rows = np.concatenate([train.examples["x"], test.examples["x"]])[:, 0]
    assert sorted(rows.tolist()) == list(range(4000))
    sizes = np.asarray(train.sizes) + np.asarray(test.sizes)
    expected = fs.data.partition.pfllib_dirichlet(labels, CLIENTS, 0.1, 1)
    assert sizes.tolist() == [len(part) for part in expected]
    np.testing.assert_array_equal(train.sizes, np.floor(0.75 * sizes))


def history(**accuracies):
    accuracies = accuracies or {"FedAvg": 0.3, "Ditto": 0.5}
    rows = [
        (method, seed, done, metric, value + done / 100 - (done == 3) * 0.5)
        for method, value in accuracies.items()
        for seed in (0, 1)
        for done in (1, 2, 3)
        for metric in report.COLUMNS
    ]
    columns = ["algorithm", "seed", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def test_table_has_best_rounds_beside_published_accuracies():
    best = report.best_rounds(history())
    assert set(best["round"]) == {2}
    table = report.table(best, PUBLISHED["cifar100"])
    assert table["PFLlib"].tolist() == [31.9, 52.9]
    assert table["all examples"].str.startswith(("32.0", "52.0")).all()
    assert table["best round"].tolist() == ["2", "2"]
    later = report.table(best.assign(round=best["round"] + best["seed"]), {})
    assert later["best round"].tolist() == ["2-3", "2-3"]
    orders, _ = report.comparison(best, PUBLISHED["cifar100"])
    assert orders.endswith("here: Ditto, FedAvg; there: Ditto, FedAvg.")  # two give no tau
    (claim,) = report.claims(best)
    assert claim.holds
    assert claim.text == "Ditto is more accurate than FedAvg"


@pytest.mark.parametrize(("best", "scale"), [(0.5, "linear"), (0.96, "log")])
def test_errors_within_a_decade_have_a_linear_axis(best, scale):
    figure = report.errors_figure(history(FedAvg=0.3, Ditto=best))
    assert figure.axes[0].get_yscale() == scale
    plt.close(figure)


@pytest.mark.slow
def test_the_report_grows_by_methods_and_seeds_that_it_does_not_have(tmp_path, monkeypatch):
    made = []

    def run(method, seed, options):
        made.append((method, seed))
        of_both = history(**{method: 0.3})
        return of_both[of_both["seed"] == seed]

    monkeypatch.setattr(pfllib, "run", run)
    options = Options(methods=("Ditto",), output=tmp_path, seeds=1)
    pfllib.main(options)
    pfllib.main(dataclasses.replace(options, methods=("FedAvg", "Ditto")))
    pfllib.main(options)
    assert made == [("Ditto", 0), ("FedAvg", 0)]
    pfllib.main(dataclasses.replace(options, seeds=2))
    assert made[2:] == [("Ditto", 1)]
    report_of = tmp_path / "pfllib" / "mnist_200_rounds.md"
    assert "Not finished yet: FedAvg has 1 seed of 2." in report_of.read_text()
    pfllib.main(dataclasses.replace(options, methods=("FedAvg",), seeds=2))
    assert made[3:] == [("FedAvg", 1)]
    assert "Not finished yet" not in report_of.read_text()
    table = pd.read_csv(report_of.with_suffix(".csv"))
    expected = history(FedAvg=0.3, Ditto=0.3).sort_values("seed", kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(table, expected)
    pfllib.main(dataclasses.replace(options, rounds=50))  # another length: a report of its own
    assert made[4:] == [("Ditto", 0)]
    assert (tmp_path / "pfllib" / "mnist_50_rounds.md").exists()
    pfllib.main(dataclasses.replace(options, eval_every=2))  # another setting: it is made again
    assert made[5:] == [("Ditto", 0)]


@pytest.mark.slow
def test_seeds_of_a_run_are_those_of_all_seeds_together(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    part = {
        "x": rng.integers(0, 256, (400, 16, 16, 1)).astype(np.uint8),
        "y": rng.integers(0, 10, 400).astype(np.int32),
    }
    toy = Dataset("toy", part, {k: v[:100] for k, v in part.items()}, 10, None, None, None, "files")
    monkeypatch.setattr(pfllib.datasets, "load", lambda *_, **__: toy)
    options = Options(rounds=2, eval_every=1, seeds=2, work=tmp_path)
    setup, keys = make_setup(toy, 2, rounds=2, eval_every=1)
    both = fs.simulate(METHODS["FedPer"], setup, keys).to_frame()
    one = pfllib.run("FedPer", 1, options)
    rows = both[(both["seed"].astype(int) == 1) & both["metric"].isin(report.COLUMNS)]
    assert one["round"].tolist() == rows["round"].tolist()
    # The seeds' programs differ in the size of their batch.
    np.testing.assert_allclose(one["value"], rows["value"], atol=0.02)
    assert pfllib.eval_every("FedBABU", Options(rounds=20, eval_every=2)) == 10
    assert pfllib.eval_every("FedBABU", Options(rounds=4, eval_every=2)) == 4
    rare = pd.concat([history(FedAvg=0.3), history(FedBABU=0.3).query("round > 1")])
    text = report.rarely_evaluated(rare)
    assert text == "Evaluated less often than the others: FedBABU every 2 rounds."


def test_options():
    assert Options().chosen == tuple(METHODS)
    assert set(Options(dataset="cifar100").chosen) == set(DEFAULT["cifar100"])
    for options, message in [
        ({"methods": ("FedAvgs",)}, "methods is"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"examples": 3}, "examples is 3; expected at least 20"),
    ]:
        with pytest.raises(ValueError, match=message):
            Options(**options)
