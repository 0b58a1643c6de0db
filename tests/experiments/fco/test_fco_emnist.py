"""Constrained models on handwriting: classes, writers, models, claims, a whole experiment."""

import dataclasses
import json
import re

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from experiments.fco import emnist, emnist_report
from experiments.fco import handwriting as problem
from experiments.fco.claims import judged
from experiments.fco.methods import METHODS
from experiments.fco.selection import Selected, select
from fedjax_sim.datasets import Dataset

WRITERS = 20


def handwriting(name="femnist", num_classes=62):
    """Pages of 20 writers with few images each; every pixel of an image is its label."""
    rng = np.random.default_rng(0)

    def part(size):
        y = rng.integers(0, num_classes, size).astype(np.int32)
        x = np.broadcast_to(y[:, None, None, None], (size, 28, 28, 1)).astype(np.uint8)
        return {"x": x, "y": y}, (np.arange(size) % WRITERS).astype(np.int32)

    (train, groups), (test, test_groups) = part(2000), part(400)
    # Numbers against the order of the names: the writer of group 0 comes last.
    names = tuple(f"writer {WRITERS - i:02}" for i in range(WRITERS))
    return Dataset(name, train, test, num_classes, groups, test_groups, names, "files")


@pytest.mark.parametrize("name", ["femnist", "mnist"])
def test_digits_are_the_first_classes_on_a_dark_ground(name):
    whole = handwriting(name)
    digits = problem.first_classes(whole, 10)
    assert digits.num_classes == 10
    for before, groups, after, kept_groups in (
        (whole.train, whole.train_groups, digits.train, digits.train_groups),
        (whole.test, whole.test_groups, digits.test, digits.test_groups),
    ):
        kept = before["y"] <= 9
        assert 0 < kept.sum() < len(kept)
        np.testing.assert_array_equal(after["y"], before["y"][kept])
        np.testing.assert_array_equal(kept_groups, groups[kept])
        ink = after["x"][:, 0, 0, 0]  # the label, on LEAF's white paper 255 less it
        np.testing.assert_array_equal(ink if name == "mnist" else 255 - ink, after["y"])
        assert after["x"].dtype == np.uint8
    # All 62 classes are flipped, too.
    assert len(problem.first_classes(whole, 62).train["y"]) == 2000


def test_first_writers_by_name():
    digits = problem.first_classes(handwriting(), 10)
    data = problem.writers(digits, 0.1)
    assert data.client_ids == ("writer 01", "writer 02")
    expected = digits.train["y"][digits.train_groups == WRITERS - 1]
    np.testing.assert_array_equal(data.client(0)["y"], expected)
    assert problem.writers(digits, 1.0).num_clients == WRITERS
    assert problem.writers(digits, 1.0).num_examples == len(digits.train["y"])
    assert problem.writers(digits, 1.0, 3).client_ids[-1] == "writer 03"
    assert problem.writers(digits, 0.001).num_clients == 1
    with pytest.raises(ValueError, match="dataset 'femnist' has no writers; expected"):
        problem.writers(digits._replace(train_groups=None), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "widths"), [("4b", [784, 10]), ("4c", [784, 200, 200, 62])])
def test_initial_models_are_keras(name, widths):
    """Uniform up to sqrt(6 / (inputs + outputs)): of 7,840 entries or more the largest is within
    1 %, and the standard deviation, limit / sqrt(3), within 5 %: six standard errors."""
    params = jax.jit(problem.TASKS[name].build_model().init)(jax.random.key(0))
    assert len(params) == len(widths) - 1
    for layer, inputs, outputs in zip(params.values(), widths[:-1], widths[1:], strict=True):
        kernel = np.asarray(layer["kernel"])
        assert kernel.shape == (outputs, inputs)
        limit = np.sqrt(6 / (inputs + outputs))
        assert 0.99 * limit < abs(kernel).max() <= limit
        assert kernel.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)
        assert not np.any(layer["bias"])


def test_size_is_the_largest_kernels():
    kernels = [np.array([[3.0, -4.0]], np.float32), np.array([[1.0], [6.0]], np.float32)]
    params = {str(i): {"kernel": k, "bias": np.full(2, 1e3, np.float32)}
              for i, k in enumerate(kernels)}  # fmt: skip
    sizes = [problem.Constraint(norm, 2.0).size(params) for norm in ("l1", "l2")]
    np.testing.assert_allclose(sizes, [3.5, np.sqrt(37) / 2], rtol=1e-6)  # single precision


