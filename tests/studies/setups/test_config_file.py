"""Configurations as JSON files."""

import dataclasses
import json
import math

import pytest
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig

from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.studies.setups.build import check, hyper_parameters
from fedjax_sim.studies.setups.config_file import read, read_sweep, to_json

CONFIG = RunConfig(
    algorithms=("fedavg", "fedprox"), hyper=("fedprox.mu=0",), seed=7, lr=0.3, dropout=0.2
)


def test_config_survives_json(tmp_path):
    config = dataclasses.replace(CONFIG, output=tmp_path / "a", data_dir=tmp_path)
    # SCAFFOLD is from an earlier call.
    hyper = hyper_parameters(config) | {"scaffold": {"lr": 1.0}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": to_json(config), "algorithms": hyper}))
    again = read(path)
    assert hyper_parameters(again) == hyper_parameters(config)
    ignored = {"hyper": (), "lr": None}
    assert dataclasses.replace(again, **ignored) == dataclasses.replace(config, **ignored)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no valid JSON: EOF"),
        ("[]", "the file is []; expected an object"),
        ("{}", "lacks config"),
        ('{"config": 3}', "config is 3; expected an object"),
        ('{"config": {}}', "lacks algorithms"),
        ('{"config": {"rounds": 3}, "algorithms": {}}', "lacks algorithms.fedavg"),
        ('{"config": {}, "algorithms": {"fedavg": 3}}', "algorithms.fedavg is 3; expected an obj"),
        ("[" * 10**5, "is no valid JSON: recursion"),
    ],
)
def test_files_that_are_no_config_are_refused(tmp_path, text, problem):
    path = tmp_path / "config.json"
    path.write_text(text)
    for reader in (read, read_sweep):
        with pytest.raises(FolderError) as error:
            reader(path)
        assert problem in str(error.value)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("rounds", "40", 'config.rounds is "40"; expected an integer'),
        ("rounds", 2.5, "config.rounds is 2.5; expected an integer"),
        ("rounds", 40.0, "config.rounds is 40.0; expected an integer"),
        ("rounds", True, "config.rounds is true; expected an integer"),
        ("rounds", None, "config.rounds is null; expected an integer"),
        ("dropout", "0.5", 'config.dropout is "0.5"; expected a number'),
        ("dropout", False, "config.dropout is false; expected a number"),
        ("lr", "fast", 'config.lr is "fast"; expected a number'),
        ("output", 3, "config.output is 3; expected text"),
        ("clock", "sun", "config.clock is \"sun\"; expected 'none', 'geometric'"),
        ("algorithms", "fedavg", 'config.algorithms is "fedavg"; expected a list'),
        ("algorithms", [1], "config.algorithms.0 is 1; expected text"),
        ("round", 3, "has the unknown key config.round; did you mean rounds?"),
        ("colour", "red", "has the unknown key config.colour"),
    ],
)
@pytest.mark.parametrize("kind", [RunConfig, SweepConfig])
def test_edited_values_are_named_with_the_expectation(tmp_path, kind, key, value, problem):
    path = tmp_path / "config.json"
    saved: dict = {"config": to_json(kind()) | {key: value}}
    if kind is RunConfig:
        saved["algorithms"] = {name: {"lr": 0.1} for name in RunConfig().algorithms}
    path.write_text(json.dumps(saved))
    with pytest.raises(FolderError) as error:
        read_sweep(path) if kind is SweepConfig else read(path)
    assert str(error.value).startswith(f"{path}")
    assert problem in str(error.value)


def test_the_file_of_a_sweep_is_no_comparison(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"config": to_json(SweepConfig())}))
    with pytest.raises(FolderError, match="is the file of a sweep; expected one that"):
        read(path)


def test_missing_keys_have_their_defaults_and_infinities_survive(tmp_path):
    path = tmp_path / "config.json"
    values = to_json(SweepConfig(alpha=math.inf, rounds=7))
    del values["dropout"]
    path.write_text(json.dumps({"config": values}))
    assert read_sweep(path) == SweepConfig(alpha=math.inf, rounds=7)


def test_library_callers_are_checked_too():
    with pytest.raises(ValueError, match="sampling is 'random'; expected one of uniform, "):
        check(dataclasses.replace(CONFIG, sampling="random"))  # pyright: ignore[reportArgumentType]
