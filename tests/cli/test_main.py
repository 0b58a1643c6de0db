"""The command line, end to end on a tiny comparison."""

import dataclasses
import json
import pathlib
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import types
import typing

import pandas as pd
import pytest

from fedjax_sim import datasets, models
from fedjax_sim.cli import docstrings, run
from fedjax_sim.cli.main import main
from fedjax_sim.runs import comparison as comparing
from fedjax_sim.runs.simulation import execute
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    HIDDEN,
    PRESETS,
    Run,
    entries,
    flat,
    kind_of,
    names_of,
)

TINY = shlex.split(
    "run quickstart --model softmax_regression --num-clients 20 --cohort-size 3 --rounds 4 "
    "--local-steps 2 --seeds 2 --eval-every 1 --algorithms fedavg scaffold"
)
SMALL = shlex.split(
    "run quickstart --model softmax_regression --num-clients 20 --cohort-size 3 --rounds 1 "
    "--local-steps 1 --seeds 1 --algorithms fedavg"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> pathlib.Path:
    """The results of the tiny comparison, run once without interruption; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    assert main([*TINY, "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> pathlib.Path:
    """A copy of the finished results, for a test that writes to them."""
    return shutil.copytree(finished, tmp_path / "copied")


@pytest.mark.slow
def test_run_writes_all_files_and_prints_the_table(tmp_path, capsys, finished, monkeypatch):
    """Repeated from config.json, whose hyper-parameters later defaults do not change."""
    monkeypatch.setattr(entries, "LR", 9.0)
    capsys.readouterr()
    assert main(["run", str(finished / "config.json"), "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "fedavg" in printed
    assert "scaffold" in printed
    assert "compile" in printed
    for name in ("curves.png", "clients.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    history = pd.read_csv(tmp_path / "history.csv")
    assert history.columns.tolist() == [
        "algorithm",
        "seed",
        "diverged_at",
        "round",
        "metric",
        "value",
    ]
    assert not history.duplicated(["algorithm", "seed", "round", "metric"]).any()
    # Another folder, the same comparison: the same bytes.
    assert (tmp_path / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["algorithms"]["scaffold"] == {"lr": 0.2, "server_lr": 1.0}
    assert config["environment"]["versions"]["jax"]
    assert set(config["config"]) == {field.name for field in dataclasses.fields(Run)}
    assert set(config["settings"]) == set(flat(Run()))  # by name, for tables


@pytest.mark.slow
@pytest.mark.parametrize("interrupted_algorithm", ["fedavg", "scaffold"])
def test_interrupted_run_resumes_with_the_same_history(
    tmp_path, finished, monkeypatch, capsys, interrupted_algorithm
):
    def report(progress):
        if progress.round == 2 and progress.name == interrupted_algorithm:
            signal.raise_signal(signal.SIGINT)

    def interrupting(prepared):
        call = prepared.call
        callbacks = [*call.callbacks, types.SimpleNamespace(progress=report)]
        storage = dataclasses.replace(call.storage, checkpoint_seconds=0.0)
        call = call._replace(callbacks=callbacks, storage=storage)
        return execute(prepared._replace(call=call))

    command = [*TINY, "--output", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "execute", interrupting)
        assert main(command) == 130
    printed = capsys.readouterr().out
    assert f"to resume: fedjax-sim {' '.join(command)}" in printed.replace("\n", "")
    partial = pd.read_csv(tmp_path / "history.csv")
    rows = partial["algorithm"] == interrupted_algorithm
    assert partial.loc[rows, "round"].max() == 2
    summary = json.loads((tmp_path / "summary.json").read_text())["algorithms"]
    assert not summary[interrupted_algorithm]["finished"]

    assert main(command) == 0
    assert (tmp_path / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    summary = json.loads((tmp_path / "summary.json").read_text())["algorithms"]
    # 4 rounds x 3 clients x 2 steps x 2 seeds, counted over both calls.
    assert [row["local_steps"] for row in summary.values()] == [48, 48]


def test_ctrl_c_outside_a_simulation_keeps_what_is_there(tmp_path, monkeypatch, capsys):
    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "execute", stopped)
    assert main([*TINY, "--output", str(tmp_path)]) == 130
    assert "to resume" in capsys.readouterr().out
    header = "algorithm,seed,diverged_at,round,metric,value\n"
    assert (tmp_path / "history.csv").read_text() == header


@pytest.mark.slow
def test_finished_algorithms_are_not_run_again(copied, monkeypatch, capsys):
    before = (copied / "history.csv").read_bytes()
    results = []

    def observed(prepared):
        results.append(execute(prepared))
        return results[-1]

    monkeypatch.setattr(comparing, "execute", observed)
    assert main([*TINY, "--output", str(copied)]) == 0
    assert [(r.local_steps, r.compile_seconds) for r in results] == [(0, 0.0), (0, 0.0)]
    assert (copied / "history.csv").read_bytes() == before
    assert "finished before" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--batch-size", "5"], "batch_size is 7 there and 5 here"),
        (["--precision", "float64"], "precision is "),
        (["--lr", "0.5"], "fedavg has {'lr': 0.2} there and {'lr': 0.5} here"),
        (
            ["partition:iid"],
            "partition is 'dirichlet' there and 'iid' here; alpha is given there only",
        ),
        (["--alpha", "inf"], "alpha is 0.1 there and 'inf' here"),
        (
            ["attack:sign-flip"],
            "attack is 'none' there and 'sign_flip' here; attack.fraction is given",
        ),
        (["sampling:full"], "sampling is 'uniform' there and 'full' here"),
        (["--rounds", "3"], "rounds is 4 there and 3 here"),
    ],
)
def test_folder_of_another_comparison_is_refused(finished, capsys, options, reason):
    before = (finished / "config.json").read_bytes()
    assert main([*TINY, "--output", str(finished), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: --output is ")
    assert reason in error
    assert error.count("\n") == 1
    assert (finished / "config.json").read_bytes() == before


def test_errors_of_a_run_show_their_traceback_and_what_is_kept(tmp_path, capsys, monkeypatch):
    """Only bad options are one line: a ValueError inside a run is a defect, not an option."""

    def broken(*args, **options):
        raise ValueError("rounds is a defect of the simulation")

    monkeypatch.setattr(comparing, "execute", broken)
    assert main([*SMALL, "--output", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "in broken" in error
    assert f"kept in {tmp_path}" in error
    assert "--rounds" not in error


@pytest.mark.parametrize("command", ["run", "sweep"])
@pytest.mark.parametrize("output", ["/proc/x", "{}/file/below"])
def test_outputs_that_cannot_be_created_are_one_line(
    tmp_path, capsys, monkeypatch, output, command
):
    monkeypatch.setattr(run, "execute", lambda *args: pytest.fail("started"))
    (tmp_path / "file").write_text("in the way")
    output = output.format(tmp_path)
    assert main([command, *SMALL[1:], "--output", output]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-sim: error: --output is '{output}', which cannot be created")
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"config": 3}'])
def test_damaged_config_files_in_an_output_folder_are_named(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    assert main([*SMALL, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "config.json" in error
    assert error.count("\n") == 1
    assert (tmp_path / "config.json").read_text() == text


def test_module_exits_with_the_command_s_code(monkeypatch):
    monkeypatch.setattr("sys.argv", ["fedjax-sim", "fly"])
    with pytest.raises(SystemExit) as exit:
        runpy.run_module("fedjax_sim.cli", run_name="__main__")
    assert exit.value.code == 2


@pytest.mark.parametrize("preset", PRESETS)
def test_help_lists_every_option_with_its_default(preset, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # wider boxes stand side by side
    assert main(["run", preset, "--help"]) == 0
    shown = capsys.readouterr().out
    parts = [
        " ".join(re.split(r"[\s│]+", part)) for part in re.split(r"\n. --(?=[a-z])", shown)[1:]
    ]
    described = {re.split(r"[\s,]", part)[0]: part for part in parts}
    every = names_of(Run)
    for name, value in flat(PRESETS[preset]).items():
        if HIDDEN in every[name].marks or typing.get_origin(every[name].hint) is dict:
            continue
        if every[name].alternatives:
            word = f"{name}:{value}".replace("_", "-")
            assert f"default: {word}" in shown or f"subcommand: {word}" in shown
            continue
        value = " ".join(value) if isinstance(value, tuple) else value
        text = described[name.replace("_", "-")]
        if value in (None, ""):  # the text itself says what the default is
            assert re.search("(?<!\\()default: ", text)
            assert "(default: " not in text
        else:
            assert f"(default: {value})" in text


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("run quickstart", "run [PRESET | STUDY.py | CONFIG.json]"),
        ("sweep", "sweep [PRESET | STUDY.py | CONFIG.json]"),
        ("plot", "plot FOLDER [FOLDER ...]"),
        ("export", "export FOLDER"),
        ("fork", "fork FOLDER"),
        ("list", "list [STUDY.py] [ALGORITHM ...]"),
    ],
)
def test_usage_of_commands(command, usage, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: fedjax-sim {usage} [-h]")


def test_list_names_every_choice(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    choices = [
        f"{name}:{kind_of(group)}".replace("_", "-")
        for name, field in names_of(Run).items()
        if len(field.alternatives) > 1
        for group in field.alternatives
    ]
    tables = ALGORITHMS, models.MODELS, PRESETS, datasets.NAMES, choices
    assert [name for table in tables for name in table if name not in shown] == []
    assert "b1=0.9" in shown  # a default of the factory, not of the command line


def test_list_describes_an_algorithm(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["list", "favano"]) == 0
    shown = capsys.readouterr().out
    assert docstrings.summary(ALGORITHMS["favano"]) in shown
    assert "client learning rate" in shown
    assert "reweighting" in shown


def test_list_shows_the_algorithms_of_a_study_module(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "listed_study.py"
    path.write_text(
        "import fedjax_sim as fs\n"
        "def mine(lr: float, sharpness: float = 0.7):\n"
        '    """Own method of rate lr. Roe et al., 2031."""\n'
        "    return fs.fedavg(lr)\n"
        "def study():\n"
        "    return fs.Study(algorithms={'mine': mine, 'fixed': fs.fedavg(0.1)})\n"
    )
    assert main(["list", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"│ mine +│ lr=0.2 sharpness=0.7 +│ Roe et al., 2031 +│", shown)
    assert re.search(r"│ fixed +│ +│", shown)
    assert main(["list", str(path), "mine"]) == 0
    assert "Own method of rate lr." in capsys.readouterr().out
    assert main(["list", "mine"]) == 2  # without the module


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_usage(arguments, capsys):
    assert main(arguments) == 0
    assert "fedjax-sim run" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["fly"], ["list", "everything"]])
def test_unknown_commands_and_algorithms(arguments, capsys):
    assert main(arguments) == 2
    kind = "command" if len(arguments) == 1 else "algorithm"
    assert f"unknown {kind} {arguments[-1]!r}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_is_a_comparison_that_options_change(finished, tmp_path):
    """Rounds and algorithms are added; other algorithms take the typed rate, stored ones theirs."""
    extended, typed = shutil.copytree(finished, tmp_path / "extended"), tmp_path / "typed"
    path = str(extended / "config.json")
    more = ["--algorithms", "fedavg", "fedsgd", "--hyper.fedsgd.lr", "0.7", "--rounds", "6"]
    assert main(["run", path, *more, "--output", str(extended)]) == 0
    saved = json.loads(pathlib.Path(path).read_text())
    assert saved["config"]["algorithms"]["algorithms"] == ["fedavg", "scaffold", "fedsgd"]
    assert saved["algorithms"]["fedsgd"] == {"lr": 0.7}
    history = pd.read_csv(extended / "history.csv")
    last = history.groupby("algorithm")["round"].max()
    assert last.to_dict() == {"fedavg": 6, "fedsgd": 6, "scaffold": 4}
    first = pd.read_csv(finished / "history.csv").query("algorithm == 'fedavg'")
    same = history.query("algorithm == 'fedavg' and round <= 4")
    columns = ["seed", "round", "metric", "value"]
    keys = columns[:3]
    pd.testing.assert_frame_equal(
        same[columns].sort_values(keys, ignore_index=True),
        first[columns].sort_values(keys, ignore_index=True),
    )
    path = str(finished / "config.json")
    options = ["--hyper.scaffold.lr", "0.05", "--rounds", "2"]
    assert main(["run", path, *options, "--output", str(typed)]) == 0
    hyper = json.loads((typed / "config.json").read_text())["algorithms"]
    assert hyper == {"fedavg": {"lr": 0.2}, "scaffold": {"lr": 0.05, "server_lr": 1.0}}


@pytest.mark.slow
def test_a_file_keeps_the_noise_that_a_target_required(tmp_path, monkeypatch):
    """Fewer rounds would need less noise for the same epsilon; the file has the noise itself."""
    private = [
        "privacy:gaussian",
        "--privacy.epsilon",
        "3",
        "--algorithms",
        "fedavg",
        "--seeds",
        "1",
    ]
    first, again, changed = (tmp_path / name for name in ("first", "again", "changed"))
    assert main([*TINY, *private, "--output", str(first)]) == 0
    path = str(first / "config.json")
    assert main(["run", path, "--output", str(again)]) == 0
    assert (again / "history.csv").read_bytes() == (first / "history.csv").read_bytes()
    assert main(["run", path, "--rounds", "2", "--output", str(changed)]) == 0
    noise = [
        json.loads((folder / "config.json").read_text())["privacy"]["noise"]
        for folder in (first, again, changed)
    ]
    assert noise[0] == noise[1] == noise[2] > 0


@pytest.mark.slow
def test_diverging_algorithm_does_not_lose_the_others(tmp_path, capsys, finished, allow_nans):
    command = [*TINY, "--output", str(tmp_path), "--hyper.fedavg.lr", "1e38"]
    assert main(command) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())["algorithms"]
    assert summary["fedavg"]["diverged"] == 2
    assert summary["scaffold"]["diverged"] == 0
    history, undisturbed = (
        (folder / "scaffold" / "history.csv").read_bytes() for folder in (tmp_path, finished)
    )
    assert history == undisturbed
    assert "diverged in" in capsys.readouterr().out

    other = str(tmp_path / "raise")
    assert main([*command, "--output", other, "--on-divergence", "raise"]) == 1
    assert "not finite" in capsys.readouterr().err


@pytest.mark.slow
def test_core_import_is_light():
    """Plots, tables and the command line are extras: the library must import without them."""
    code = (
        "import sys, fedjax_sim; "
        "print(sorted({'pandas', 'matplotlib', 'tyro', 'rich', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