def made_up(**ends):
    """Curves of 20 evaluations that end with ten equal ones."""
    names = dict(zip(("dual", "osp", "mid", "mid_osp"), METHODS, strict=True))
    return {
        names[short]: {"round": np.arange(1, 21)}
        | {metric: np.r_[np.full(10, 9.0), np.full(10, value)]
           for metric, value in zip(emnist_report.METRICS, values, strict=True)}
        for short, values in ends.items()
    }  # fmt: skip


def checked(name, curves):
    rates = dict.fromkeys(curves, (0.1, 1.0))
    rows = [(m, 0.1, 1.0, 0, curve["train/loss"][-1]) for m, curve in curves.items()]
    score = pd.DataFrame(rows, columns=["method", "lr", "server_lr", "seed", "score"])
    empty = pd.DataFrame()
    selected = Selected("train/loss", "min", 10, score, empty, empty, empty, curves, rates)
    claims = judged(name, emnist_report.STATEMENTS, selected)
    return {claim.text: claim.holds for claim in claims}


def test_claims():
    """The paper's figures hold them all; swapped methods, or a missing one, do not."""
    mid = {"mid": (0.30, 0.91, 0.90), "mid_osp": (0.301, 0.909, 0.901)}
    for name, osp in (
        ("4a", (0.299, 0.911, 0.902)),
        ("4b", (0.60, 0.95, 0.94)),
        ("4c", (4.0, 0.2, 0.2)),
    ):
        held = checked(name, made_up(dual=(0.2, 0.93, 0.92), osp=osp, **mid))
        assert all(held.values()), held
        assert len(held) == {"4a": 5, "4b": 8, "4c": 6}[name]
    worse = checked("4a", made_up(dual=(0.4, 0.89, 0.88), osp=(0.5, 0.9, 0.9), **mid))
    assert [text for text, holds in worse.items() if holds] == [
        "FedMiD and FedMiD-OSP nearly coincide"
    ]
    even = checked("4b", made_up(dual=(0.3, 0.91, 0.9), osp=(0.3, 0.91, 0.9), **mid))
    assert sum(even.values()) == 1
    assert len(checked("4b", made_up(**mid))) == 1  # only what needs no other method


def test_all_metrics_of_the_table_are_late_means():
    """Sizes of 0.5 and 1 in turn; the other metrics are equal in all evaluations."""
    rows = [
        ("FedDualAvg", lr, 1.0, 0, 0, done, metric, value)
        for lr in (0.1, 0.2)
        for done in range(1, 21)
        for metric, value in zip(
            (*emnist_report.METRICS, problem.SIZE), (lr, 0.9, 0.8, 1 - done % 2 / 2), strict=True
        )
    ]
    columns = ["method", "lr", "server_lr", "seed", "diverged_at", "round", "metric", "value"]
    selected = select(pd.DataFrame(rows, columns=columns), "train/loss", emnist_report.LAST)
    facts = {"options": {"scale": "cpu", "dataset": "femnist"}, "setting": "Small"}
    facts |= {"violations": {"FedDualAvg": 0.0}, "at_boundary": 0.5}
    report, figures = emnist_report.build("4a", selected, {}, facts)
    for figure in figures.values():
        plt.close(figure)
    assert "| FedDualAvg | 0.1 | 1 | 0.1 | 0.9 | 0.8 | 0.75 | 0 | lr | 0 of 2 |" in report.text


def test_violations_are_excesses():
    frame = pd.DataFrame(
        [("a", problem.SIZE, 0.5), ("a", problem.SIZE, 1.25), ("b", problem.SIZE, 0.9995),
         ("b", problem.SIZE, np.nan), ("b", "train/loss", 7.0)],
        columns=["method", "metric", "value"],
    )  # fmt: skip
    assert emnist_report.violations(frame) == {"a": 0.25, "b": 0.0}
    assert emnist_report.at_boundary(frame) == 0.5


def test_facts_of_two_parts_of_a_grid():
    parts = [
        {"violations": {"a": 0.1, "b": 0.0}, "at_boundary": 0.5, "runs": 3},
        {"violations": {"a": 0.2}, "at_boundary": 0.1, "runs": 1},
    ]
    both = emnist_report.joined(*parts)
    assert both == {"violations": {"a": 0.2, "b": 0.0}, "at_boundary": 0.4, "runs": 4}


def options(tmp_path, **given):
    small = {"scale": "smoke", "tasks": ("4b",), "lrs": (0.03, 0.1), "server_lrs": (1.0,)}
    return emnist.Options(**small | given, work=tmp_path / "work", output=tmp_path / "out")


