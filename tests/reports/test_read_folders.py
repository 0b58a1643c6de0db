"""Rounds of divergence in folders of results."""

import json

import hand_made_runs
import pandas as pd
import pytest
import small_runs

import fedjax_sim as fs
from fedjax_sim.cli.options import parse, read_arguments
from fedjax_sim.cli.run_options import RunOptions
from fedjax_sim.reports import folders
from fedjax_sim.reports.folders import divergences
from fedjax_sim.reports.page.sections import joint
from fedjax_sim.reports.page.sources import source_of
from fedjax_sim.runs import FolderError
from fedjax_sim.runs.storage.outcome import Outcome
from fedjax_sim.studies.setups import flat, presets, replaced
from fedjax_sim.studies.setups.time import LogNormal

NAN = float("nan")


def test_the_recorded_outcome_decides_on_the_rounds_that_it_covers():
    """A client probe is NaN in a round without reports, although the run is finite."""
    entries = [("0", 2, "loss of clients", NAN), ("1", 2, "loss", NAN), ("2", 0, "loss", NAN)]
    recorded = Outcome(2, {"0": 0, "1": 1}, 5, 32, 32, {})
    assert divergences(entries, recorded) == {"1": 1, "2": 0}
    later = [*entries, ("0", 4, "loss", NAN)]
    assert divergences(later, recorded) == {"0": 4, "1": 1, "2": 0}
    assert divergences(entries, None) == {"0": 2, "1": 2, "2": 0}


def test_configurations_with_the_same_short_text_have_labels_of_their_own():
    rates = [0.1, 0.12345678, 0.12345679]
    rows = [("fedavg", lr, 0, 0, 1, "test/accuracy", 0.5) for lr in rates]
    columns = ["algorithm", "lr", "seed", "diverged_at", "round", "metric", "value"]
    frame = folders.labelled(pd.DataFrame(rows, columns=columns), "all", folders.Rule(), "")
    assert frame["algorithm"].tolist() == [
        f"FedAvg, learning rate {text}" for text in ("0.1", "0.12345678", "0.12345679")
    ]


def test_a_sweep_without_evaluations_has_no_best_configuration():
    rows = [(lr, 0, 0, 1, "local_steps", 3.0) for lr in (0.1, 0.2)]
    frame = pd.DataFrame(rows, columns=["lr", "seed", "diverged_at", "round", "metric", "value"])
    message = r"history has the metrics \['local_steps'\]; expected one of the model"
    with pytest.raises(ValueError, match=message):
        folders.labelled(frame, "best", folders.Rule(), "")


def test_a_sweep_of_which_runs_are_missing_says_so(tmp_path):
    def setting(part):
        small_runs.sweep(tmp_path, grid=fs.Part(small_runs.GRID, part, 2))
        return folders.read_folders([tmp_path], configurations="all", metric="loss").setting

    note = "Runs of the sweep have not finished and are missing."
    assert [note in setting(1), note in setting(2)] == [True, False]
    assert "sweep" not in source_of(tmp_path).facts
    small_runs.sweep(tmp_path, grid=fs.Part({"lr": [0.2, 0.3]}, 2, 2))  # of a larger grid
    assert source_of(tmp_path).facts["sweep"] == note


SWEEP = {"metric": "score", "mode": "max", "last": 1, "best": False}


