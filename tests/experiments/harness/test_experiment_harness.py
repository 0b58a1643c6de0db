"""The harness of the experiments: kept runs, tables, files."""

import json
import math
import pathlib
import shlex
import types

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from made_up_images import images
from PIL import Image

import fedjax_sim as fs
from experiments.harness import figures, runs
from experiments.harness.data import pooled_test, subsample
from experiments.harness.report import Report, command, earlier_commands, rounded, write_csv
from experiments.harness.tables import (
    Claim,
    Estimate,
    Spread,
    claims_table,
    exact,
    late_scores,
    number,
    paired,
    rounds_by,
)
from fedjax_sim.runs.sweeps import program

COLUMNS = ["method", "lr", "seed", "diverged_at", "round", "metric", "value"]


def history(curves, rounds=(5, 50, 60, 100)):
    """Tidy rows of accuracies ``{method: [seeds, rounds]}``."""
    rows = [
        (method, 0.1, seed, 0, done, "accuracy", value)
        for method, seeds in curves.items()
        for seed, values in enumerate(seeds)
        for done, value in zip(rounds, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def test_more_seeds_leave_the_first_ones_as_they_were():
    """Keys are those of ``fold_in(key(root), seed)``, which kept runs depend on."""
    keys = runs.seed_keys(3, root=1)
    expected = [jax.random.fold_in(jax.random.key(1), seed) for seed in range(3)]
    data = jax.random.key_data(keys)
    np.testing.assert_array_equal(data, jax.random.key_data(jnp.stack(expected)))
    np.testing.assert_array_equal(data[:2], jax.random.key_data(runs.seed_keys(2, root=1)))
    draw, use = runs.split_keys(keys, 2)
    for seed in range(3):
        both = jax.random.key_data(jax.random.split(expected[seed], 2))
        np.testing.assert_array_equal(jax.random.key_data(draw[seed]), both[0])
        np.testing.assert_array_equal(jax.random.key_data(use[seed]), both[1])


@pytest.mark.slow
def test_a_sweep_is_kept_and_its_identity_is_checked(tmp_path, monkeypatch, capsys):
    x = np.eye(4, dtype=np.float32)
    data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 5, 2))
    loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2  # noqa: E731
    task = fs.empirical_task(loss, data, fs.full_batch(1))
    timeline = fs.timelines.full(3, 2, task.num_steps)
    error = lambda w: {"error": abs(w - 1).max()}  # noqa: E731
    setup = fs.Setup(task, timeline, jnp.zeros((2, 4)), eval_fn=error)

    def sweep(**identity):
        grid, keys = {"lr": [0.1, 0.2]}, runs.seed_keys(2)
        return runs.swept(fs.fedavg, setup, grid, keys, tmp_path, config=identity)

    first = sweep(l2=0.0)
    assert set(first["seed"]) == {0, 1}
    assert "4 runs, 0 found" in capsys.readouterr().out
    monkeypatch.setattr(program.Programs, "prepare", None)  # nothing is run again
    pd.testing.assert_frame_equal(sweep(l2=0.0), first)
    assert "4 runs, 4 found" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"config differ from sweep\.json"):
        sweep(l2=1.0)


def test_an_interrupted_run_names_its_folder(tmp_path):
    result = types.SimpleNamespace(interrupted=True)
    with pytest.raises(SystemExit, match=r"the same command continues from .*kept"):
        runs.check_finished(result, tmp_path / "kept")
    runs.check_finished(types.SimpleNamespace(interrupted=False), tmp_path)


def test_damaged_frames_are_missing(tmp_path):
    kept = runs.KeptFrames(tmp_path, {"lr": 0.1})
    frame = pd.DataFrame({"round": [1, 2], "loss": [0.5, 0.25]})
    for seed in range(3):
        kept.save(seed, frame)
    assert kept.missing(range(4)) == [3]
    (kept.folder / "0.csv").write_text("round,loss\n1,0.")
    (kept.folder / "1.csv").rename(kept.folder / "1.tmp")
    again = runs.KeptFrames(tmp_path, {"lr": 0.1})
    assert again.missing(range(3)) == [0, 1]
    assert runs.KeptFrames(tmp_path, {"lr": 0.2}).missing([2]) == [2]
    assert json.loads((kept.folder / "run.json").read_text()) == {"lr": 0.1}


