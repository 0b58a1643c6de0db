"""FAVANO on CIFAR-10 at rates chosen per method, on made-up data and cut down to seconds."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from made_up_images import images

from experiments.favano import cifar_tuned, clock_runs, methods, redraw
from experiments.favano.images import Runs
from experiments.favano.outcomes import late, panels
from fedjax_sim import datasets

pytestmark = pytest.mark.usefixtures("compiled_without_optimizations")

RATES = {"FedAvg": (0.04,), "QuAFL": (0.04,), "FedBuff": (0.4,), "FAVANO": (0.02, 0.05, 0.1)}


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load", lambda name, data_dir: images(32, 3))
    monkeypatch.setattr(cifar_tuned, "RATES", RATES)
    monkeypatch.setattr(cifar_tuned, "SPLITS", {"non-IID": "shards"})
    return cifar_tuned.Options(scale="smoke", work=tmp_path / "work", output=tmp_path / "out")


@pytest.mark.slow
@pytest.mark.usefixtures("allow_nans")  # the probe of the variance is NaN between its moments
class TestTuned:
    def test_rates_are_chosen_on_their_own_seed(self, options, tmp_path, monkeypatch):
        cifar_tuned.main(options)
        folder = tmp_path / "out" / "favano" / "cifar-tuned-smoke"
        history, tuning = (
            pd.read_csv(folder / f"{name}.csv") for name in ("methods", "methods-rates")
        )
        for name, lrs in RATES.items():
            tried = tuning[tuning["method"] == name]
            assert tuple(tried["lr"]) == lrs
            best = tried.loc[tried["accuracy"].idxmax(), "lr"]
            assert set(history.loc[history["algorithm"] == name, "lr"]) == {best}
        assert set(history["seed"]) == {0, 1}
        text = (folder / "methods.md").read_text()
        assert "20 train images each" in text
        assert text.count("| non-IID | FedBuff and FAVANO are best |") == 1

        # The kept files are enough for the report, and for the same command.
        (folder / "methods.md").unlink()
        (folder / "methods.png").unlink()
        monkeypatch.setattr(clock_runs, "train", None)
        redraw.redraw(tmp_path / "out" / "favano")
        assert (folder / "methods.md").read_text() == text
        assert (folder / "methods.png").exists()
        cifar_tuned.main(options)
        assert (folder / "methods.md").read_text() == text

    def test_a_sweep_has_the_runs_of_single_rates(self, options, tmp_path, monkeypatch):
        runs = Runs(options)
        method, columns = methods.favano(), ["time", "local_steps", "loss"]
        alone = runs(method, "non-IID", range(1), lrs=[0.05])
        other = Runs(dataclasses.replace(options, work=tmp_path / "other"))
        swept = other(method, "non-IID", range(2), lrs=[0.1, 0.05])
        assert swept.groupby(["lr", "seed"]).ngroups == 4
        same = swept.query("lr == 0.05 and seed == 0").reset_index(drop=True)
        # One program with the rates as inputs, for one run and for four.
        pd.testing.assert_frame_equal(same[columns], alone[columns], rtol=1e-5)
        assert swept.query("seed == 0").groupby("lr")["loss"].last().nunique() == 2

        missing = []
        monkeypatch.setattr(clock_runs, "train", lambda *arguments: missing.append(arguments[3]))
        with pytest.raises(FileNotFoundError):
            runs(method, "non-IID", range(2), lrs=[0.1, 0.05])
        pairs = [pair for group in missing for pair in group]  # a group per size of the clients
        assert sorted(pairs) == [(0.05, 1), (0.1, 0), (0.1, 1)]


def test_halves_are_means_of_four_pixels():
    x = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3)).astype(np.uint8)
    cells = [x[:, i::2, j::2].astype(float) for i in (0, 1) for j in (0, 1)]
    halves = cifar_tuned.halved(x)
    assert halves.dtype == np.uint8
    # Rounded to the nearest; halves go up.
    np.testing.assert_array_equal(halves, np.floor(sum(cells) / 4 + 0.5))


def test_late_evaluations_and_figure():
    rows = [
        {"setting": setting, "algorithm": name, "seed": seed, "time": 10.0 * i + seed,
         "accuracy": i / 20, "variance": float(i + 1) if name == "FAVANO" else np.nan}
        for setting in ("non-IID", "IID") for name in ("FedAvg", "FAVANO")
        for seed in (0, 1) for i in range(11 - seed)
    ]  # fmt: skip
    history = pd.DataFrame(rows)
    # At least 0.8 times 100.
    assert late(history).query("seed == 0")["time"].unique().tolist() == [80.0, 90.0, 100.0]
    assert late(history).query("seed == 1")["time"].unique().tolist() == [81.0, 91.0]
    drawn = panels(history, [("accuracy", "time"), ("variance", "time")])
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["non-IID", "IID"]
    assert [len(axes.lines) for axes in drawn.axes] == [2, 2, 1, 1]
    (line,) = drawn.axes[2].lines
    assert line.get_label() == "FAVANO"
    # The evaluations that both seeds have.
    np.testing.assert_array_equal(line.get_ydata(), np.arange(1.0, 11.0))
    np.testing.assert_array_equal(line.get_xdata(), 10 * np.arange(10) + 0.5)


def test_one_rate_for_all_methods():
    options = cifar_tuned.Options(lr=0.3, server_lrs=(0.1, 1.0))
    assert options.rates("QuAFL") == (0.3,)
    labels = [method.label for method in options.candidates("FedBuff")]
    assert labels == ["FedBuff, server rate 0.1", "FedBuff, server rate 1"]
