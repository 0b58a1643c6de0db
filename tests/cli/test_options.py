"""Options typed over the defaults of a preset or a file."""

import dataclasses
import json

import pytest
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig

from fedjax_sim.cli.main import main
from fedjax_sim.cli.options import parse, run_config, sweep_config
from fedjax_sim.studies.setups.build import hyper_parameters
from fedjax_sim.studies.setups.config_file import to_json

CONFIG = RunConfig(
    algorithms=("fedavg", "fedprox", "fedadam"), lr=0.3, hyper=("fedprox.mu=1", "fedprox.lr=0.4")
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    """The config.json of a comparison."""
    path = tmp_path_factory.mktemp("written") / "config.json"
    saved = {"config": to_json(CONFIG), "algorithms": hyper_parameters(CONFIG)}
    path.write_text(json.dumps(saved))
    return str(path)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--algorithms fedprox", {"fedprox": {"lr": 0.4, "mu": 1.0}}),
        ("--algorithms fedavg fedsgd", {"fedavg": {"lr": 0.3}, "fedsgd": {"lr": 0.3}}),
        ("--algorithms fedsgd --hyper fedsgd.lr=0.1", {"fedsgd": {"lr": 0.1}}),
        ("--algorithms fedprox --lr 0.3", {"fedprox": {"lr": 0.3, "mu": 1.0}}),
        ("--algorithms fedprox --lr=0.3", {"fedprox": {"lr": 0.3, "mu": 1.0}}),
        (
            "--algorithms fedavg fedprox --hyper fedprox.mu=2",
            {"fedavg": {"lr": 0.3}, "fedprox": {"lr": 0.4, "mu": 2.0}},
        ),
        (
            "--algorithms fedprox fedadam --lr 0.7 --hyper fedadam.lr=0.6",
            {"fedprox": {"lr": 0.7, "mu": 1.0}, "fedadam": {"lr": 0.6, "server_lr": 0.03}},
        ),
    ],
)
def test_typed_options_replace_those_of_a_file_one_by_one(file, typed, expected):
    parsed = parse(RunConfig, "run", file, "", typed.split(), run_config(file))
    assert hyper_parameters(parsed) == expected


def test_a_sweep_keeps_the_hyper_parameters_of_the_algorithms_that_run(file):
    typed = "--algorithms fedprox --grid mu=1,2".split()
    parsed = parse(SweepConfig, "sweep", file, "", typed, sweep_config(file))
    assert hyper_parameters(parsed) == {"fedprox": {"lr": 0.4, "mu": 1.0}}


def test_without_typed_options_a_file_gives_its_own(file):
    parsed = parse(RunConfig, "run", file, "", [], run_config(file))
    assert parsed == run_config(file)
    assert hyper_parameters(parsed) == hyper_parameters(CONFIG)
    assert dataclasses.replace(parsed, hyper=CONFIG.hyper, lr=CONFIG.lr) == CONFIG


@pytest.mark.parametrize("command", ["run", "sweep", "measure"])
def test_typed_hyper_parameters_of_an_algorithm_that_does_not_run_are_refused(
    file, command, capsys
):
    typed = "--algorithms fedavg --hyper fedprox.mu=2".split()
    if command == "sweep":
        typed += ["--grid", "lr=0.1"]
    assert main([command, file, *typed]) == 2
    expected = "fedjax-sim: error: --hyper has 'fedprox.mu=2'; expected one of fedavg\n"
    assert capsys.readouterr().err == expected