def test_kept_json_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"value": float("nan")}

    path = tmp_path / "new" / "case.json"
    assert runs.kept_json(path, compute) == {"value": None}
    assert runs.kept_json(path, compute) == {"value": None}
    assert len(calls) == 1


def test_late_scores_are_means_of_the_last_rounds():
    made = history({"a": [[0.9, 0.8, 0.2, 0.4]]})
    for last, expected in ((50, 0.3), (51, 1.4 / 3), (1, 0.4), (1000, 2.3 / 4)):
        score = late_scores(made, "accuracy", last, "max")["score"]
        np.testing.assert_allclose(score, [expected], rtol=1e-12)


def test_rounds_are_medians_over_seeds():
    made = history({"a": [[0.1, 0.5, 0.5, 0.9]] * 2 + [[0.9] * 4], "b": [[0.1] * 4]})
    assert rounds_by(made, "method", "accuracy", 0.5, "max") == {"a": "50", "b": "not reached"}


def test_claims_mark_thresholds_that_are_ours():
    claims = [
        Claim("a above b", "2 and 1", True, "IID"),
        Claim("much above", {"ratio": 2.0}, False, "IID", "> 1.5 x"),
    ]
    table = claims_table(claims)
    assert table["our threshold"].tolist() == ["", "> 1.5 x"]
    assert table["agrees"].tolist() == ["yes", "no"]
    assert table["found"].tolist() == ["2 and 1", "ratio 2"]
    columns = ["claim", "found", "agrees", "kind", "seeds", "low", "high"]
    assert claims_table([Claim("a", "1", True)]).columns.tolist() == columns


def test_evidence_is_that_of_the_least_certain_part():
    """Student's t with two degrees of freedom: 4.303 s / sqrt(3)."""
    half = 4.302653 / 3**0.5
    ahead, level = [9.0, 10.0, 11.0], [-1.0, 0.0, 1.0]
    claims = [
        paired("both", "", [ahead, level]),
        exact("bound", "", [2.0, -0.5]),
        number("entry", Spread(90.4, 0.1, 3), 90.0, 1.0),
        paired("one seed", "", [[1.0]]),
        Claim("spread", "", True, margins=[Spread(10.0, 1.0, 3)]),
        Claim("none", "", True),
        paired("diverged", "", [[math.nan, 1.0, 2.0], [-9.0, -10.0, -11.0]]),
    ]
    table = claims_table(claims)
    assert table["kind"].tolist() == ["seeds", "exact", "number", *["seeds"] * 4]
    assert table["seeds"].tolist() == [3, 1, 3, 1, 3, "", 3]
    low, high = table["low"], table["high"]
    np.testing.assert_allclose(low[:3], [-half, -0.5, 0.6 - 0.1 * half], rtol=1e-6)
    np.testing.assert_allclose(high[:3], [half, -0.5, 0.6 + 0.1 * half], rtol=1e-6)
    np.testing.assert_allclose([low[4], high[4]], [10 - half, 10 + half], rtol=1e-6)
    assert low[[3, 5]].isna().all()
    np.testing.assert_allclose(high[6], half - 10, rtol=1e-6)  # one part fails, whatever the other


@pytest.mark.parametrize(
    ("mean", "std", "signs"),
    [(90.5, 0.1, (1, 1)), (92.0, 0.1, (-1, -1)), (80.0, 0.1, (-1, -1)), (100.0, 9.0, (-1, 1))],
)
def test_a_number_with_a_wide_interval_decides_nothing(mean, std, signs):
    table = claims_table([number("entry", Spread(mean, std, 3), 90.0, 1.0)])
    assert (np.sign(table["low"][0]), np.sign(table["high"][0])) == signs