@pytest.mark.parametrize(
    ("config", "options", "rate"),
    [
        (SWEEP, {}, 0.3),  # as the sweep chose, whose metric has a name that says nothing
        (SWEEP, {"metric": "score"}, 0.3),
        (SWEEP, {"metric": "score", "mode": "min"}, 0.1),
        (SWEEP, {"metric": "score", "mode": "max", "last": 2}, 0.2),
        (SWEEP | {"last": 2}, {}, 0.2),
        (SWEEP | {"best": True}, {}, 0.2),
        (SWEEP | {"mode": "auto"}, {}, 0.1),  # "min" where nothing says the direction
        ({}, {"metric": "score", "mode": "max"}, 0.3),
    ],
)
def test_tables_choose_the_configuration_that_the_sweep_chose(config, options, rate):
    """``fedjax-sim table`` and ``best.csv`` agree."""
    values = {0.1: (2.0, 1.0), 0.2: (9.0, 2.0), 0.3: (3.0, 3.0)}
    rows = [(lr, 0, 0, r, "score", values[lr][r]) for lr in values for r in (0, 1)]
    frame = pd.DataFrame(rows, columns=["lr", "seed", "diverged_at", "round", "metric", "value"])
    metric, mode, last = (options.get(name) for name in ("metric", "mode", "last"))
    rule = folders.rule_of(config, metric, mode, last or 1)
    labels = folders.labelled(frame, "best", rule, "")["algorithm"].unique().tolist()
    assert labels == [f"learning rate {rate}"]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"over": "cohort_size", "cells": []}, ["0.1, cohort size 2", "0.2, cohort size 4"]),
        ({"over": None, "cells": ["cohort_size"]}, ["0.1, cohort size 2", "0.2, cohort size 4"]),
        ({"over": "cohort_size", "cells": ["cohort_size"]},
         ["0.1, cohort size 2", "0.2, cohort size 4"]),
        ({"over": None, "cells": []}, ["0.2, cohort size 4"]),
    ],
)  # fmt: skip
def test_every_number_of_clients_of_a_sweep_has_its_best(config, kept, monkeypatch):
    """As in best.csv, where more clients are no better configuration."""
    values = {(0.1, 2): 0.5, (0.2, 2): 0.4, (0.1, 4): 0.6, (0.2, 4): 0.7}
    rows = [(*x, 0, 0, 1, "test/accuracy", value) for x, value in values.items()]
    columns = ["lr", "cohort_size", "seed", "diverged_at", "round", "metric", "value"]
    content = folders.FolderHistory(pd.DataFrame(rows, columns=columns), "digits", None)
    monkeypatch.setattr(folders, "read_folder", lambda path, bits: content)
    monkeypatch.setattr(folders, "read_config", lambda path: config)
    found = folders.read_folders(["results"])
    assert found.history["algorithm"].unique().tolist() == [f"learning rate {x}" for x in kept]
    assert len(set(found.settings.values())) == len(kept)


NAMED = {"num_clients": 8, "cohort_size": 3, "local_steps": 2, "batch_size": 7, "model": "mlp"}
SETTINGS = {"dataset": "digits", "partition": "iid"} | NAMED


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            SETTINGS,
            "digits: 8 clients, partition iid, 3 clients per round, 2 local steps, "
            "7 examples per step, model mlp.",
        ),
        (
            SETTINGS | {"sampling": "geometric"},
            "digits: 8 clients, partition iid, all clients per round, 2 local steps, "
            "7 examples per step, model mlp.",
        ),
        (
            {"own": ["dataset", "model", "rows", "timeline"], "local_steps": 2, "batch_size": 7},
            "own data: own partition, own timeline, 2 local steps, 7 examples per step, "
            "model of a study module.",
        ),
        (
            {"hub": "a/b", "data": "huggingface", "partition": "natural"} | NAMED,
            "a/b: partition natural, 3 clients per round, 2 local steps, 7 examples per step, "
            "model mlp.",
        ),
        ({"own": ["setup"], "algorithms": ["fedavg"]}, "setup of a study module."),
    ],
)
def test_the_setting_names_what_ran(config, expected):
    assert folders.setting_text(config) == expected


