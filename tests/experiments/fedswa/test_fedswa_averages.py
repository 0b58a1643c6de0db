"""FedSWA beside means over rounds: four models of one run, and its table from made-up histories."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from small_problems import assert_close

import fedjax_sim as fs
from experiments.fedswa import averages, methods
from experiments.fedswa.claims import claims, gains
from experiments.fedswa.settings import COLUMNS, METRICS, Options, skewed

SETTING = skewed(COLUMNS["cifar100-lenet5"])
NAMES = ["", " + SWA", " + EMA 0.99", " + EMA 0.9"]


def loss(w, batch, key):
    del key
    return (w - batch["x"]) ** 2 / 2


@pytest.mark.usefixtures("x64")
def test_four_models_of_one_run():
    """One client with the loss (w - 8)^2 / 2; each round halves the distance to 8."""
    models = 8 - 8 * 0.5 ** np.arange(1, 9)
    task = fs.empirical_task(loss, fs.from_clients([{"x": np.array([8.0])}]), fs.full_batch(1))
    timeline = fs.timelines.full(8, 1, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.array(0.0), eval_fn=lambda w: {"model": w})
    _, history = fs.run(*averages.with_means(fs.fedavg(0.5), setup), jax.random.key(0))
    found = {name: float(values[-1]) for name, values in history.metrics.items()}
    ages = np.arange(8)[::-1]
    expected = {
        "raw/model": models[-1],
        "swa/model": models[6:].mean(),  # the last quarter
        "slow/model": np.average(models, weights=0.99**ages),
        "fast/model": np.average(models, weights=0.9**ages),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert_close(found[name], value, 1e-13)  # sums of eight numbers below 8


def made_history():
    """Two seeds and methods; model number m has accuracy 0.3 + 0.01 m, FedSWA 0.05 more."""
    rows = [
        (method, seed, round, f"{prefix}/{metric}", 0.3 + 0.01 * m + 0.05 * (method == "FedSWA"))
        for method in averages.METHODS
        for seed in (0, 1)
        for round in (5, 10)
        for m, prefix in enumerate(("raw", "swa", "slow", "fast"))
        for metric in METRICS
    ]
    return pd.DataFrame(rows, columns=["method", "seed", "round", "metric", "value"])


def test_models_are_methods_of_the_table():
    history = averages.by_model(made_history().assign(diverged_at=0))
    names = [f"{method}{name}" for method in averages.METHODS for name in NAMES]
    assert list(dict.fromkeys(history["method"])) == names
    assert set(history["metric"]) == set(METRICS)
    text = averages.report(SETTING, history, Options(scale="cpu", seeds=2, pilot_rounds=0)).text
    assert "| FedAvg + EMA 0.9 | 33.00 | ± 0.00 |" in text
    # 0.35 of FedSWA beside 0.31 of the mean of FedAvg's late models.
    section = text.partition("## Points over FedAvg + SWA")[2]
    assert "| FedSWA | +4.00 | ± 0.00 | 2 |" in section


def test_gains_over_another_method():
    late = pd.DataFrame({"method": ["a", "b"], "seed": [0, 0], "score": [0.5, 0.25]})
    table = gains(late, {}, "b")
    assert table["points over b"].tolist() == ["+25.00"]
    assert gains(late, {}).empty


@pytest.mark.slow
def test_rates_of_the_readme():
    """Twice the rate of the other methods, which the program doubles again: its first step is 0.4.

    One client with the loss w^2 / 2 and one step from 1, in round 1 of the decay by 0.998: clipping
    at 10 does not act, the weight decay adds 1e-3 w.
    """
    task = fs.empirical_task(loss, fs.from_clients([{"x": np.zeros(1)}]), fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(2, 1, task.num_steps), jnp.array(1.0))
    for name, first, alpha in (
        ("FedSWA", 0.1, 1.5),
        ("FedSWA-README", 0.2, 1.5),
        ("FedSWA-program", 0.2, 1.0),
        ("FedSWA-program-README", 0.4, 1.0),
    ):
        state, _ = fs.run(methods.build(0.1, name), setup, jax.random.key(0))
        steps = alpha * 1.001 * first * np.array([1.0, 0.998])
        assert_close(state.server.params, np.prod(1 - steps), 1e-6)  # single precision


def test_sharp_methods_of_the_programs_are_compared_with_fedswa():
    table = pd.DataFrame({"method": ["FedSWA", "FedSAM-program"], "seed": 0, "score": [0.30, 0.31]})
    rows = [claim for claim in claims(table, table) if "FedSAM-program" in claim.text]
    assert [claim.holds for claim in rows] == [False]
    assert {"FedSAM-program", "MoFedSAM-program"} <= set(methods.METHODS)