def test_report_writes_all_files(tmp_path, monkeypatch):
    figure = plt.figure()
    report = Report("Title", "Setting.", "")
    report.section("Empty", pd.DataFrame())
    report.claims([Claim("holds", "1", True)])
    folder = tmp_path / "paper" / "script"
    table = pd.DataFrame({"loss": [1 / 3]})
    report.save(folder, "run", table, {"curve": figure}, options={"seeds": 2}, ratio=np.float32(2))
    assert {path.name for path in folder.iterdir()} == {
        "run.md", "run.csv", "run.json", "curve.png"
    }  # fmt: skip
    text = (folder / "run.md").read_text()
    assert text.startswith("# Title\n\nSetting.\n\n## The paper's claims\n\n| claim |")
    assert "Empty" not in text
    assert (folder / "run.csv").read_text() == "loss\n0.33333\n"
    facts = json.loads((folder / "run.json").read_text())
    assert facts["options"] == {"seeds": 2}
    assert f"`{facts['command']}`" in text
    assert facts["environment"]["versions"]["jax"]
    assert not plt.fignum_exists(figure.number)


def test_rounded_tables_print_as_those_of_the_files_do(tmp_path):
    """0.31884999 has four digits 0.3188; five of them first, it would have 0.3189."""
    table = pd.DataFrame({"name": ["a"], "seconds": [0.31884999]})
    write_csv(tmp_path / "t.csv", table)
    pd.testing.assert_frame_equal(rounded(table), pd.read_csv(tmp_path / "t.csv"))
    assert f"{rounded(table)['seconds'][0]:.4g}" != f"{table['seconds'][0]:.4g}"
    assert rounded(pd.DataFrame()).empty


def test_command_is_that_of_the_module(monkeypatch):
    main = types.SimpleNamespace(__spec__=types.SimpleNamespace(name="experiments.fedswa.table2"))
    monkeypatch.setattr("sys.modules", {**__import__("sys").modules, "__main__": main})
    arguments = ["--work", "/kept", "--seeds", "3", "--data-dir", "/data", "--output", "/out"]
    assert command(arguments) == "python -m experiments.fedswa.table2 --seeds 3"
    # Values of an option that takes several are dropped and kept as a whole.
    arguments = ["--methods", "FedAvg", "FedSWA", "--work=/kept", "--rounds", "5"]
    assert command(arguments).endswith("table2 --methods FedAvg FedSWA --rounds 5")
    # From nothing, there are no finished runs; a report keeps its folder.
    arguments = ["--finished", "--seeds", "3", "--output", "experiments/results/longer"]
    assert command(arguments).endswith("table2 --seeds 3 --output experiments/results/longer")
    assert command([f"--output={arguments[-1]}"]).endswith(f"table2 --output={arguments[-1]}")
    # Names with spaces, as those of FAVANO's settings, stay one argument.
    arguments = ["--settings", "IID, 2/3 fast", "--seeds", "1"]
    assert shlex.split(command(arguments))[3:] == arguments


def test_reports_name_all_commands_that_add_to_them(tmp_path, capsys):
    report, table = Report("Title"), pd.DataFrame({"loss": [1.0]})
    report.save(tmp_path, "run", table, earlier=["python -m experiments.x --sets I"])
    written = json.loads((tmp_path / "run.json").read_text())["command"]
    wanted = f"# Title\n\n`python -m experiments.x --sets I`, then `{written}`\n"
    assert (tmp_path / "run.md").read_text() == wanted
    report.redraw(tmp_path, "run", {})
    assert (tmp_path / "run.md").read_text() == wanted
    # The same command again adds to nothing.
    assert earlier_commands(tmp_path, "run") == {"earlier": ["python -m experiments.x --sets I"]}


def test_data_of_the_writers_that_train():
    made = images(4, 1, train=20, test=6)
    with pytest.raises(ValueError, match="has no writers"):
        pooled_test(made)
    groups = np.arange(20) % 2
    made = made._replace(train_groups=groups, test_groups=np.array([0, 1, 2, 0, 2, 3]))
    np.testing.assert_array_equal(pooled_test(made)["y"], made.test["y"][[0, 1, 3]])
    strangers = made._replace(test_groups=np.full(6, 9))
    assert len(pooled_test(strangers)["y"]) == 6
    assert len(subsample(made.train, 3)["y"]) == 3
    assert subsample(made.train, None)["y"] is not None