@pytest.mark.parametrize(
    "words",
    [
        "partition:classes --classes-per-client 3",
        "partition:dirichlet-by-class --alpha 10",
        "partition:log-normal --size-sigma 3",
        "partition:pfllib-pat --balanced",
        "partition:natural data:generated --model-spread 2",
        "--partition-seed 1",
        "--partition-per-seed",
        "--test-of clients --test-fraction 0.5",
        "--validation 0.5",
        "--validation 0.25 --validation-of pool",
        "--held-out-clients 0.25",
        "shift:noise --shift.variance 3",
        "attack:alie --attack.fraction 0.4",
        "sampling:cyclic",
        "--weighting examples",
        "--dropout 0.25",
        "--lost 0.25",
        "--late 0.25 --delay 2",
        "time:clock --local-steps 2 --cohort-size 5",
        "time:clock --local-steps 2 --law.step-time 3",
        "time:clock --local-steps 2 --law.slow-fraction 0.5",
        "time:clock --local-steps 2 --law.slow-factor 4",
        "time:clock law:log-normal --local-steps 2 --law.log-sigma 2",
        "time:clock law:trace --local-steps 2 --law.file a.csv --law.file b.csv",
        "time:clock --local-steps 2 --interval 5",
        "time:clock --local-steps 2 --interaction 5",
        "time:clock --local-steps 2 --buffer-size 5",
        "time:clock --local-steps 2 --concurrency 5",
        "time:clock --local-steps 2 --horizon 500",
        "time:clock --local-steps 2 --updates 50",
    ],
)
def test_runs_on_other_clients_have_another_setting(words):
    """Only methods of one setting are compared, seed by seed."""

    def text(words):
        _, study, rest = read_arguments(["quickstart", *words])
        options = parse(RunOptions, "run quickstart", "", rest, RunOptions(study.options))
        return folders.setting_text(flat(options.run))

    typed = words.split()
    last = max(i for i, word in enumerate(typed) if ":" in word or word.startswith("--"))
    assert text(typed) != text(typed[:last])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"alpha": 3.0}, "alpha is 3.0 there and None in config.json"),
        ({"cohort_fraction": None}, "cohort_fraction is None there and 0.5 in config.json"),
        ({"hyper": {"lr": 0.2}}, "hyper is {'lr': 0.2} there and {'lr': 0.1} in config.json"),
        ({"algorithm": "fedprox"}, "algorithm is 'fedprox' there and 'fedavg' in config.json"),
    ],
)
def test_runs_are_those_of_the_configuration_beside_them(tmp_path, changes, message):
    """A target of privacy has become noise, and an infinity has a name."""
    settings = {"algorithms": ["fedavg"], "alpha": None, "cohort_fraction": 0.5}
    settings |= {"privacy.epsilon": 3.0, "privacy.noise": None, "later": 1}
    ran = {"algorithm": "fedavg", "hyper": {"lr": 0.1}, "alpha": "inf", "cohort_fraction": 0.5}
    ran |= {"privacy.epsilon": None, "privacy.noise": 0.7, "earlier": 2}
    saved = {"settings": settings, "algorithms": {"fedavg": {"lr": 0.1}}}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    hand_made_runs.write_run(tmp_path / "fedavg", config=ran | changes)
    if message is None:
        assert folders.run_folders(tmp_path) == {"fedavg": [tmp_path / "fedavg"]}
        # One that the file does not have yet; without algorithms.json its name is the folder's.
        own = ran | {"algorithm": "my own", "hyper": {"lr": 0.7}}
        hand_made_runs.write_run(tmp_path / "my-own", config=own)
        assert list(folders.run_folders(tmp_path)) == ["fedavg", "my-own"]
        return
    with pytest.raises(FolderError, match=f"is a run of another comparison than .*: {message}; "):
        folders.run_folders(tmp_path)


def test_folders_on_other_examples_have_another_setting(tmp_path):
    """Their options are equal, and the file that they name is not what it was."""
    paths = [tmp_path / name for name in ("one", "same", "other")]
    for path, examples in zip(paths, ("1", "1", "2"), strict=True):
        rows = [("0", 1, "test/accuracy", 0.5)]
        hand_made_runs.write_run(path / "fedavg", rows, replicas=["0"])
        saved = {"settings": SETTINGS, "examples": examples}
        (path / "config.json").write_text(json.dumps(saved))
    one, same, other = folders.read_folders(paths).settings.values()
    assert one == same != other
    joined = joint([source_of(path) for path in paths])
    assert len(set(joined.settings.values())) == 2


def test_a_clock_of_defaults_is_named_by_its_law():
    """Other values follow it, so the text has the defaults of the options."""
    config = flat(replaced(replaced(presets.options(), "time", "clock"), "local_steps", 2))
    expected = "10 clients per round, clock geometric, 2 local steps, "
    assert expected in folders.setting_text(config)
    config |= {"law": "log-normal"} | {f"law.{x}": v for x, v in vars(LogNormal()).items()}
    assert "clock log-normal, 2 local" in folders.setting_text(config)
    config |= {"law.slow_factor": 4.0, "horizon": 500.0}
    expected = "clock log-normal with slow factor = 4.0, horizon = 500.0, 2 local steps"
    assert expected in folders.setting_text(config)


def test_the_setting_of_a_grid_over_the_cohort_has_its_fractions():
    """Before, tables, figures and reports of such a sweep ended with an error."""
    config = SETTINGS | {"cohort_fraction": None, "validation": 0.0}
    entries = [{"cohort_fraction": x, "validation": x} for x in (0.25, 0.5)]
    text = folders.setting_text(folders._with_grid(config, entries))
    assert "0.25 to 0.5 for validation, 0.25 to 0.5 of the clients per round" in text
