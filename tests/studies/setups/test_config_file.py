"""Configurations as JSON files."""

import json
import math
import pathlib

import pytest

from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.config_file import read, to_json
from fedjax_sim.studies.setups.data import Table
from fedjax_sim.studies.setups.execution import MeasuredExecution
from fedjax_sim.studies.setups.fields import flat, replaced
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.privacy import GaussianNoise, Parts
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.settings import resolve_hyper
from fedjax_sim.studies.setups.study import Study

RUN = options(
    algorithms=("fedavg", "fedprox"), hyper={"fedprox": {"mu": 0.0}}, seed=7, lr=0.3, dropout=0.2
)


def hyper_parameters(run: Run) -> dict:
    return resolve_hyper(algorithms_of(run.algorithms.algorithms), run.algorithms)


CHOICES = [
    {},
    {"partition": "pachinko", "alpha": math.inf, "fine_alpha": 2.0},
    {"time": "clock", "law": "log-normal", "law.log_sigma": 0.5, "horizon": 9.0},
    {"attack": "alie", "attack.z": 1.5, "robust": "nnm", "robust.rule": "krum", "robust.rule.f": 2},
    {"compress": "top_k", "compress.keep": 0.02, "feedback": "ef21", "adapters": "lora"},
    {"privacy": GaussianNoise(Parts({"0": 0.5, "1": 2.0}), epsilon=3.0)},
    {"data": Table(pathlib.Path("a.csv"), drop=("a", "b")), "sampling": "full-or-uniform"},
    {"measured": {"fedavg": MeasuredExecution(4, lowering="im2col"), "fedprox": None}},
]


@pytest.mark.parametrize("values", CHOICES, ids=[" ".join(values) for values in CHOICES])
def test_options_survive_json(tmp_path, values):
    run = RUN if "data" in values else replaced(RUN, "data_dir", tmp_path)
    for name, value in {"output": tmp_path / "a", **values}.items():
        run = replaced(run, name, value)
    # SCAFFOLD is from an earlier call.
    hyper = hyper_parameters(run) | {"scaffold": {"lr": 1.0}}
    path = tmp_path / "config.json"
    saved = {"config": to_json(run), "algorithms": hyper, "privacy": to_json(run.privacy)}
    path.write_text(json.dumps(saved, allow_nan=False))
    again = read(path)
    assert hyper_parameters(again) == hyper_parameters(run)
    assert flat(again) | {"hyper": {}} == flat(run) | {"hyper": {}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no valid JSON: EOF"),
        ("[]", "the file is []; expected an object"),
        ("{}", "lacks config"),
        ('{"config": 3}', "config is 3; expected an object"),
        ('{"config": {}}', "lacks algorithms"),
        ('{"config": {"seed": 3}, "algorithms": {}}', "lacks algorithms.fedavg"),
        ('{"config": {}, "algorithms": {"fedavg": 3}}', "algorithms.fedavg is 3; expected an obj"),
        ('{"config": {}, "algorithms": {"fedavg": {}}, "own": ["model"]}', "has model of a study"),
        ('{"config": {}, "sweep": {}}', "is the file of a sweep; expected one that fedjax-sim run"),
        ("[" * 10**5, "is no valid JSON: recursion"),
    ],
)
def test_files_that_are_no_config_are_refused(tmp_path, text, problem):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(FolderError) as error:
        read(path)
    assert problem in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("time.rounds", "40", 'config.time.rounds is "40"; expected an integer'),
        ("time.rounds", 2.5, "config.time.rounds is 2.5; expected an integer"),
        ("time.rounds", 40.0, "config.time.rounds is 40.0; expected an integer"),
        ("time.rounds", True, "config.time.rounds is true; expected an integer"),
        ("time.rounds", None, "config.time.rounds is null; expected an integer"),
        ("time.horizon", 3.0, "has the unknown key config.time.horizon"),
        ("time.kind", "sun", "config.time.kind is 'sun'; expected one of 'rounds', 'clock'"),
        ("time", {"rounds": 3}, "lacks config.time.kind"),
        ("time", 3, "config.time is 3; expected an object"),
        ("cohort.dropout", "0.5", 'config.cohort.dropout is "0.5"; expected a number'),
        ("cohort.dropout", False, "config.cohort.dropout is false; expected a number"),
        ("algorithms.lr", "fast", 'config.algorithms.lr is "fast"; expected a number'),
        ("output", 3, "config.output is 3; expected text"),
        ("algorithms.algorithms", "fedavg", 'algorithms.algorithms is "fedavg"; expected a list'),
        ("algorithms.algorithms", [1], "config.algorithms.algorithms.0 is 1; expected text"),
        ("time.round", 3, "has the unknown key config.time.round; did you mean rounds?"),
        ("seedz", 3, "has the unknown key config.seedz; did you mean seed?"),
        ("colour", "red", "has the unknown key config.colour"),
        ("data.dataset", "own:load", "config.data.dataset is"),
        ("execution.measured", {"fedavg": {"chunk": "4"}}, 'measured.fedavg.chunk is "4"; expect'),
    ],
)
def test_edited_values_are_named_with_the_expectation(tmp_path, key, value, problem):
    path = tmp_path / "config.json"
    config = to_json(Run())
    *groups, last = key.split(".")
    part = config
    for name in groups:
        part = part[name]
    part[last] = value
    hyper = {name: {"lr": 0.1} for name in Run().algorithms.algorithms}
    path.write_text(json.dumps({"config": config, "algorithms": hyper}))
    if key == "data.dataset":  # a name, which nothing imports
        assert read(path).data.dataset == value
        return
    with pytest.raises(FolderError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}")
    assert problem in str(error.value)


def test_missing_keys_have_their_defaults_and_infinities_are_null(tmp_path):
    path = tmp_path / "config.json"
    values = to_json(options(alpha=math.inf, rounds=7))
    assert values["partition"]["alpha"] is None
    del values["cohort"]["dropout"], values["execution"]
    path.write_text(json.dumps({"config": values, "algorithms": hyper_parameters(Run())}))
    assert flat(read(path)) | {"hyper": {}} == flat(options(alpha=math.inf, rounds=7))


def test_library_callers_are_checked_too():
    with pytest.raises(ValueError, match="sampling is 'random'; expected one of uniform, "):
        check_study(Study(replaced(RUN, "sampling", "random")))