@pytest.mark.slow
def test_scales_bound_rounds_clients_and_steps(tmp_path):
    data = handwriting()
    shared, clients = emnist.make_problem("4a", data, options(tmp_path, clients="all"))
    assert clients.num_clients == 10
    assert shared.timeline.clients.shape == (1, 2, 10)
    assert shared.task.num_steps.max() == 3
    given = options(tmp_path, scale="paper", rounds=4, seeds=2)
    shared, clients = emnist.make_problem("4c", data, given)  # 100 images a writer
    assert clients.num_clients == WRITERS
    assert shared.timeline.clients.shape == (2, 4, 10)
    assert shared.task.num_steps.tolist() == [100] * WRITERS
    assert emnist.Options(scale="paper").limits("4a").rounds == 5000


@pytest.mark.slow
def test_files_and_continuing(tmp_path, monkeypatch, capsys):
    """A ball that binds; a second call finds all runs and writes the same bytes."""
    monkeypatch.setattr(emnist.datasets, "load", lambda *name: handwriting())
    ball = problem.Constraint("l2", 0.5)  # the initial kernel's norm is about 4.4
    monkeypatch.setitem(emnist.TASKS, "4b", emnist.TASKS["4b"]._replace(constraint=ball))
    given = options(tmp_path, clients="all", methods=("FedDualAvg", "FedMiD", "FedMiD-OSP"))
    emnist.main(given)
    first = capsys.readouterr().out
    assert first.count("2 runs, 0 found") == 3
    folder = tmp_path / "out" / "emnist-femnist-smoke-all"
    text = (folder / "4b.md").read_text()
    assert "every kernel in an l2 ball of 0.5" in text
    assert "Scale smoke: femnist, 10 classes, writers: 10 clients" in text
    assert "2 of the paper's 5000 rounds" in text
    assert re.search(r"all evaluated models \d+.* % have a kernel at the boundary", text)
    history = (folder / "4b.csv").read_bytes()
    sizes = pd.read_csv(folder / "4b.csv").rename(columns={problem.SIZE: "value"})
    # As many digits as the file has.  FedMiD's are means of models at the boundary.
    assert sizes["value"].max() <= 1 + 1e-5
    duals = sizes.loc[sizes["method"] == "FedDualAvg", "value"]
    np.testing.assert_allclose(duals, 1, atol=1e-5)
    assert sizes.loc[sizes["method"] == "FedMiD", "value"].max() < 1
    assert len(pd.read_csv(folder / "4b-scores.csv")) == 6
    assert json.loads((folder / "4b.json").read_text())["options"]["scale"] == "smoke"
    for name in ("4b", "4b-rates"):
        assert (folder / f"{name}.png").stat().st_size > 2_000
    emnist.main(given)
    assert capsys.readouterr().out.count("2 runs, 2 found") == 3
    assert (folder / "4b.csv").read_bytes() == history
    (folder / "4b.md").unlink()
    emnist_report.redraw(folder, "4b", grids=True)
    assert (folder / "4b.md").read_text().splitlines()[:4] == text.splitlines()[:4]
    assert (folder / "4b-fedmid-osp-grid.png").stat().st_size > 2_000
    # More rates join the kept ones, whose runs are not repeated.
    emnist.main(dataclasses.replace(given, lrs=(0.1, 0.3), widen=True))
    assert capsys.readouterr().out.count("2 runs, 1 found") == 3
    scores = pd.read_csv(folder / "4b-scores.csv")
    assert scores.groupby("method")["lr"].agg(list).tolist() == [[0.03, 0.1, 0.3]] * 3
    assert scores[["train/accuracy", "test/accuracy"]].notna().to_numpy().all()
    assert json.loads((folder / "4b.json").read_text())["runs"] == 12
    assert (
        "3 pairs of rates per method, client rates from 0.03 to 0.3"
        in (folder / "4b.md").read_text()
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dataset": "digits"}, "dataset is 'digits'; expected one of"),
        ({"scale": "tiny"}, "scale is 'tiny'; expected one of"),
        ({"clients": "half"}, "clients is 'half'; expected one of"),
        ({"tasks": ("4d",)}, r"tasks is \('4d',\); expected some of 4a, 4b, 4c"),
        ({"tasks": ()}, r"tasks is \(\); expected some of"),
        ({"dataset": "mnist", "tasks": ("4c",)}, "expected 4a, 4b with mnist, which has digits"),
        ({"methods": ("FedAvg",)}, r"methods is \('FedAvg',\); expected some of FedDualAvg"),
        ({"rounds": 0}, "rounds is 0; expected at least 1"),
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"lrs": (0.1, -1.0)}, r"lrs is \(0.1, -1.0\); expected positive numbers"),
    ],
)
def test_bad_options(given, message):
    with pytest.raises(ValueError, match=message):
        emnist.Options(**given)
