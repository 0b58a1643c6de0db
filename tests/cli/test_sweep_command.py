"""``fedjax-sim sweep`` end to end: runs, tables, resuming and messages."""

import dataclasses
import itertools
import json
import pathlib
import re
import shutil
import signal
import types
from collections.abc import Callable

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sweep_options import sweep_options

from fedjax_sim import datasets
from fedjax_sim.cli import console, sweep, sweep_results
from fedjax_sim.cli.grid import SweepOptions, with_settings
from fedjax_sim.cli.main import main
from fedjax_sim.cli.run import compare
from fedjax_sim.cli.sweep import SweepResult, run_sweep
from fedjax_sim.engine import History
from fedjax_sim.engine.execution import devices
from fedjax_sim.reports import read_folder
from fedjax_sim.runs.sweeps import program
from fedjax_sim.runs.sweeps.result import Sweep, SweepRun
from fedjax_sim.runs.sweeps.sweep import SweepProgress
from fedjax_sim.studies.setups import Study, data, prepare, resolve

DIVERGING = 2e38  # two steps of it leave float32
GRID = sweep_options(
    {"lr": (0.05, 0.3, DIVERGING), "cohort_size": (2, 4)},
    model="softmax_regression",
    partition="quantity",  # clients of different sizes, so that weights matter
    alpha=1.0,
    weighting="examples",
    num_clients=12,
    dropout=0.6,
    rounds=4,
    local_steps=2,
    seed=9,
    seeds=2,
    eval_every=1,
    algorithms=("fedavg", "fedprox"),
    hyper={"fedprox": {"mu": 2.0}},
    metric="test/loss",
    mode="min",
)
ALGORITHMS = ("fedavg", "fedprox")
CONFIGURATIONS = list(itertools.product(ALGORITHMS, [2, 4], [0.05, 0.3, DIVERGING]))
KEY = ["algorithm", "cohort_size", "lr"]
PARTS = ("test", "train")
COMPARED = {(2, 0.05): ("fedavg", "fedprox")}
# A command that differs from the quickstart by a small model and little work.
TINY = "sweep quickstart --model softmax_regression --num-clients 12 --local-steps 1".split()


def run_at(output: pathlib.Path, grid=None, callbacks=(), **changes) -> SweepResult:
    """Runs the sweep in a folder, with other options."""
    return run_sweep(Study(), sweep_options(grid, GRID, output=output, **changes), callbacks)


@pytest.fixture(scope="module")
def events() -> list[SweepProgress]:
    return []


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("swept")


@pytest.fixture(scope="module")
def swept(folder, events) -> SweepResult:
    """Two algorithms x three rates x two cohort sizes x two seeds, once for all tests."""
    with jax.debug_nans(False):  # one of the rates diverges
        return run_at(folder, callbacks=[types.SimpleNamespace(progress=events.append)])


@pytest.fixture
def copied(swept, folder, tmp_path) -> pathlib.Path:
    """The shared sweep's folder, for a test that writes to it."""
    return shutil.copytree(folder, tmp_path / "copied")


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> dict[tuple[int, float], tuple[pathlib.Path, pd.DataFrame]]:
    """Comparisons that are parts of the sweep."""
    found = {}
    for (cohort_size, lr), algorithms in COMPARED.items():
        folder = tmp_path_factory.mktemp("compared")
        changes = {"output": folder, "cohort_size": cohort_size, "lr": lr, "algorithms": algorithms}
        study = Study(sweep_options(None, GRID, **changes).run)
        found[cohort_size, lr] = folder, compare(resolve(study)).history
    return found


@pytest.mark.slow
def test_setting_has_the_values_of_the_grid(swept, folder):
    assert ", 2 to 4 clients per round, " in read_folder(folder).setting


def files(output: pathlib.Path) -> dict[str, int]:
    """Everything in a folder, with the time it was written."""
    paths = [path for path in output.rglob("*") if path.is_file()]
    return {str(path.relative_to(output)): path.stat().st_mtime_ns for path in paths}


def kept(output: pathlib.Path) -> dict[str, int]:
    return {name: time for name, time in files(output).items() if name.startswith("slices")}


