"""Files name no code: the module that a configuration or a folder names is not imported."""

import dataclasses
import json
import pathlib
import sys

import numpy as np
import pytest
import small_runs
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig

import fedjax_sim as fs
from fedjax_sim.cli.grid import configurations
from fedjax_sim.cli.main import main
from fedjax_sim.runs.storage.model_files import Models
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.studies.setups import config_file, own_objects, references
from fedjax_sim.studies.setups.build import hyper_parameters

# Leaves a file when it is imported; has a function for every option.
MODULE = """
import pathlib

pathlib.Path(__file__).with_name("marker").touch()


def part(**anything):
    raise RuntimeError("called")
"""
CODE = "leaves_a_marker:part"
SMALL = RunConfig(algorithms=("fedavg",), model="softmax_regression", rounds=2, seeds=1)
COMMANDS = ["run", "run --dry-run", "run --diagnose", "sweep", "clients", "advise", "measure"]


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """The file that an import leaves, in the current folder, from where modules are imported."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "leaves_a_marker.py").write_text(MODULE)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    yield here / "marker"
    assert not (here / "marker").exists()
    assert "leaves_a_marker" not in sys.modules


def named(option: str) -> dict:
    """Returns an option's value with code in it."""
    return {option: (CODE,) if option == "algorithms" else CODE}


def written(path: pathlib.Path, config: RunConfig, label: str = "fedavg", **sections) -> None:
    """Writes a config.json, which need not be valid Python for the command line."""
    values = {"config": config_file.to_json(config), "algorithms": {label: {"lr": 0.1}}}
    path.write_text(json.dumps(values | sections))


OPTIONS = ["algorithms", *references.FUNCTIONS]


def test_the_options_with_functions_are_these():
    assert set(references.FUNCTIONS) == set(own_objects._KINDS)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_configuration_is_refused_by_every_command(marker, capsys, command, option):
    path = marker.with_name("config.json")
    written(path, dataclasses.replace(SMALL, **named(option)), "part")
    name, *flags = command.split()
    assert main([name, str(path), *flags]) == 2
    error = capsys.readouterr().err
    assert f"{path} has '{CODE}' in {option}, and a file may not say which code runs" in error
    assert f"--{option}" in error


@pytest.mark.parametrize(
    "values",
    [{"grid": (f"partition=iid,{CODE}",)}, {"grid": (f" model={CODE}",)}, named("algorithms")],
)
def test_a_sweep_is_refused(marker, capsys, values):
    path = marker.with_name("config.json")
    config = dataclasses.replace(SweepConfig(seeds=1), **values)
    path.write_text(json.dumps({"config": config_file.to_json(config)}))
    assert main(["sweep", str(path)]) == 2
    assert "a file may not say which code runs" in capsys.readouterr().err
    with pytest.raises(ValueError, match="may not say which code runs"):
        config_file.read_sweep(path)


def test_a_table_of_points_is_refused(marker):
    path = marker.with_name("points.csv")
    path.write_text(f"model,lr\nmlp,0.1\n{CODE},0.2\n")
    with pytest.raises(ValueError, match="which has model=leaves_a_marker:part, and a file may"):
        configurations(SweepConfig(points=path))


def test_python_refuses_to_read_it(marker):
    path = marker.with_name("config.json")
    written(path, dataclasses.replace(SMALL, loss=CODE))
    with pytest.raises(ValueError, match="has 'leaves_a_marker:part' in loss"):
        config_file.read(path)
    assert config_file.read(path, replaced={"loss"}).loss == CODE  # text, which nothing imports


def test_a_typed_option_replaces_that_of_the_file(marker, capsys):
    """The typed name counts: one that is not imported here, since another error comes first."""
    path = marker.with_name("config.json")
    written(path, dataclasses.replace(SMALL, model=CODE))
    typed = ["--model", "softmax_regression", "--rounds", "0"]
    assert main(["run", str(path), *typed]) == 2
    assert "--rounds is 0; expected" in capsys.readouterr().err


def test_names_of_the_package_pass(marker):
    path = marker.with_name("config.json")
    written(path, SMALL)
    assert hyper_parameters(config_file.read(path)) == {"fedavg": {"lr": 0.1}}
    table = dataclasses.replace(SMALL, dataset="C:/data/table.csv")  # a path, no reference
    written(path, table)
    assert config_file.read(path).dataset == "C:/data/table.csv"


@pytest.fixture
def folder(marker):
    """A folder of ``fedjax-sim run`` whose config.json names code wherever it can."""
    folder = marker.with_name("results")
    small_runs.run(folder / "part")
    everywhere = {k: v for option in OPTIONS for k, v in named(option).items()}
    config = dataclasses.replace(SMALL, output=folder, **everywhere)
    data = {"shape": [2], "classes": 3, "dtype": "float32", "class_names": None}
    written(
        folder / "config.json", config, "part", data=data, model={"name": CODE}, code={CODE: "0"}
    )
    params = {"kernel": np.ones((1, 2, 3), np.float32)}
    RunFolder(folder / "part").write_models(Models(params, ["0"], [2], {}))
    return folder


def test_a_folder_of_results_runs_nothing(folder, capsys):
    assert main(["fork", str(folder), "--round", "1", "--alternatives", "lr=0.1"]) == 2
    assert "and a folder may not say which code runs; expected fs.fork(" in capsys.readouterr().err
    assert main(["table", str(folder), "--metric", "norm"]) == 0
    assert main(["plot", str(folder), "--y", "norm"]) == 0
    assert main(["export", str(folder), "--output", str(folder / "model.npz")]) == 0
    # A command that names all parts itself compares the folder's configuration only.
    assert main(["run", "quickstart", "--output", str(folder), "--seeds", "1"]) == 2
    assert "holds another comparison" in capsys.readouterr().err


def test_loading_a_folder_runs_nothing(folder):
    x = np.ones((4, 2), np.float32)
    saved = fs.load(folder)
    assert len(saved.to_frame())
    assert saved.params()["kernel"].shape == (2, 3)
    with pytest.raises(ValueError, match=r"and a folder may not say which code runs; expected fs."):
        saved.predict(x)
    with pytest.raises(ValueError, match="may not say which code runs"):
        saved.classify(x)


def test_an_own_model_is_an_argument(folder):
    """Logits x @ ones [2, 3] are 2 everywhere."""

    def build(shape, num_classes):
        assert (shape, num_classes) == ((2,), 3)
        return fs.models.Model(lambda key: {}, lambda params, x: x @ params["kernel"])

    x = np.ones((4, 2), np.float32)
    for model in (build, build((2,), 3)):
        np.testing.assert_array_equal(fs.load(folder, model=model).predict(x), np.full((4, 3), 2))
