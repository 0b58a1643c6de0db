"""Configurations as JSON files."""

import dataclasses
import json

import pytest

from fedjax_sim.cli.build import check, hyper_parameters
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.config_file import read, to_json

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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"config": {"rounds": 3}, "algorithms": {}}'])
def test_files_that_are_no_config_are_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(
        ValueError, match=r"config\.json (is not the config\.json of a comparison|cannot be read)"
    ):
        read(path)


def test_library_callers_are_checked_too():
    with pytest.raises(ValueError, match="sampling is 'random'; expected one of uniform, "):
        check(dataclasses.replace(CONFIG, sampling="random"))  # pyright: ignore[reportArgumentType]