def runs_kept(output: pathlib.Path) -> list[tuple[str, str]]:
    """The (configuration, seed) of every run in the files of finished runs."""
    found = []
    for path in output.glob("slices/*.npz"):
        with np.load(path) as file:
            found += [tuple(entry[:2]) for entry in json.loads(str(file["meta"]))]
    return found


def entry(history: pd.DataFrame, *values) -> pd.DataFrame:
    """The rows of one configuration."""
    same = [history[name] == value for name, value in zip(KEY, values, strict=True)]
    return history.loc[np.logical_and.reduce(same)]


def metric_table(history: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One metric of one configuration: rounds x seeds."""
    rows = history.loc[history["metric"] == metric]
    return rows.pivot(index="round", columns="seed", values="value")


def assert_same_curves(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Histories of one configuration by two programs, which sum in another order.

    Eight local steps in float32 keep the losses to 1e-4, as in the tests of comparisons; of an
    example on the boundary between two labels the rounding may change the label.
    """
    examples = {part: len(getattr(datasets.load("digits"), part)["y"]) for part in PARTS}
    assert set(actual["metric"]) == set(expected["metric"]) > {f"{part}/loss" for part in PARTS}
    for metric in set(expected["metric"]):
        one, other = metric_table(actual, metric), metric_table(expected, metric)
        other = other.drop(index=0, errors="ignore")  # only comparisons evaluate initial models
        assert one.index.tolist() == other.index.tolist()
        assert one.columns.tolist() == other.columns.tolist()
        part, _, kind = metric.partition("/")
        slack = 1.01 / examples[part] if kind == "accuracy" else 0
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=slack, err_msg=metric)


@pytest.mark.slow
@pytest.mark.parametrize("own", COMPARED)
def test_runs_are_those_of_a_comparison(swept, compared, own):
    _, history = compared[own]
    assert history["algorithm"].unique().tolist() == list(COMPARED[own])
    for algorithm, expected in history.groupby("algorithm"):
        assert_same_curves(entry(swept.history, algorithm, *own), expected)


@pytest.mark.slow
def test_history_is_tidy_and_complete(swept, folder):
    frame = pd.read_csv(folder / "history.csv")
    pd.testing.assert_frame_equal(frame, swept.history, check_dtype=False)
    assert frame.columns.tolist() == [*KEY, "seed", "diverged_at", "round", "metric", "value"]
    runs = frame.groupby([*KEY, "seed"], sort=False).size()
    assert runs.index.tolist() == [(*own, seed) for own in CONFIGURATIONS for seed in (9, 10)]
    assert not frame.duplicated([*KEY, "seed", "round", "metric"]).any()
    assert set(runs) == {4 * len(set(frame["metric"]))}  # every round was evaluated


@pytest.mark.slow
def test_scores_are_the_last_evaluations(swept, folder):
    frame = pd.read_csv(folder / "scores.csv")
    pd.testing.assert_frame_equal(frame, swept.scores, check_dtype=False)
    assert len(frame) == len(CONFIGURATIONS) * 2
    for own in CONFIGURATIONS[:2]:
        losses = metric_table(entry(swept.history, *own), "test/loss")
        assert entry(frame, *own)["score"].tolist() == pytest.approx(losses.loc[4].tolist())


@pytest.mark.slow
def test_diverging_runs_are_recorded_with_their_round_and_never_chosen(swept, folder):
    """They leave the finite numbers in the first round that somebody reports in."""
    scores = pd.read_csv(folder / "scores.csv")
    rounds = []
    for algorithm, cohort_size in itertools.product(ALGORITHMS, (2, 4)):
        own = Study(with_settings(GRID.run, {"cohort_size": cohort_size}))
        timeline = prepare(own, datasets.load("digits")).setup.timeline
        reported = np.asarray(timeline.mask).any(axis=-1)
        found = entry(scores, algorithm, cohort_size, DIVERGING)
        assert found["diverged_at"].tolist() == (1 + reported.argmax(axis=-1)).tolist()
        assert np.isnan(found["score"].to_numpy()).all()
        rounds += found["diverged_at"].tolist()
    assert len(set(rounds)) > 1, "the schedules do not test anything"
    others = scores.loc[scores["lr"] != DIVERGING]
    assert set(others["diverged_at"]) == {0}
    assert np.isfinite(others["score"]).all()
    assert DIVERGING not in pd.read_csv(folder / "best.csv")["lr"].tolist()


