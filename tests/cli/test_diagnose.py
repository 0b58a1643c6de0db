"""``fedjax-sim run --diagnose``, end to end on the digits."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from fedjax_sim import datasets
from fedjax_sim.cli.diagnose import SUBOPTIMALITY, unmet
from fedjax_sim.cli.main import main
from fedjax_sim.runs import comparison as comparing
from fedjax_sim.studies.setups import flat, options

TINY = shlex.split(
    "run quickstart --model softmax_regression --num-clients 6 partition:iid --rounds 6 "
    "--local-steps 3 --batch-size 10 --seeds 2 --eval-every 3 --algorithms fedavg --lr 0.02 "
    "--weight-decay 0.1 --cohort-size 3"
)


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    """Full participation: the bound applies."""
    folder = tmp_path_factory.mktemp("diagnosed")
    assert main([*TINY, "sampling:full", "--diagnose", "--output", str(folder)]) == 0
    return folder


def features():
    x = np.asarray(datasets.load("digits", None).train["x"], float).reshape(-1, 64)
    return np.c_[x / 255 if x.max() > 1 else x, np.ones(len(x))]


@pytest.mark.slow
def test_files_hold_constants_bounds_and_measurements(diagnosed, capsys):
    diagnosis = json.loads((diagnosed / "diagnosis.json").read_text())
    assert diagnosis["run"] == {"lr": 0.02, "M": 6, "K": 3}
    assert diagnosis["assumptions_not_met"] == []
    assert diagnosis["optimum"]["gradient_norm"] <= 1e-12
    constants = {name: entry["value"] for name, entry in diagnosis["constants"].items()}
    # Of the mean objective L is at least this; single clients have a little more.
    x = features()
    total = np.linalg.eigvalsh(x.T @ x / len(x))[-1] / 2 + 0.1
    assert total < constants["L"] < 1.1 * total
    assert constants["mu"] == 0.1
    # The start is 0, where the loss is log 10; F* is below, and mu bounds the distance.
    np.testing.assert_allclose(
        constants["Delta"], np.log(10) - diagnosis["optimum"]["value"], rtol=1e-6
    )
    assert 0 < constants["B"] <= np.sqrt(2 * constants["Delta"] / 0.1)
    assert 0 < constants["zeta_mean"] <= constants["zeta"]
    assert set(diagnosis["bounds"]) == {"convex", "convex, measured drift"}
    assert "one objective for all clients" in diagnosis["bounds_left_out"]["third order"]
    assert diagnosis["prescribed_lr"] > 0
    assert (diagnosed / "diagnosis.png").read_bytes().startswith(b"\x89PNG")

    frame = pd.read_csv(diagnosed / "diagnosis.csv")
    assert (frame["metric"] == SUBOPTIMALITY).all()
    lines = dict(iter(frame.groupby("quantity")))
    model, mean = lines["fedavg: model"], lines["fedavg: mean over shadow iterates"]
    assert sorted(model["seed"].unique()) == [0, 1]
    assert sorted(model["round"].unique()) == [3, 6]
    # Descending: the mean over past iterates is above the last one.
    assert (mean["value"].to_numpy() > model["value"].to_numpy()).all()
    bound = lines["bound: convex"].set_index("round")["value"]
    measured = lines["bound: convex, measured drift"].set_index("round")["value"]
    averages = mean.groupby("round")["value"].mean()
    assert (averages < measured).all()
    assert (measured < bound).all()
    expected = constants["B"] ** 2 / (2 * 0.02 * 3 * 6)
    assert expected < bound[6] < 1.5 * expected  # noise and drift are small here


@pytest.mark.slow
def test_the_curve_is_that_of_the_run(diagnosed):
    """The recorded training loss, plus the regulariser: clients of one size up to one example."""
    history = pd.read_csv(diagnosed / "history.csv")
    loss = history.loc[(history["metric"] == "train/loss") & (history["round"] == 6), "value"]
    frame = pd.read_csv(diagnosed / "diagnosis.csv")
    rows = (frame["quantity"] == "fedavg: model") & (frame["round"] == 6)
    diagnosis = json.loads((diagnosed / "diagnosis.json").read_text())
    penalised = frame.loc[rows, "value"].to_numpy() + diagnosis["optimum"]["value"]
    penalty = penalised - loss.to_numpy()
    # 18 steps of 0.02 along gradients of norm at most sqrt(2) max ||x||.
    reach = 18 * 0.02 * np.sqrt(2) * np.linalg.norm(features(), axis=1).max()
    assert (penalty > 0).all()
    assert (penalty < 0.1 / 2 * reach**2).all()


@pytest.mark.slow
def test_partial_participation_has_no_bounds_and_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # no reason is broken over lines
    command = [*TINY, "--output", str(tmp_path)]
    assert main(command) == 0
    assert not (tmp_path / "diagnosis.json").exists()
    assert main([*command, "--diagnose"]) == 0  # of a comparison that is finished
    printed = capsys.readouterr().out
    assert "finished before" in printed
    assert "sampling is uniform; the theorems have all clients in every round" in printed
    assert "bound that holds at every model" in printed
    diagnosis = json.loads((tmp_path / "diagnosis.json").read_text())
    assert diagnosis["bounds"] == {}
    assert len(diagnosis["assumptions_not_met"]) == 1
    frame = pd.read_csv(tmp_path / "diagnosis.csv")
    assert frame["quantity"].unique().tolist() == ["fedavg: model"]
    assert (frame["value"] > 0).all()


MET = {"sampling": "full", "local_steps": 3}
UNMET = {
    "compress": ("sign", "uncompressed uploads and messages"),
    "compress_down": ("top_k", "uncompressed uploads and messages"),
    "robust": ("median", "the mean of all clients' uploads"),
    "selection": ("multinomial", "the mean of all clients' uploads"),
    "privacy": ("gaussian", "the mean of all clients' uploads"),
    "precision": ("bfloat16", "exact gradients"),
}


def test_the_options_of_the_theorems_violate_nothing():
    assert unmet(flat(options(**MET)), {"lr": 0.1}, np.ones(3)) == ()


@pytest.mark.parametrize("name", UNMET)
def test_a_run_that_is_not_the_fedavg_of_the_theorems_has_no_bounds(name):
    """Before, the bounds were drawn, and over the curve of another algorithm than the run's."""
    value, expected = UNMET[name]
    (reason,) = unmet(flat(options(**MET, **{name: value})), {"lr": 0.1}, np.ones(3))
    assert reason.removeprefix("--").startswith(f"{name} is {value}; ")
    assert reason.endswith(expected)


