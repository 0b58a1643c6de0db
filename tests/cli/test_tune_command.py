"""``fedjax-sim tune`` end to end: proposals, scores, the best configuration, resuming, messages."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import optuna
import pandas as pd
import pytest

from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.cli.space import TUNING, Space
from fedjax_sim.cli.tune import _others, _words
from fedjax_sim.runs.sweeps import program
from fedjax_sim.studies.setups import Run, flat, resolve_hyper
from fedjax_sim.studies.setups.problem import entries_of

SMALL = shlex.split(
    "--model softmax_regression --num-clients 20 --cohort-size 3 --rounds 4 --local-steps 2 "
    "--eval-every 1 --seeds 2 --seed 5"
)
COMMAND = ["tune", "quickstart", *SMALL, "--batch", "3", "--metric", "test/loss"]
RATES = shlex.split("--space.lr.from 0.01 --space.lr.to 1")
SEEDS = (5, 6)


def tuned(folder: pathlib.Path, *words: str) -> int:
    return main([*COMMAND, *RATES, "--trials", "5", "--output", str(folder), *words])


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Five trials in batches of three and two, once for all tests; not to be changed."""
    path = tmp_path_factory.mktemp("tuned")
    assert tuned(path) == 0
    return path


@pytest.fixture
def copied(folder, tmp_path) -> pathlib.Path:
    return shutil.copytree(folder, tmp_path / "copied")


def losses(folder: pathlib.Path) -> pd.DataFrame:
    """Final losses, a row per learning rate and a column per seed."""
    history = pd.read_csv(folder / "history.csv")
    last = history[(history["metric"] == "test/loss") & (history["round"] == 4)]
    return last.pivot(index="lr", columns="seed", values="value")


def test_trials_are_in_the_order_of_the_sampler_with_the_means_of_their_runs(folder):
    trials, values = pd.read_csv(folder / "trials.csv"), losses(folder)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))  # at random at first
    expected = [study.ask().suggest_float("lr", 0.01, 1, log=True) for _ in range(5)]
    assert trials["lr"].tolist() == pytest.approx(expected, rel=1e-12)
    assert trials["trial"].tolist() == [1, 2, 3, 4, 5]
    assert list(values.columns) == [5, 6]
    means = values.mean(axis=1).loc[trials["lr"]].tolist()
    assert trials["mean"].tolist() == pytest.approx(means, rel=1e-12)  # of float64 numbers
    assert set(trials["rounds"]) == {4}
    assert trials["complete"].all()
    assert trials[["low", "high"]].isna().all(axis=None)  # two seeds have no interval


def test_the_score_is_that_of_the_same_run(folder, tmp_path, capsys):
    """By another program, which sums in another order: eight steps in float32, as in sweeps."""
    values = losses(folder)
    best = values.mean(axis=1).idxmin()
    saved = json.loads((folder / "best.json").read_text())
    assert saved["algorithms"] == {"fedavg": {"lr": best}}
    assert main(["run", str(folder / "best.json"), "--output", str(tmp_path)]) == 0
    history = pd.read_csv(tmp_path / "history.csv")
    last = history[(history["metric"] == "test/loss") & (history["round"] == 4)]
    assert last["seed"].tolist() == [*SEEDS]
    np.testing.assert_allclose(last["value"], values.loc[best], rtol=1e-4)


def test_the_same_command_repeats_nothing_and_more_trials_continue(copied, capsys):
    before = contents(copied)
    assert tuned(copied) == 0
    printed = capsys.readouterr().out
    assert "5 trials, of which 5 did all rounds: 10 runs (10 found), 0 programs" in printed
    after = contents(copied)
    assert {name for name in before if before[name] != after[name]} <= {"config.json", "best.json"}
    first = pd.read_csv(copied / "trials.csv")
    assert tuned(copied, "--trials", "6") == 0
    printed = capsys.readouterr().out
    assert "trials 4 to 6 of 6: test/loss" in printed
    assert "12 runs (10 found), 1 programs compiled" in printed
    more = pd.read_csv(copied / "trials.csv")
    pd.testing.assert_frame_equal(more[:5], first)
    assert json.loads((copied / "config.json").read_text())["tuning"]["trials"] == 6
    assert main(["tune", str(copied / "config.json"), "--output", str(copied)]) == 0
    assert "12 runs (12 found)" in capsys.readouterr().out


