"""Figures and tables of folders, without running anything: the files are written here."""

import json

import hand_made_runs
import jax
import numpy as np
import pytest
from figures import render

import fedjax_sim as fs
from fedjax_sim import analysis, plotting
from fedjax_sim.cli.main import main
from fedjax_sim.cli.plot import PlotOptions, plot
from fedjax_sim.cli.table import TableOptions, table
from fedjax_sim.runs.storage.outcome import Outcome

CONFIG = {
    "dataset": "digits", "partition": "dirichlet", "alpha": 0.3, "num_clients": 20,
    "cohort_size": 5, "local_epochs": 2, "local_steps": None, "batch_size": 7, "model": "mlp",
}  # fmt: skip


def write_run(folder, values, diverged_at, uploads=5, recorded=True, replicas=("0", "1")):
    """A run with two seeds and evaluations in rounds 0, 2 and 4, or in the first of them."""
    rows = []
    for seed in ("0", "1"):
        for done, value in zip((0, 2, 4), values, strict=False):
            loss = np.nan if 0 < diverged_at[seed] <= done else 1 - value
            rows += [(seed, done, "time", float(done)), (seed, done, "test/accuracy", value)]
            rows += [(seed, done, "train/loss", loss)]
    per_seed = dict.fromkeys(("0", "1"), uploads)
    outcome = Outcome(4, diverged_at, 20, 32, 64, per_seed) if recorded else None
    hand_made_runs.write_run(folder, rows, outcome, replicas)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "run"
    write_run(path / "fedavg", (0.1, 0.5, 0.8), {"0": 0, "1": 3})
    write_run(path / "scaffold", (0.1, 0.6, 0.9), {"0": 0, "1": 0}, uploads=[[2, 9], [4, 20]])
    config = {"settings": {**CONFIG, "algorithms": ["scaffold", "fedavg"], "target_accuracy": 0.8}}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_folders_of_comparisons_are_drawn_with_caption_and_divergence(folder):
    figure = plotting.plot_folder(folder, "test/accuracy")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines[:1]] == ["SCAFFOLD"]  # as configured
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "SCAFFOLD",
        "FedAvg: diverged in round 3 (1 of 2 seeds)",
    ]
    assert "20 clients, partition dirichlet with alpha = 0.3" in figure.get_supxlabel()
    assert axes.lines[0].get_xdata().tolist() == [0, 2, 4]
    render(figure)


def test_plot_draws_folders_and_what_load_returns(folder):
    expected = plotting.plot_folder(folder, "test/accuracy").axes[0].lines[0]
    for result in (folder, str(folder), [folder], fs.load(folder)):
        (axes,) = fs.plot(result, "test/accuracy").axes
        np.testing.assert_array_equal(axes.lines[0].get_xydata(), expected.get_xydata())


def test_dashboards_of_folders(folder, tmp_path):
    path = plot([folder], PlotOptions(dashboard=True, output=tmp_path / "dashboard.svg"))
    assert "FedAvg: diverged in round 3 (1 of 2 seeds)" in path.read_text()
    with pytest.raises(ValueError, match="clients is 'rounds'; expected 'none' with --dashboard"):
        plot([folder], PlotOptions(dashboard=True, clients="rounds", output=path))


def test_bits_are_those_of_the_uploads_until_a_round(folder):
    lines = plotting.plot_folder(folder, "test/accuracy", x="bits").axes[0].lines
    assert lines[0].get_xdata().tolist() == [0, 9 * 96, 20 * 96]
    assert lines[1].get_xdata().tolist() == [0, 10 * 96, 20 * 96]
    figure = plotting.plot_folder(folder, "test/accuracy", x="bits", bits={"fedavg": (1, 1)})
    assert figure.axes[0].lines[1].get_xdata().tolist() == [0, 20, 40]


def test_folders_without_a_record_have_no_bits_and_divergences_of_evaluations(tmp_path):
    write_run(tmp_path / "old", (0.1, 0.5, 0.8), {"0": 0, "1": 3}, recorded=False)
    with pytest.raises(ValueError, match="x is 'bits', which the folder does not record for old"):
        plotting.plot_folder(tmp_path / "old", x="bits")
    history = analysis.read_folder(tmp_path / "old").history
    assert history.groupby("seed")["diverged_at"].max().tolist() == [0, 4]


def test_seeds_with_setups_of_their_own_are_one_algorithm(tmp_path):
    for seed in ("0", "7"):
        folder = tmp_path / "mine" / seed
        write_run(folder, (0.1, 0.5, 0.8), {"0": 0, "1": 0}, replicas=[seed])
    for path in (tmp_path, tmp_path / "mine"):
        assert analysis.read_folders([path]).history["algorithm"].unique().tolist() == ["mine"]