def best_by_hand(
    history: pd.DataFrame, metric: str, mode: str, last: int = 1, best: bool = False
) -> pd.DataFrame:
    """The mean over seeds of every configuration that did not diverge, best first."""
    rows = history.loc[(history["metric"] == metric) & (history["lr"] != DIVERGING)]
    values = rows.sort_values("round").groupby([*KEY, "seed"])["value"]
    score = values.agg(mode) if best else values.agg(lambda x: x.tail(last).mean())
    mean = score.groupby(level=KEY).mean().sort_values(ascending=mode == "min")
    return mean.rename("mean").reset_index()


def assert_chosen(best: pd.DataFrame, means: pd.DataFrame) -> None:
    assert best["algorithm"].tolist() == ["fedavg", "fedprox"]
    for row in best.to_dict(orient="records"):
        first, second = means.loc[means["algorithm"] == row["algorithm"]].to_dict("records")[:2]
        assert abs(first["mean"] - second["mean"]) > 1e-6, "a tie tests nothing"
        assert [row[name] for name in KEY] == [first[name] for name in KEY]
        assert row["mean"] == pytest.approx(first["mean"], rel=1e-12)  # of float64 numbers


@pytest.mark.slow
def test_best_is_the_best(swept, folder):
    best = pd.read_csv(folder / "best.csv")
    best["diverged"] = best["diverged"].astype(object).fillna("")  # empty text
    pd.testing.assert_frame_equal(best, swept.best, check_dtype=False)
    assert_chosen(best, best_by_hand(swept.history, "test/loss", "min"))
    for row in best.to_dict(orient="records"):
        assert np.isnan([row["low"], row["high"]]).all()  # two seeds have no interval
        assert (row["num_seeds"], row["num_failed"]) == (2, 0)


@pytest.mark.slow
def test_paired_differences_are_those_of_scipy(swept, folder):
    scores, best = pd.read_csv(folder / "scores.csv"), pd.read_csv(folder / "best.csv")
    (row,) = pd.read_csv(folder / "paired.csv").to_dict(orient="records")
    a, b = (entry(scores, *own)["score"] for own in best[KEY].itertuples(index=False))
    expected = stats.ttest_rel(a, b)
    assert (row["a"], row["b"]) == ("fedavg", "fedprox")
    assert row["mean"] == pytest.approx(np.mean(a.to_numpy() - b.to_numpy()), rel=1e-9)
    assert row["p_value"] == row["p_holm"] == pytest.approx(expected.pvalue, rel=1e-9)
    interval = expected.confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), rel=1e-9)


@pytest.mark.slow
def test_figures_and_the_configuration_are_written(swept, folder):
    figures = {
        f"{kind}_{algorithm}{name}.png"
        for algorithm in ALGORITHMS
        for kind, name in (
            ("sensitivity", "_lr"),
            ("sensitivity", "_cohort_size"),
            ("heat_map", ""),
        )
    }
    assert {path.name for path in folder.glob("*.png")} == figures
    for name in figures:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "config.json").read_text())
    assert set(written["sweep"]) == {field.name for field in dataclasses.fields(SweepOptions)}
    assert written["sweep"]["grid"]["cohort_size"]["values"] == [2, 4]
    assert (written["settings"]["alpha"], written["settings"]["metric"]) == (1.0, "test/loss")
    assert written["environment"]["versions"]["jax"]


@pytest.mark.slow
def test_progress_is_reported_from_start_to_end(swept, events):
    groups = [{"algorithm": a, "cohort_size": m} for a in ALGORITHMS for m in (2, 4)]
    started = [progress.static for progress in events if progress.round == 0]
    assert started == groups
    assert (events[0].runs_done, events[-1].runs_done, events[-1].num_runs) == (0, 24, 24)
    assert {progress.num_rounds for progress in events} == {4}
    assert swept.sweep.compilations == len(groups)  # rates and seeds share a program


