"""Accuracy against epsilon: the noise of the larger cohort, the table by hand, and a short run."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up_images import images

from experiments.privacy import central, cifar10_central, mnist_central
from experiments.privacy.central_report import late_accuracies, summary
from experiments.privacy.recount import RESULTS, recounted
from experiments.privacy.redraw import redraw

RUNS = [central.PLAIN, central.CLIPPED, "epsilon 2"]


def history():
    """Two seeds of three runs with 20 rounds, of which the last two are averaged."""
    rows = [
        (run, seed, done, 0.5 + 0.1 * place + 0.01 * seed + (0.2 if done == 19 else 0.0))
        for place, run in enumerate(RUNS)
        for seed in (0, 1)
        for done in (10, 18, 19, 20)
    ]
    return pd.DataFrame(rows, columns=["run", "seed", "round", "value"])


def test_accuracies_are_means_of_the_last_tenth_of_the_rounds():
    scores = late_accuracies(history())
    np.testing.assert_allclose(scores["epsilon 2"], [0.8, 0.81])


def test_table_has_noise_beside_private_runs_only():
    noise = pd.DataFrame(
        [
            {"run": "epsilon 2", "epsilon": 2.0, "z": 0.6, "std of the mean": 1e-3}
            | {"noise / clip": 0.3, "own epsilon": 1e3, "parameters": 7}
        ]
    )
    table = summary(history(), noise).set_index("run")
    assert table["own epsilon"].tolist() == ["", "", "1e+03"]
    assert table.loc[central.CLIPPED, "accuracy in %"].startswith("70.50 ± ")


@pytest.mark.slow
def test_kept_tables_have_the_epsilons_of_the_accountant():
    """Renyi divergences gave 2,089 at the least noise, and 8.29 at the most."""
    kept = pd.read_csv(RESULTS / "mnist" / "mnist-noise.csv")
    now = recounted(RESULTS / "mnist", "mnist")
    pd.testing.assert_frame_equal(now, kept, rtol=1e-4)  # five digits are kept
    assert kept["own epsilon"].iloc[[0, -1]].round(2).tolist() == [182.88, 4.87]


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist_central.datasets, "load", lambda *args, **kwargs: images(28, 1))
    options = mnist_central.Options(
        rounds=2, seeds=2, epsilons=(2.0,), eval_every=1, users=50,
        work=tmp_path / "work", output=tmp_path,
    )  # fmt: skip
    mnist_central.main(options)
    folder = tmp_path / "privacy" / "mnist"
    text = (folder / "mnist.md").read_text()
    assert "| epsilon 2 |" in text
    assert (folder / "mnist.png").exists()
    (folder / "mnist.md").unlink()
    redraw(tmp_path / "privacy")
    assert (folder / "mnist.md").read_text() == text
    one = pd.read_csv(folder / "mnist.csv")
    more = dataclasses.replace(options, epsilons=(2.0, 0.5), work=tmp_path / "elsewhere")
    mnist_central.main(more)  # the runs of the report are not repeated
    runs = next((tmp_path / "elsewhere").iterdir())
    assert [path.name for path in runs.iterdir() if path.is_dir()] == ["epsilon-0.5"]
    both = pd.read_csv(folder / "mnist.csv")
    pd.testing.assert_frame_equal(both[: len(one)], one)
    assert both["run"].unique().tolist() == [*RUNS, "epsilon 0.5"]
    mnist_central.main(dataclasses.replace(more, epsilons=(0.5,)))  # keeps the other target
    pd.testing.assert_frame_equal(pd.read_csv(folder / "mnist.csv"), both)
    assert "| epsilon 2 |" in (folder / "mnist.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilons": ()}, r"epsilons is \(\); expected positive numbers"),
        ({"epsilons": (2.0, -1.0)}, r"epsilons is \(2.0, -1.0\); expected positive numbers"),
        ({"users": 49}, "users is 49; expected at least 50"),
        ({"test_examples": 0}, "test_examples is 0; expected at least 1"),
        ({"population": 10}, "population is 10; expected at least"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
    ],
)
@pytest.mark.parametrize("experiment", [mnist_central, cifar10_central])
def test_options_are_checked(experiment, wrong, message):
    """Without targets the report would fail after all runs."""
    with pytest.raises(ValueError, match=message):
        experiment.Options(**wrong)