def test_a_timeline_of_ones_own_has_no_bounds():
    (reason,) = unmet(flat(options(**MET)), {"lr": 0.1}, np.ones(3), ["timeline"])
    assert reason.startswith("timeline is a study module's")


@pytest.mark.slow
def test_a_run_that_diverged_has_nothing_to_diagnose(tmp_path, capsys, allow_nans):
    options = ["--lr", "1e38", "--seeds", "1", "--diagnose"]
    assert main([*TINY, *options, "--output", str(tmp_path)]) == 1
    assert "fedavg diverged with every seed" in capsys.readouterr().err
    assert (tmp_path / "history.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--model mlp_small", "--model is 'mlp_small', which is not convex"),
        ("--algorithms scaffold", "--algorithms is ('scaffold',); --diagnose needs the package's"),
        ("--partition-per-seed", "--partition-per-seed is True; expected one partition with --dia"),
        ("--weight-decay 0", "--weight-decay is 0.0; --diagnose needs a positive one"),
    ],
)
def test_comparisons_without_a_diagnosis_are_refused_before_anything_runs(
    tmp_path, capsys, monkeypatch, options, named
):
    def ran(*args, **options):
        raise AssertionError("reached the simulation")

    monkeypatch.setattr(comparing, "execute", ran)
    output = tmp_path / "results"
    assert main([*TINY, *options.split(), "--diagnose", "--output", str(output)]) == 2
    assert named in capsys.readouterr().err
    assert not output.exists()


SETUP = """
import fedjax_sim as fs

def setup(seed):
    return fs.presets.quickstart(
        seed=seed, seeds=None, rounds=2, eval_every=2, num_clients=4, cohort_size=2, local_steps=1,
        model="softmax_regression",
    )

def study():
    return fs.Study(fs.presets.options(algorithms=("fedavg",), seeds=1), setup=setup)
"""


def test_a_setup_of_a_study_module_has_no_diagnosis(tmp_path, capsys):
    path = tmp_path / "small_study.py"
    path.write_text(SETUP)
    assert main(["run", str(path), "--diagnose", "--output", str(tmp_path / "results")]) == 2
    assert "setup is a study module's; --diagnose needs data" in capsys.readouterr().err