@pytest.mark.slow
def test_a_larger_grid_repeats_nothing(swept, copied):
    """One more rate, one more seed, one algorithm less, another order."""
    before = kept(copied)
    changes = {"algorithms": ("fedavg",), "hyper": {}, "seeds": 3}
    grid = {"cohort_size": (2,), "lr": (0.1, 0.3, 0.05)}
    result = run_at(copied, grid=grid, **changes)
    assert (result.sweep.resumed, len(result.sweep.runs)) == (2 * 2, 3 * 3)
    assert result.sweep.compilations == 1
    assert kept(copied).items() > before.items()
    now = runs_kept(copied)
    assert len(now) == len(set(now)) == 24 + 9 - 4  # only what was not there
    assert result.best["num_seeds"].tolist() == [3]
    # Tables and figures are of this grid; the folder has the runs of both.
    drawn = {path.name for path in copied.glob("*.png")}
    assert drawn == {"sensitivity_fedavg_lr.png"}
    assert not (copied / "paired.csv").exists()
    both = read_folder(copied).history
    assert set(both["algorithm"]) == {"fedavg", "fedprox"}
    assert both["lr"].nunique() == 4
    for lr in (0.05, 0.3):
        old, new = (entry(h, "fedavg", 2, lr) for h in (swept.history, result.history))
        new = new.loc[new["seed"] < 11]
        pd.testing.assert_frame_equal(
            new.reset_index(drop=True), old.reset_index(drop=True), check_exact=True
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "mode", "reduce"),
    [
        ("train/loss", "min", {"last": 3}),
        ("test/accuracy", "max", {"best": True}),
    ],
)
def test_another_metric_takes_no_training(swept, copied, metric, mode, reduce):
    before = kept(copied)
    result = run_at(copied, metric=metric, mode=mode, **reduce)
    assert (result.sweep.resumed, result.sweep.compilations) == (24, 0)
    assert kept(copied) == before
    assert_chosen(result.best, best_by_hand(swept.history, metric, mode, **reduce))
    written = json.loads((copied / "config.json").read_text())["settings"]
    assert (written["metric"], written["mode"]) == (metric, mode)