def test_figures():
    table = pd.DataFrame({"method": ["a", "a", "b"], "rho": [0.1, 0.2, 0.1], "value": [1, 2, 3]})
    drawn = figures.lines(table, "rho", "value", ["method"])
    assert [line.get_label() for line in drawn.axes[0].lines] == ["a", "b"]
    assert not drawn.axes[0].get_legend()  # the figure's, beside the lines
    names = [
        text.get_text()
        for text in figures.lines(table, "value", "value", ["method", "rho"]).legends[0].get_texts()
    ]
    assert names == ["a rho 0.1", "a rho 0.2", "b rho 0.1"]
    many = pd.DataFrame({"method": [f"{i}" for i in range(30)], "x": 1.0, "y": 2.0})
    looks = {
        (line.get_color(), line.get_linestyle())
        for line in figures.lines(many, "x", "y", ["method"]).axes[0].lines
    }
    assert len(looks) == 30
    plt.close("all")
    wide = pd.DataFrame({"algorithm": ["a"], "seed": [0], "time": [1.0], "x": [1.0], "y": [None]})
    tidy = figures.tidy(wide, ["x", "y"], ["algorithm", "seed", "time"])
    assert tidy["metric"].tolist() == ["x"]


def test_kept_figures_show_what_was_drawn_with_few_colours(tmp_path):
    """All but a few pixels at the edges of lines are within 8 of 255 of the drawn ones."""
    lines = pd.DataFrame({"method": list("aabb"), "rho": [1, 2, 1, 2], "value": [1, 2, 2, 1]})
    drawn = figures.lines(lines, "rho", "value", ["method"])
    drawn.savefig(tmp_path / "drawn.png", dpi=figures.DPI)
    figures.save(drawn, tmp_path / "new" / "kept.png")
    kept = Image.open(tmp_path / "new" / "kept.png")
    assert len(kept.getcolors()) <= figures.COLOURS
    pixels = [
        np.asarray(image.convert("RGB"), np.int32)
        for image in (kept, Image.open(tmp_path / "drawn.png"))
    ]
    assert np.mean(abs(pixels[0] - pixels[1]) > 8) < 0.005


@pytest.mark.parametrize(
    ("interval", "right"),
    [((-0.2, 0.1), True), ((0.4, 0.6), False), ((0.1, 0.5), None), ((np.nan, np.nan), None)],
)
def test_an_expectation_is_right_where_the_interval_is_inside(interval, right):
    assert Estimate(0.0, *interval).between(-0.3, 0.3) is right


def test_papers_do_not_import_from_each_other():
    """Shared code is in the harness; the page of reproductions is about all papers."""
    root = pathlib.Path(__file__).parents[3] / "experiments"
    papers = {path.name for path in root.iterdir() if (path / "__init__.py").exists()} - {
        "harness",
        "reproductions",
    }
    assert {"fedswa", "favano", "system"} <= papers
    for paper in papers:
        for file in (root / paper).rglob("*.py"):
            for other in papers - {paper}:
                assert f"experiments.{other}." not in _imports(file), (file, other)
                assert f"from experiments.{other} " not in file.read_text(), (file, other)


def _imports(file):
    lines = file.read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith(("from ", "import ")))


def test_scripts_are_short():
    """At most 150 lines."""
    root = pathlib.Path(__file__).parents[3] / "experiments"
    scripts = [path for path in root.rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    assert len(scripts) > 10
    long = {str(s): n for s in scripts if (n := len(s.read_text().splitlines())) > 150}
    assert not long


def test_results_in_git_are_small():
    """At most 8 MB: tables, small CSV files, one or two figures per table."""
    results = pathlib.Path(__file__).parents[3] / "experiments" / "results"
    sizes = {path: path.stat().st_size for path in results.rglob("*") if path.is_file()}
    assert len(sizes) > 100
    assert sum(sizes.values()) < 8e6