def test_the_best_trials_are_printed(copied, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert tuned(copied) == 0
    printed = capsys.readouterr().out
    rows = [line.split("│")[1:4] for line in printed.splitlines() if line.startswith("│")]
    trials = pd.read_csv(copied / "trials.csv").sort_values("mean")
    assert [int(number) for number, *_ in rows] == trials["trial"].tolist()
    assert [score.strip() for _, score, _ in rows] == [f"{mean:.4f}" for mean in trials["mean"]]
    assert "The best of many scores is biased" in printed
    assert f"the best: fedjax-sim run {copied / 'best.json'}" in printed


OTHERS = {
    "batch": ("--batch 2", "batch is 3 there and 2 here"),
    "space": ("--space.lr.to 2", "space.lr is '0.01 to 1 (log)' there and '0.01 to 2 (log)' here"),
    "another name": (
        "--space.weight-decay.from 1e-5 --space.weight-decay.to 1e-3",
        "space.weight_decay is given here only",
    ),
    "sampler": ("--sampler random", "sampler is 'tpe' there and 'random' here"),
    "its seed": ("--sampler-seed 1", "sampler_seed is 0 there and 1 here"),
    "metric": ("--metric train/loss", "metric is 'test/loss' there and 'train/loss' here"),
    "seeds": ("--seeds 3", "seeds is 2 there and 3 here"),
    "an option": ("--batch-size 9", "batch_size is 7 there and 9 here"),
    "a hyper-parameter": ("--clip 1", "fedavg.clip is given here only"),
    "halving": ("--halving 2", "halving is [] there and [2] here"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_folder_of_another_tuning_is_refused(folder, capsys, monkeypatch, other):
    words, reason = OTHERS[other]
    before = contents(folder)
    monkeypatch.setattr(program.Programs, "prepare", lambda *_: pytest.fail("compiles"))
    assert tuned(folder, *words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-sim: error: --output is '{folder}', which holds another tuni")
    assert reason in error
    assert error.count("\n") == 1
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--metric test/los", "--metric is 'test/los'; expected one of "),
        (
            "--metric train/examples",
            "--mode is auto; expected max or min, since the name of metric",
        ),
        ("--halving 3 2", "halving.rounds is (3, 2); expected increasing multiples of eval_every"),
        ("--halving 4", "halving.rounds is (4,); expected increasing multiples of eval_every = 1"),
        (
            "--personal 3 --test-of clients --metric personal/test/loss/mean",
            "--metric is 'personal/test/loss/mean', which is evaluated every 3 rounds; expected",
        ),
        (
            "--personal 2 --validation 0.2 --metric personal/valid/loss/mean --halving 1",
            "--metric is 'personal/valid/loss/mean', which is evaluated every 2 rounds; expected",
        ),
        (
            "--space.cohort-size.from 2 --space.cohort-size.to 21",
            "--cohort-size is 21; expected 1 .. 20, the clients",
        ),
    ],
)
def test_refused_before_compilation(tmp_path, capsys, monkeypatch, words, reason):
    monkeypatch.setattr(program.Programs, "prepare", lambda *_: pytest.fail("compiles"))
    assert tuned(tmp_path / "new", *words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedjax-sim: error: {reason}")
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists() or not contents(tmp_path / "new")


def test_other_commands_refuse_the_folder_in_a_sentence(folder, capsys):
    assert main(["run", str(folder / "config.json")]) == 2
    assert "is the file of a tuning; expected the best.json beside it" in capsys.readouterr().err
    sweep = ["sweep", "quickstart", *SMALL, "--grid.lr.values", "0.1", "--output", str(folder)]
    assert main(sweep) == 2
    assert "is no file of a sweep" in capsys.readouterr().err


def test_tables_and_figures_take_the_folder(folder, tmp_path, capsys):
    """As that of a sweep; its page repeats the tuning."""
    assert main(["table", str(folder), "--metric", "test/loss"]) == 0
    assert "FedAvg, learning rate" in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--output", str(page)]) == 0
    assert f"fedjax-sim tune {folder / 'config.json'}" in page.read_text()


@pytest.fixture
def without_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)


def test_without_optuna_one_sentence_says_how_to_install_it(without_optuna, tmp_path, capsys):
    assert tuned(tmp_path / "new") == 1
    error = capsys.readouterr().err
    assert error.startswith("fedjax-sim: error: optuna could not be imported")
    assert "install it with: pip install '.[tune]'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_help_needs_no_optuna(without_optuna, capsys):
    assert main(["tune", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for word in (
        "--trials",
        "--halving",
        "--sampler {tpe,random}",
        "--space.lr.from",
        "study modu",
    ):
        assert word in printed


# ---- spaces, without a run


def space_of(words: str, study: str = "quickstart") -> Space:
    *_, study_, config = TUNING.read([study, *SMALL, *shlex.split(words)], "")
    return Space(study_, config)


def proposals(space: Space, number: int = 60) -> tuple[list[dict], list[optuna.Trial]]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
    trials = [study.ask() for _ in range(number)]
    return [dict(space(trial)) for trial in trials], trials


def test_values_have_the_type_and_the_range_of_their_name():
    words = (
        "--algorithms fedavgm --space.lr.from 0.01 --space.lr.to 1 --space.cohort-size.from 2 "
        "--space.cohort-size.to 16 --space.local-steps.from 1 --space.local-steps.to 9 "
        "--space.local-steps.step 4 --space.momentum.from 0 --space.momentum.to 0.9 "
        "--space.momentum.linear --space.dropout.values 0 0.5 --space.weighting.values examples "
        "uniform"
    )
    found, _ = proposals(space_of(words), 200)
    values = {name: [one[name] for one in found] for name in found[0]}
    assert set(values["local_steps"]) == {1, 5, 9}
    assert set(values["dropout"]) == {0.0, 0.5}
    assert set(values["weighting"]) == {"examples", "uniform"}
    assert set(map(type, values["cohort_size"] + values["local_steps"])) == {int}
    assert {min(values["cohort_size"]), max(values["cohort_size"])} == {2, 16}
    # Half of the logarithms, or of the numbers, are below the middle: 200 draws, 4 deviations.
    for name, middle in (("lr", 0.1), ("momentum", 0.45)):
        assert abs(np.mean(np.array(values[name]) < middle) - 0.5) < 4 * 0.5 / np.sqrt(200)
    assert np.mean(np.array(values["cohort_size"]) < 6) > 0.4  # geometric mean: 5.7


def test_a_configuration_has_the_names_of_its_algorithm_and_of_its_choices():
    words = (
        "--algorithms fedavg fedprox --space.lr.from 0.01 --space.lr.to 1 --space.fedprox.lr.from "
        "2 --space.fedprox.lr.to 3 --space.mu.from 0.1 --space.mu.to 1 --space.partition.values "
        "iid dirichlet --space.alpha.values 0.1 1"
    )
    space = space_of(words)
    found, trials = proposals(space)
    names = {(one["algorithm"], one["partition"]): set(one) for one in found}
    common = {"algorithm", "partition", "lr"}
    assert names == {
        ("fedavg", "iid"): common,
        ("fedavg", "dirichlet"): common | {"alpha"},
        ("fedprox", "iid"): common | {"mu"},
        ("fedprox", "dirichlet"): common | {"mu", "alpha"},
    }
    assert all((one["lr"] >= 2) == (one["algorithm"] == "fedprox") for one in found)
    # Each algorithm's rate is a parameter of its own, from whose scores the sampler learns.
    rates = {label for trial in trials for label in trial.params if label.endswith("lr")}
    assert rates == {"fedavg.lr", "fedprox.lr"}
    assert all(one in space.entries for one in found)


def test_proposals_do_not_depend_on_the_order_of_the_names():
    """So the same options in another order continue a folder."""
    rates = "--space.lr.from 0.01 --space.lr.to 1"
    decays = "--space.weight-decay.from 1e-5 --space.weight-decay.to 1e-2"
    own = "--algorithms fedavg fedprox --space.fedprox.lr.from 2 --space.fedprox.lr.to 3"
    orders = [(rates, decays, own), (own, decays, rates), (decays, own, rates)]
    found = [proposals(space_of(" ".join(words)), 20)[0] for words in orders]
    assert found[0] == found[1] == found[2]


def test_the_command_of_the_best_describes_the_same_run():
    """With a study module, which a file does not name."""
    words = shlex.split(
        "--seeds 2 --trials 9 --space.lr.from 0.1 --space.lr.to 1 --metric test/loss partition:iid "
        "--algorithms fedavg scaffold --hyper.fedavg.clip 2 --hyper.scaffold.option II --output x "
        "--space.partition.values iid dirichlet --batch 4 --batch-size 9 --halving 2 4"
    )
    configuration = {
        "algorithm": "scaffold", "partition": "dirichlet", "alpha": 0.3, "cohort_size": 4,
        "lr": 0.123456789012345, "option": "I",
    }  # fmt: skip
    written = [*_others(words, configuration), *_words(configuration)]
    assert not [word for word in written if "space" in word or "halving" in word]
    source, study, rest = read_arguments(["quickstart", *written])
    run = parse(Run, f"run {source}", "", rest, study.options)
    values = flat(run)
    expected = {"seeds": 2, "batch_size": 9, "algorithms": ("scaffold",)} | {
        name: configuration[name] for name in ("partition", "alpha", "cohort_size")
    }
    assert {name: values[name] for name in expected} == expected
    hyper = resolve_hyper(entries_of(study.replaced(options=run)), run.algorithms)
    assert hyper == {"scaffold": {"lr": 0.123456789012345, "server_lr": 1.0, "option": "I"}}


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        ("", "test/accuracy"),
        ("--validation 0.1", "valid/accuracy"),
        ("--personal 1 --test-of clients", "personal/test/accuracy/weighted_mean"),
        ("--personal 1 --validation 0.1", "personal/valid/accuracy/weighted_mean"),
        (
            "--personal 1 --test-of clients --validation 0.1 --validation-of pool",
            "personal/test/accuracy/weighted_mean",
        ),
    ],
)
def test_the_default_metric_is_that_of_examples_for_choosing(words, metric):
    *_, config = TUNING.read(["quickstart", *SMALL, *shlex.split(words)], "")
    assert config.score_metric == metric


# ---- longer runs


@pytest.mark.slow
def test_scores_of_pooled_examples_are_metrics_of_all_commands(tmp_path):
    words = shlex.split("--scores f1 --rounds 2")
    options = [*SMALL, *words, "--output"]
    assert tuned(tmp_path / "tuned", *words, "--metric", "test/f1", "--trials", "3") == 0
    trials = pd.read_csv(tmp_path / "tuned" / "trials.csv")
    history = pd.read_csv(tmp_path / "tuned" / "history.csv")
    values = history.query("metric == 'test/f1' and round == 2").groupby("lr")["value"].mean()
    assert trials["mean"].tolist() == pytest.approx(values.loc[trials["lr"]].tolist(), rel=1e-12)
    sweep = ["--grid.lr.values", "0.1", "--metric", "test/f1"]
    assert main(["sweep", "quickstart", *options, str(tmp_path / "swept"), *sweep]) == 0
    watched = ["--keep-best", "test/f1", "--stop-early", "test/f1"]
    assert main(["run", "quickstart", *options, str(tmp_path / "run"), *watched]) == 0


@pytest.mark.slow
def test_settings_and_algorithms_are_programs_of_their_own(tmp_path, capsys):
    words = (
        "--algorithms fedavg fedprox --space.fedprox.mu.from 0.1 --space.fedprox.mu.to 10 "
        "--space.cohort-size.values 2 4 --batch 4 --trials 8 --sampler random"
    )
    assert tuned(tmp_path, *words.split()) == 0
    trials = pd.read_csv(tmp_path / "trials.csv")
    assert len(trials) == 8
    assert (trials["mu"].isna() == (trials["algorithm"] == "fedavg")).all()
    groups = set(zip(trials["algorithm"], trials["cohort_size"], strict=True))
    printed = capsys.readouterr().out
    programs = int(re.findall(r"(\d+) programs compiled", printed)[0])
    assert len(groups) <= programs <= 8
    # Every row is the run of its configuration alone.
    history = pd.read_csv(tmp_path / "history.csv")
    row = trials[trials["algorithm"] == "fedprox"].iloc[0]
    options = f"--algorithms fedprox --lr {row['lr']} --hyper.fedprox.mu {row['mu']}"
    output = tmp_path / "alone"
    more = ["--cohort-size", str(row["cohort_size"]), "--output", str(output)]
    assert main(["run", "quickstart", *SMALL, *options.split(), *more]) == 0
    alone = pd.read_csv(output / "history.csv").query("metric == 'test/loss' and round > 0")
    own = history.query(f"metric == 'test/loss' and lr == {float(row['lr'])!r}")
    own, alone = (frame.sort_values(["seed", "round"])["value"] for frame in (own, alone))
    np.testing.assert_allclose(own, alone, rtol=1e-4)


@pytest.mark.slow
def test_halving_cuts_and_resumes(tmp_path, capsys):
    words = "--halving 2 --batch 6 --trials 6 --seeds 3".split()
    assert tuned(tmp_path, *words) == 0
    assert "6 trials, of which 2 did all rounds: 18 runs (0 found)" in capsys.readouterr().out
    trials = pd.read_csv(tmp_path / "trials.csv")
    assert sorted(trials["rounds"]) == [2, 2, 2, 2, 4, 4]
    history = pd.read_csv(tmp_path / "history.csv").query("metric == 'test/loss' and round == 2")
    after_two = history.groupby("lr")["value"].mean().sort_values()
    continued = set(trials.loc[trials["complete"], "lr"])
    assert continued == set(after_two.index[:2])
    assert (trials["low"] < trials["mean"]).all()  # three seeds have an interval
    best = json.loads((tmp_path / "best.json").read_text())["algorithms"]["fedavg"]["lr"]
    assert best == trials[trials["complete"]].sort_values("mean")["lr"].iloc[0]
    before = (tmp_path / "trials.csv").read_bytes()
    assert tuned(tmp_path, *words) == 0
    assert "18 runs (18 found), 0 programs" in capsys.readouterr().out
    assert (tmp_path / "trials.csv").read_bytes() == before


@pytest.mark.slow
def test_a_killed_tuning_continues(tmp_path, folder):
    """SIGKILL after the first slice of the second batch; the same files as without it."""
    output = tmp_path / "killed"
    command = [sys.executable, "-m", "fedjax_sim.cli", *COMMAND, *RATES, "--trials", "5"]
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    process = subprocess.Popen([*command, "--output", str(output)], env=environment)
    deadline = time.monotonic() + 300
    first = len(list(folder.glob("slices/*.npz"))) // 2  # of both batches
    while len(list(output.glob("slices/*.npz"))) <= first:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (output / "trials.csv").exists()
    kept = {path.name: path.read_bytes() for path in output.glob("slices/*.npz")}
    done = subprocess.run(
        [*command, "--output", str(output)], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    (found,) = re.findall(r"10 runs \((\d+) found\)", done.stdout)
    assert int(found) >= 6
    for name, content in kept.items():
        assert (output / "slices" / name).read_bytes() == content
    for name in ("trials.csv", "history.csv"):
        assert (output / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_a_study_module_has_its_own_algorithm(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("study.py").write_text(
        "import fedjax_sim as fs\n\n\n"
        "def study():\n"
        "    options = fs.presets.options('quickstart', seeds=2)\n"
        "    mine = lambda lr, mu=0.1: fs.fedprox(lr, mu)\n"
        "    return fs.Study(options, algorithms={'mine': mine})\n"
    )
    words = "--space.mu.from 0.01 --space.mu.to 1 --trials 3 --batch 3 --output tuned"
    small = [*SMALL, "--metric", "test/loss", *RATES, *words.split()]
    assert main(["tune", "study.py", *small]) == 0
    command = re.findall(r"^the best: fedjax-sim (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert main(shlex.split(command[0])) == 0
    trials = pd.read_csv("tuned/trials.csv").sort_values("mean")
    history = pd.read_csv("tuned/best/history.csv").query("metric == 'test/loss' and round == 4")
    assert history["value"].mean() == pytest.approx(trials["mean"].iloc[0], rel=1e-4)
    assert main(["run", "tuned/best.json"]) == 2
    assert "expected the study module in place of the file" in capsys.readouterr().err


def test_flags_of_a_configuration_are_typed_with_their_negation():
    configuration = {"algorithm": "fedmid", "balanced": False, "project_start": True}
    expected = "--algorithms fedmid --no-balanced --hyper.fedmid.project-start"
    assert " ".join(_words(configuration)) == expected
    configuration = {"algorithm": "fedmid", "balanced": True, "project_start": False}
    expected = "--algorithms fedmid --balanced --hyper.fedmid.no-project-start"
    assert " ".join(_words(configuration)) == expected