@pytest.mark.slow
def test_cells_and_speed_up(swept, copied):
    result = run_at(
        copied,
        metric="test/accuracy",
        mode="max",
        cells=("cohort_size", "lr"),
        over="cohort_size",
        reference=1.0,
    )
    assert result.sweep.compilations == 0
    last = swept.history.loc[
        (swept.history["metric"] == "test/accuracy") & (swept.history["round"] == 4)
    ]
    means = last.groupby(KEY)["value"].mean()

    lines = [
        line.strip("| ").split(" | ") for line in (copied / "cells.md").read_text().split("\n")
    ]
    heads, cells = lines[0], {(row[0], int(row[1])): row[2:] for row in lines[2:-1]}
    assert heads == ["algorithm", "cohort_size", "lr = 0.05", "lr = 0.3", "lr = 2e+38"]
    assert list(cells) == list(itertools.product(["fedavg", "fedprox"], [2, 4]))
    for (algorithm, size), texts in cells.items():
        assert texts[2] == "2/2 failed"
        for lr, text in zip((0.05, 0.3), texts, strict=False):
            # Three decimals, and no interval of two seeds.
            assert float(text) == pytest.approx(means[algorithm, size, lr], abs=5.1e-4)

    curve = pd.read_csv(copied / "speed_up.csv").set_index(["algorithm", "lr", "cohort_size"])
    for algorithm, lr in itertools.product(["fedavg", "fedprox"], [0.05, 0.3]):
        few, many = (1 - means[algorithm, size, lr] for size in (2, 4))
        found = curve.loc[(algorithm, lr)]
        assert found["error"].tolist() == pytest.approx([few, many], rel=1e-9)
        assert found["speed_up"].tolist() == pytest.approx([1, few / many], rel=1e-9)
        assert found["linear"].tolist() == [1, 2]
    assert np.isnan(curve.xs(DIVERGING, level="lr")["speed_up"].to_numpy()).all()
    assert (copied / "speed_up.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_error_of_the_speed_up_figure_is_named_as_it_is_computed(monkeypatch, copied):
    """A part of the sweep, with few figures."""
    labels = []
    figure = sweep_results.speed_up_figure

    def observed(*arguments, label, **options):
        labels.append(label)
        return figure(*arguments, label=label, **options)

    monkeypatch.setattr(sweep_results, "speed_up_figure", observed)
    grid = {"cohort_size": (2, 4), "lr": (0.3,)}
    own = {"over": "cohort_size", "algorithms": ("fedavg",), "hyper": {}}
    run_at(copied, grid, **own)
    assert not (copied / "speed_up.png").exists()
    run_at(copied, grid, **own, reference=0.0)
    run_at(copied, grid, **own, reference=0.5)
    run_at(copied, grid, **own, reference=1.0, metric="test/accuracy", mode="max")
    assert labels == ["test loss", "test loss - 0.5", "1 - test accuracy"]


@pytest.mark.slow
def test_numbers_of_clients_have_a_row_each_and_algorithms_one_figure(tmp_path, capsys):
    """Every number has examples of its own, those of a comparison with as many clients."""
    drawn = "data:generated --features 3 --examples 4 partition:natural --cohort-size 4".split()
    few = [
        "--rounds",
        "2",
        "--eval-every",
        "1",
        "--seeds",
        "1",
        "--lr",
        "0.1",
        "--local-steps",
        "2",
    ]
    algorithms = ["--algorithms", "fedavg", "scaffold"]
    command = [
        "sweep",
        "quickstart",
        *drawn,
        *few,
        *algorithms,
        "--output",
        str(tmp_path / "swept"),
    ]
    grid = ["--grid.num-clients.values", "5", "20", "--over", "num_clients"]
    assert main([*command, *grid]) == 0
    assert "(edge)" not in capsys.readouterr().out
    best = pd.read_csv(tmp_path / "swept" / "best.csv")
    expected = [[name, count] for name in ("fedavg", "scaffold") for count in (5, 20)]
    assert best[["algorithm", "num_clients"]].to_numpy().tolist() == expected
    figures = [path.name for path in (tmp_path / "swept").glob("*.png")]
    assert figures == ["over_num_clients.png"]
    assert not (tmp_path / "swept" / "speed_up.csv").exists()
    history = pd.read_csv(tmp_path / "swept" / "history.csv")
    run = ["run", "quickstart", *drawn, *few, *algorithms, "--output", str(tmp_path / "run")]
    for count in (5, 20):
        folder = tmp_path / f"run{count}"
        assert main([*run[:-1], str(folder), "--num-clients", str(count)]) == 0
        compared = pd.read_csv(folder / "history.csv")
        for name in ("fedavg", "scaffold"):
            own = history.loc[(history["algorithm"] == name) & (history["num_clients"] == count)]
            other = compared.loc[compared["algorithm"] == name]
            one, two = (metric_table(frame, "train/loss") for frame in (own, other))
            # Four local steps in float32, as above.
            np.testing.assert_allclose(one, two.drop(index=0), rtol=1e-4)


def test_a_reference_that_a_score_has_passed_leaves_the_other_tables(tmp_path, monkeypatch):
    history = History(np.array([4]), {"test/loss": np.array([0.5])}, {})
    runs = [
        SweepRun({"algorithm": "fedavg", "cohort_size": size}, "0", history, 0) for size in (2, 4)
    ]
    finished = Sweep(runs, False, len(runs), 0, 0.0, 0.0)
    monkeypatch.setattr(sweep, "sweep", lambda *arguments, **options: finished)
    own = {"output": tmp_path, "metric": "test/loss", "seeds": 1, "over": "cohort_size"}
    config = sweep_options({"cohort_size": (2, 4)}, **own, reference=0.0)
    run_sweep(Study(), config)
    assert (tmp_path / "speed_up.csv").exists()
    (tmp_path / "clients_mine.png").touch()  # no file of the sweep
    with pytest.raises(ValueError, match=r"^reference is 9\.0; expected it to be better than"):
        run_sweep(Study(), dataclasses.replace(config, reference=9.0))
    assert pd.read_csv(tmp_path / "scores.csv")["score"].tolist() == [0.5, 0.5]
    assert pd.read_csv(tmp_path / "best.csv")["cohort_size"].tolist() == [2, 4]
    assert not (tmp_path / "speed_up.csv").exists()
    assert (tmp_path / "clients_mine.png").exists()


def load_as(change: Callable[[datasets.Dataset], datasets.Dataset]):
    """Data sets by any name are the digits, changed."""
    load = datasets.load
    return lambda name, folder: change(load("digits"))


def doubled(dataset: datasets.Dataset) -> datasets.Dataset:
    return dataset._replace(train={**dataset.train, "x": 2 * dataset.train["x"]})


OTHERS = {  # options, data and the reason of the refusal
    "batch size": ("--batch-size 9", None, "another sweep: batch_size is 7 there and 9 here"),
    "of other seeds": ("--seed 11 --rounds 3", None, "another sweep: rounds is 4 there and 3 here"),
    "of other rates": (
        "--grid.lr.values 0.7 --dropout 0",
        None,
        "sweep: dropout is 0.6 there and 0.0",
    ),
    "hyper-parameter": ("--hyper.fedprox.mu 3", None, "fedprox.mu is 2.0 there and 3.0 here"),
    "evaluations": ("--eval-every 2", None, "eval_every is 1 there and 2 here"),
    "data set": ("--dataset mnist", lambda dataset: dataset, "dataset is 'digits' there and 'mn"),
    "same name, other data": ("", doubled, "data or settings"),
}


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_folder_of_another_sweep_is_refused(swept, folder, capsys, monkeypatch, other):
    options, change, reason = OTHERS[other]
    before = files(folder)

    def compiled(*args):
        raise AssertionError("compiles")

    monkeypatch.setattr(program.Programs, "prepare", compiled)
    if change is not None:
        monkeypatch.setattr(data.datasets, "load", load_as(change))
    assert main(["sweep", str(folder / "config.json"), *options.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: ")
    assert str(folder) in error
    assert reason in error
    assert error.count("\n") == 1
    assert files(folder) == before


def interrupting(when: Callable[[SweepProgress], bool]):
    """Returns ``console.SweepBar`` with a Ctrl-C in it."""

    class Interrupting(console.SweepBar):
        def progress(self, progress: SweepProgress) -> None:
            super().progress(progress)
            if when(progress):
                signal.raise_signal(signal.SIGINT)

    return Interrupting


@pytest.mark.slow
def test_config_json_repeats_the_sweep_also_after_ctrl_c(
    swept, folder, tmp_path, capsys, monkeypatch, allow_nans
):
    output = tmp_path / "again"
    command = ["sweep", str(folder / "config.json"), "--output", str(output)]

    def second_group(progress):
        in_group = progress.static == {"algorithm": "fedavg", "cohort_size": 4}
        return in_group and progress.round == 1

    with monkeypatch.context() as patch:
        patch.setattr(console, "SweepBar", interrupting(second_group))
        assert main(command) == 130
    printed = capsys.readouterr().out.replace("\n", "")
    assert "6 runs (0 found)" in printed
    assert f"to resume: fedjax-sim {' '.join(command)}" in printed
    # Everything there is about the first group, and nothing else: not even half a comparison.
    for name in ("history.csv", "scores.csv", "best.csv"):
        frame = pd.read_csv(output / name)
        assert frame["algorithm"].unique().tolist() == ["fedavg"]
        assert frame["cohort_size"].unique().tolist() == [2]
    assert not (output / "paired.csv").exists()

    assert main(command) == 0
    assert "24 runs (6 found), 3 programs compiled" in capsys.readouterr().out
    for name in ("history.csv", "scores.csv", "best.csv", "paired.csv"):
        assert (output / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cohort_size", "seeds_done", "scored"),
    [
        (2, 0, {}),
        (2, 1, {2: {9}}),
        (4, 1, {2: {9, 10}, 4: {9}}),
    ],
)
def test_best_has_configurations_with_all_seeds_only(
    tmp_path, capsys, monkeypatch, cohort_size, seeds_done, scored
):
    """Ctrl-C between two seeds, which one device runs one after the other."""
    monkeypatch.setattr(devices, "workers", lambda: jax.devices()[:1])

    def now(progress):
        return (progress.static["cohort_size"], progress.slices_done, progress.round) == (
            cohort_size,
            seeds_done,
            1,
        )

    monkeypatch.setattr(console, "SweepBar", interrupting(now))
    options = "--grid.lr.values 0.1 0.2 --grid.cohort-size.values 2 4 --rounds 2 --eval-every 1"
    more = "--seed 9 --seeds 2 --over cohort_size --reference 0 --metric test/loss"
    command = [*TINY, "--output", str(tmp_path), *options.split(), *more.split()]
    assert main(command) == 130
    assert "interrupted; finished runs are in" in capsys.readouterr().out
    if not scored:
        assert not (tmp_path / "history.csv").exists()
        return
    seeds = pd.read_csv(tmp_path / "scores.csv").groupby("cohort_size")["seed"]
    assert {size: set(found) for size, found in seeds} == scored
    if len(scored[2]) == 1:
        assert not (tmp_path / "best.csv").exists()
        return
    best = pd.read_csv(tmp_path / "best.csv")
    assert best[["algorithm", "cohort_size"]].to_numpy().tolist() == [["fedavg", 2]]
    assert pd.read_csv(tmp_path / "speed_up.csv")["cohort_size"].tolist() == [2]


@pytest.mark.slow
def test_a_comparison_is_a_start(compared, tmp_path, capsys):
    """Its config.json gives settings, algorithms and their hyper-parameters."""
    run, history = compared[2, 0.05]
    command = ["sweep", str(run / "config.json"), "--output", str(tmp_path), "--seeds", "2"]
    assert main([*command, "--grid.lr.values", "0.05"]) == 0
    found = pd.read_csv(tmp_path / "history.csv")
    for algorithm in ALGORITHMS:
        own = found.loc[found["algorithm"] == algorithm]
        assert_same_curves(own, history.loc[history["algorithm"] == algorithm])
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"algorithm=fedavg: 1 slice on \d devices?, 1 configuration x 1 seed each", printed
    )
    assert re.search(r"algorithm=fedprox: .* each; [\d.]+ of [\d.]+ GB each", printed)
    assert "4 runs (0 found), 2 programs compiled" in printed
    assert f"results: {tmp_path}".replace(" ", "") in printed.replace(" ", "")
    best = pd.read_csv(tmp_path / "best.csv")
    assert all(f"{mean:.4g}" in printed for mean in best["mean"])


@pytest.mark.slow
def test_settings_of_every_kind_reach_the_runs(tmp_path, capsys):
    """Counted in local steps: clients x steps of each x rounds."""
    points = tmp_path / "points.csv"
    points.write_text(
        "sampling,cohort_size,local_steps,rounds,lr\nfull,,1,1,0.1\nuniform,3,2,2,0.1\n"
    )
    output = ["--output", str(tmp_path / "swept"), "--points", str(points), "--seeds", "1"]
    assert main([*TINY, *output]) == 0
    history = pd.read_csv(tmp_path / "swept" / "history.csv")
    steps = history.loc[history["metric"] == "local_steps"].groupby("sampling")["value"].max()
    assert steps.to_dict() == {"full": 12 * 1 * 1, "uniform": 3 * 2 * 2}
    assert "2 programs compiled" in capsys.readouterr().out
    assert not (tmp_path / "swept" / "paired.csv").exists()


@pytest.mark.slow
def test_groups_of_the_same_shapes_share_a_program(tmp_path):
    own = {"algorithms": ("fedavg",), "hyper": {}, "partition": "dirichlet"}  # of equal sizes
    grid = {"lr": (0.1, 0.2), "alpha": (1, 2)}
    result = run_at(tmp_path, grid, **own)
    assert (len(result.sweep.runs), result.sweep.compilations) == (8, 1)
    again = run_at(tmp_path, grid, **own, lr=0.7)  # every configuration has its own
    assert again.sweep.resumed == 8


@pytest.mark.slow
def test_the_last_part_writes_the_tables(copied):
    """Nothing is computed: all slices are there, those of part 2 from the second call on."""
    expected = {name: (copied / name).read_bytes() for name in ("history.csv", "best.csv")}
    second = []
    for path in copied.glob("slices/*.npz"):
        with np.load(path) as file:
            entries = json.loads(str(file["meta"]))
        if all(json.loads(entry[0])["cohort_size"] == 4 for entry in entries):
            second.append((path, path.read_bytes()))
            path.unlink()
    for name in (*expected, "config.json"):
        (copied / name).unlink()
    first = run_at(copied, part=1, parts=2)
    assert (first.sweep.missing, len(first.sweep.runs), len(first.history)) == (12, 12, 0)
    assert not (copied / "history.csv").exists()
    for path, content in second:
        path.write_bytes(content)
    last = run_at(copied, part=2, parts=2)
    assert (last.sweep.missing, last.sweep.resumed, last.sweep.compilations) == (0, 24, 0)
    assert {name: (copied / name).read_bytes() for name in expected} == expected
    assert json.loads((copied / "config.json").read_text())["sweep"]["part"] is None
