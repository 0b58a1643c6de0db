"""Curves against time, updates, steps and bits: positions counted from the timelines by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from figures import render

import fedjax_sim as fs
from fedjax_sim.reports.figures import progress_curves, with_progress
from fedjax_sim.runs.history import Clock
from fedjax_sim.runs.storage.outcome import describe
from fedjax_sim.timelines import bits_moved, stacked


def timeline(reports, steps, time):
    """Client i in slot i; ``reports`` says how many of two slots are used."""
    rounds = len(reports)
    return fs.Timeline(
        clients=np.tile(np.arange(2, dtype=np.int32), (rounds, 1)),
        version=np.tile(np.arange(rounds, dtype=np.int32)[:, None], (1, 2)),
        num_steps=np.full((rounds, 2), steps, np.int32),
        mask=np.arange(2) < np.array(reports)[:, None],
        time=np.array(time, np.float32),
        max_steps=steps,
    )


TIMELINES = {
    "slow": timeline([2, 2], 20, [100.0, 200.0]),
    "lazy": timeline([1, 0, 2, 1], 3, [7.0, 14.0, 21.0, 28.0]),
}
BITS = {"slow": (32, 32), "lazy": (4, 32)}


def history(seeds=(0,)):
    rows = [
        (name, seed, done, "test/accuracy", 0.1 * done + seed)
        for name, rounds in (("slow", (0, 1, 2)), ("lazy", (1, 2, 3, 4)))
        for seed in seeds
        for done in rounds
    ]
    return pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])


def test_progress_by_hand():
    frame = with_progress(history(), TIMELINES, BITS)
    slow, lazy = (frame[frame["algorithm"] == name] for name in TIMELINES)
    assert slow["time"].tolist() == [0, 100, 200]
    assert slow["server_updates"].tolist() == [0, 1, 2]
    assert slow["local_steps"].tolist() == [0, 40, 80]
    assert slow["uploads"].tolist() == [0, 2, 4]
    assert slow["bits"].tolist() == [0, 128, 256]
    assert lazy["time"].tolist() == [7, 14, 21, 28]
    assert lazy["server_updates"].tolist() == [1, 1, 2, 3]  # nobody reported to the second
    assert lazy["local_steps"].tolist() == [3, 3, 9, 12]
    assert lazy["uploads"].tolist() == [1, 1, 3, 4]
    assert lazy["bits"].tolist() == [36, 36, 108, 144]
    assert frame["value"].tolist() == history()["value"].tolist()
    assert "bits" not in with_progress(history(), TIMELINES)


def test_a_round_whose_uploads_are_all_lost_is_no_update():
    lost = np.array([[True, False], [True, True]])
    lossy = dataclasses.replace(TIMELINES["slow"], lost=lost)
    frame = with_progress(history(), TIMELINES | {"slow": lossy})
    slow = frame[frame["algorithm"] == "slow"]
    assert slow["server_updates"].tolist() == [0, 1, 1]
    assert slow["uploads"].tolist() == [0, 2, 4]
    assert slow["local_steps"].tolist() == [0, 40, 80]


def test_a_batch_has_a_timeline_for_each_seed():
    batch = stacked([timeline([2], 5, [9.0]), timeline([1, 1], 5, [4.0, 6.0])])
    rows = [("a", seed, done, "loss", 0.0) for seed in (3, 8) for done in (1, 2)]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    found = with_progress(frame.sample(frac=1, random_state=0), {"a": batch}).sort_index()
    assert found["time"].tolist() == [9, 9, 4, 6]
    assert found["local_steps"].tolist() == [10, 10, 5, 10]


@pytest.mark.slow
def test_curves_are_drawn_where_the_timelines_say():
    against = ("time", "server_updates", "local_steps", "bits")
    shuffled = history().iloc[[2, 0, 1, 6, 4, 3, 5]]
    figure = progress_curves(shuffled, "test/accuracy", TIMELINES, against, bits=BITS)
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == ["simulated time", "server updates", "local steps", "bits sent"]
    expected = {
        "time": ([0, 100, 200], [7, 14, 21, 28]),
        "server_updates": ([0, 1, 2], [1, 2, 3]),
        "local_steps": ([0, 40, 80], [3, 9, 12]),
        "bits": ([0, 128, 256], [36, 108, 144]),
    }
    for axes, (slow, lazy) in zip(figure.axes, expected.values(), strict=True):
        assert axes.get_ylabel() == "test accuracy"
        assert [line.get_label() for line in axes.lines] == ["slow", "lazy"]
        np.testing.assert_array_equal(axes.lines[0].get_xdata(), slow)
        np.testing.assert_allclose(axes.lines[0].get_ydata(), [0, 0.1, 0.2], rtol=1e-15)
        np.testing.assert_array_equal(axes.lines[1].get_xdata(), lazy)
        # Where the measure stood still, the later evaluation: of round 2, not of round 1.
        values = [0.1, 0.2, 0.3, 0.4] if len(lazy) == 4 else [0.2, 0.3, 0.4]
        np.testing.assert_allclose(axes.lines[1].get_ydata(), values, rtol=1e-12)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["slow", "lazy"]
    render(figure)


def test_seeds_make_a_band():
    figure = progress_curves(history(seeds=(0, 1)), "test/accuracy", TIMELINES, ["uploads"])
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.5, 0.6, 0.7])
    assert len(axes.collections) == 2
    render(figure)


@pytest.mark.slow
def test_positions_are_those_of_the_history_on_disk(tmp_path):
    """The file history.csv of a run records time and local steps itself."""
    data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 6]))
    task = fs.empirical_task(
        lambda w, batch, key: (batch["x"][:, 0] * w - 2) ** 2, data, fs.epochs(1, batch_size=2)
    )
    run = fs.timelines.dropout(jax.random.key(1), fs.timelines.full(9, 2, task.num_steps), 0.4)
    setup = fs.Setup(task, run, jnp.zeros(()), eval_fn=lambda w: {"w": w}, eval_every=2)
    fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0), storage=tmp_path)
    frame = pd.read_csv(tmp_path / "history.csv").rename(columns={"replica": "seed"})
    wide = frame.pivot(index="round", columns="metric", values="value")
    found = with_progress(frame.assign(algorithm="fedavg"), {"fedavg": run})
    found = found[found["metric"] == "w"].set_index("round")
    assert len(found) == 5
    np.testing.assert_array_equal(found["time"], wide["time"])
    np.testing.assert_array_equal(found["local_steps"], wide["local_steps"])


def test_candidates_that_are_not_chosen_upload_nothing():
    """Two candidates in most rounds, one is chosen; its steps are those of the history."""
    timelines = {"loss": TIMELINES["lazy"], "last": TIMELINES["lazy"], "all": TIMELINES["lazy"]}
    selectors = {
        "loss": fs.selection.power_of_choice(1), "last": fs.selection.power_of_choice(1, "last")
    }  # fmt: skip
    rows = [
        (name, 0, done, metric, value)
        for name in timelines
        for done, steps in ((1, 3), (3, 6), (4, 9))
        for metric, value in (("loss", 0.5), ("local_steps", steps))
    ]
    frame = pd.DataFrame(rows, columns=["algorithm", "seed", "round", "metric", "value"])
    bits = dict.fromkeys(timelines, (1000, 100))
    found = with_progress(frame, timelines, bits, selectors=selectors)
    found = found[found["metric"] == "loss"].groupby("algorithm")
    found = {name: part.set_index("round").drop(columns="algorithm") for name, part in found}
    assert [found[name]["uploads"].tolist() for name in timelines] == [[1, 2, 3]] * 2 + [[1, 3, 4]]
    steps = [found[name]["local_steps"].tolist() for name in timelines]
    assert steps == [[3, 6, 9]] * 2 + [[3, 9, 12]]
    # Candidates 1, 0, 2, 1: with losses each receives 100 bits and sends 32.
    assert found["loss"]["bits"].tolist() == [1132, 2000 + 3 * 132, 3000 + 4 * 132]
    assert found["last"]["bits"].tolist() == [1132, 2 * 1132, 3 * 1132]
    assert found["all"]["bits"].tolist() == [1100, 3300, 4400]
    figure = progress_curves(
        frame, "loss", timelines, ["local_steps", "bits"], bits=bits, selectors=selectors
    )
    assert figure.axes[0].lines[0].get_xdata().tolist() == [3, 6, 9]
    with pytest.raises(ValueError, match="no local_steps of 'loss' in round 1; expected them"):
        with_progress(frame[frame["metric"] == "loss"], timelines, selectors=selectors)


@pytest.mark.slow
def test_bits_with_a_selector_are_those_of_the_files():
    """Two of three candidates: outcome.json counts the same bits from the shapes of a visit."""
    data = fs.FederatedData({"x": np.ones((6, 1), np.float32)}, np.array([0, 2, 4, 6]))
    task = fs.empirical_task(lambda w, b, key: (b["x"][:, 0] * w - 2) ** 2, data, fs.full_batch(1))
    setup = fs.Setup(task, fs.timelines.full(4, 3, task.num_steps), jnp.zeros(()), eval_every=4)
    for selector in (fs.selection.power_of_choice(2), fs.selection.power_of_choice(2, "last")):
        algorithm = fs.selection.select(fs.fedavg(0.1), selector)
        known = describe(algorithm, setup, ["0"], Clock(setup.timeline, 1), batched=False)
        files = known["uploads"]["0"] * (known["upload_bits"] + known["download_bits"])
        sent = bits_moved(setup.timeline, 32, 32, selector=selector)
        assert sent.tolist() == [files, 2 * files, 3 * files, 4 * files]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: progress_curves(history(), "loss", TIMELINES), "metric is 'loss'.*accuracy"),
        (
            lambda: progress_curves(history(), "test/accuracy", TIMELINES, ["rounds"]),
            r"against is \['rounds'\]",
        ),
        (
            lambda: progress_curves(history(), "test/accuracy", TIMELINES, ["bits"]),
            "bits is None",
        ),
        (
            lambda: progress_curves(pd.concat([history()] * 2), "test/accuracy", TIMELINES),
            "two rows for",
        ),
        (lambda: with_progress(history().drop(columns="seed"), TIMELINES), r"columns \['seed'\]"),
        (lambda: with_progress(history(), {}), r"timelines has \[\]; expected 'slow'"),
        (lambda: with_progress(history(), TIMELINES, {"slow": (1, 1)}), "bits has .*'lazy'"),
        (
            lambda: with_progress(history().assign(round=3), TIMELINES),
            "rounds 3 .. 3 of 'slow'; expected 0 .. 2",
        ),
        (
            lambda: with_progress(
                history((0, 1, 2)), TIMELINES | {"slow": stacked([TIMELINES["slow"]] * 2)}
            ),
            "batch of 2; expected one for each of the 3 seeds",
        ),
    ],
)
def test_bad_arguments_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
