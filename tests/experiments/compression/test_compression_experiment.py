"""The comparison of compressed methods: selection and table by hand, bits, and a short run."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.compression import digits, methods
from experiments.compression.digits_report import curves, selected, summary
from experiments.compression.redraw import redraw


def frame():
    """Two methods, two rates, two seeds; validation prefers the rate 0.2, the test does not."""
    rows = [
        (method, lr, seed, done, metric, value + 0.01 * seed)
        for method, base in (("FedAvg", 0.5), ("random k, MARINA", 0.4))
        for lr in (0.1, 0.2)
        for seed in (0, 1)
        for done in (2, 4)
        for metric, value in (
            ("valid/accuracy", base + lr + 0.05 * done),
            ("test/accuracy", base - lr + 0.05 * done),
        )
    ]
    columns = ["method", "lr", "seed", "round", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


BITS = {"FedAvg": 1000.0, "random k, MARINA": 100.0}


def test_rates_are_chosen_by_validation():
    chosen = selected(frame())
    assert set(chosen["lr"]) == {0.2}
    assert set(chosen["metric"]) == {"test/accuracy"}
    assert len(chosen) == 2 * 2 * 2


def test_a_rate_with_a_diverged_seed_is_not_chosen():
    """Its mean over the other seed would be the best."""
    history = frame()
    lost = (history["lr"] == 0.2) & (history["seed"] == 0) & (history["method"] == "FedAvg")
    history.loc[lost, "value"] = np.nan
    chosen = selected(history)
    assert set(chosen.loc[chosen["method"] == "FedAvg", "lr"]) == {0.1}


def test_kilobits_count_the_whole_first_round_of_marina():
    table = curves(frame(), BITS)
    sent = table.groupby(["method", "round"])["kilobits"].first()
    assert sent["FedAvg"].tolist() == [2.0, 4.0]
    np.testing.assert_allclose(sent["random k, MARINA"], [1.1, 1.3], rtol=1e-15)


def test_summary():
    table = summary(curves(frame(), BITS), level=0.405).set_index("method")
    assert table.loc["FedAvg", "rate"] == 0.2
    np.testing.assert_allclose(table["accuracy"], [0.505, 0.405], rtol=1e-12)
    np.testing.assert_allclose(table["kilobits per round"], [1.0, 0.325], rtol=1e-12)
    # FedAvg has 0.4 and 0.41 after two rounds; of MARINA only one seed arrives.
    assert table.loc["FedAvg", "kilobits to 0.405"] == 3.0
    assert np.isinf(table.loc["random k, MARINA", "kilobits to 0.405"])


def test_bits_of_the_methods():
    """A kernel of 100 x 10 and a bias of 10; k is 20 and 1."""
    params = {
        "kernel": jax.ShapeDtypeStruct((100, 10), np.float32),
        "bias": jax.ShapeDtypeStruct((10,), np.float32),
    }
    bits = methods.upload_bits(params)
    assert bits["FedAvg"] == 1010 * 32
    assert bits["top-k"] == bits["top-k, EF21"] == 20 * (32 + 10) + 32 + 4
    assert bits["random k, DIANA"] == 21 * 32
    assert bits["random k, MARINA"] == pytest.approx(0.02 * 32_320 + 0.98 * 672)
    assert bits["sign"] == 1010 + 64
    assert bits["PowerSGD, EF14"] == 110 * 32 + 320


@pytest.mark.slow
def test_a_short_run_is_kept_and_redrawn(tmp_path, monkeypatch, allow_nans):
    names = ("FedAvg", "top-k, EF21")
    monkeypatch.setattr(digits, "METHODS", {name: methods.METHODS[name] for name in names})
    setup = digits.problem
    monkeypatch.setattr(
        digits, "problem", lambda options: dataclasses.replace(setup(options), eval_every=1)
    )
    options = digits.Options(
        rounds=2, seeds=2, lrs=(0.1, 0.2), work=tmp_path / "work", output=tmp_path
    )
    digits.main(options)
    folder = tmp_path / "compression" / "digits"
    text = (folder / "digits.md").read_text()
    assert "| top-k, EF21 |" in text
    assert (folder / "digits.png").exists()
    (folder / "digits.md").unlink()
    redraw(tmp_path / "compression")
    assert (folder / "digits.md").read_text() == text


def test_options_are_checked():
    """A negative rate would run."""
    with pytest.raises(ValueError, match=r"lrs is \(-1.0,\); expected positive numbers"):
        digits.Options(lrs=(-1.0,))
    with pytest.raises(ValueError, match="rounds is 0; expected at least 1"):
        digits.Options(rounds=0)