@pytest.mark.slow
def test_sweeps_record_the_bits_until_each_evaluation(tmp_path):
    """Two of three clients report per round; a model has 32 bits, SCAFFOLD sends two."""
    data = fs.FederatedData({"y": np.ones(3, np.float32)}, np.array([0, 1, 2, 3]))
    task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
    timeline = fs.timelines.cyclic(4, 3, 2, task.num_steps)
    error = lambda w: {"error": abs(w - 1)}  # noqa: E731
    setup = fs.Setup(task, timeline, np.zeros(2, np.float32), error, eval_every=2)
    keys = jax.random.split(jax.random.key(0), 2)
    for _ in range(2):  # the second call reads the slices
        fs.sweep(fs.scaffold, setup, {"lr": [0.1, 0.2]}, keys, storage=tmp_path)
        (line,) = plotting.plot_folder(tmp_path, x="bits").axes[0].lines
        assert line.get_xdata().tolist() == [2 * 2 * 128, 4 * 2 * 128]
        assert line.get_label() == "learning rate 0.2"


def test_several_folders_have_their_names(folder, tmp_path):
    write_run(tmp_path / "other" / "fedavg", (0.1, 0.3, 0.4), {"0": 0, "1": 0})
    history = analysis.read_folders([folder, tmp_path / "other"]).history
    assert history["algorithm"].unique().tolist() == [
        "SCAFFOLD, run", "FedAvg, run", "FedAvg, other"
    ]  # fmt: skip


@pytest.mark.slow  # imports the parser and the fonts
def test_commands_write_figures_and_tables(folder, tmp_path, capsys):
    path = tmp_path / "figure.svg"
    options = ["--x", "time", "--y", "test/accuracy", "--log", "y", "--seeds-as-lines"]
    assert main(["plot", str(folder), *options, "--size", "4", "3", "--output", str(path)]) == 0
    assert ">SCAFFOLD</text>" in path.read_text()
    capsys.readouterr()
    command = ["table", str(folder), "--target", "0.8", "--metric", "test/accuracy"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    new = tmp_path / "new" / "folder" / "table.md"
    assert main([*command, "--output", str(new)]) == 0
    assert new.read_text() == printed
    assert "| SCAFFOLD | 0.900 | 4 |" in printed
    assert "| FedAvg | diverged in round 3 (1 of 2 seeds) | 4 (1 of 2 seeds) |" in printed


def test_tables_name_the_last_rounds_if_these_differ(folder, tmp_path):
    assert "Last evaluation" not in table([folder], TableOptions())
    write_run(tmp_path / "fedavg", (0.1, 0.3, 0.4), {"0": 0, "1": 0})
    write_run(tmp_path / "scaffold", (0.1, 0.3), {"0": 0, "1": 0})  # was not extended
    shown = table([tmp_path], TableOptions())
    assert "5 per round. Last evaluation: round 4 (FedAvg), 2 (SCAFFOLD). Mean over" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot"], "FOLDER is missing"),
        (["plot", "nowhere"], "folder is 'nowhere', which does not exist"),
        (["plot", "{}", "--output", "x.jpg"], "--output is 'x.jpg'; expected a name that ends in"),
        (["plot", "{}", "--y", "loss"], r"--y is ['loss']; expected some of"),
        (["plot", "{}", "--y", "test/accurcy"], "did you mean test/accuracy?"),
        (["plot", "{}", "--size", "0", "1"], "--size is (0.0, 1.0); expected"),
        (["plot", "{}", "--dpi", "0"], "--dpi is 0.0; expected a positive number"),
        (["plot", "{}", "--clients", "rounds"], "has no clients.csv"),
        (["table", "{}", "--metric", "loss"], "--metric is 'loss'; expected one of"),
        (["table", "{}", "--metric", "test/acc"], "did you mean test/accuracy?"),
        (["table", __file__], "which is a file; expected a folder"),
        (["table", "{}", "--last", "9"], "--last is 9; expected at most "),
        (["table", "{}", "--last", "0"], "--last is 0; expected at least 1\n"),
        (["export", "{}", "{}"], "FOLDER is given 2 times; expected one"),
        (
            ["fork", "{}", "{}", "--round", "1", "--alternatives.slow.hyper.lr", "1"],
            "FOLDER is given 2 times",
        ),
        (["table", "{}/.."], "which has no run"),
    ],
)
def test_bad_arguments_are_one_line(folder, arguments, message, capsys):
    assert main([text.format(folder) for text in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
