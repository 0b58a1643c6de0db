"""Output folders with other results are refused before anything is loaded, compiled or written."""

import contextlib
import dataclasses
import json
import types

import pytest

from fedjax_sim import models
from fedjax_sim.cli import sweep, tune
from fedjax_sim.cli.grid import Axis, SweepOptions, configurations
from fedjax_sim.cli.main import main
from fedjax_sim.cli.space import TUNING
from fedjax_sim.runs import FolderError
from fedjax_sim.runs.sweeps import store
from fedjax_sim.studies.setups import Study, as_json, build, flat, options, replaced, to_json

HELD = {  # files, and what they are
    "a run": {"run.json": {"replicas": ["0"]}},
    "a comparison": {"fedavg/run.json": {"replicas": ["0", "1"]}},
    "a sweep": {"sweep.json": {}},
}


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def load(*args):
        raise AssertionError("loads data")

    monkeypatch.setattr(build, "load_dataset", load)
    monkeypatch.setattr(sweep, "load_dataset", load)


@pytest.mark.parametrize(
    ("command", "held"),
    [("run", "a run"), ("run", "a sweep"), ("sweep", "a run"), ("sweep", "a comparison")],
)
def test_folders_of_other_results_are_refused(tmp_path, capsys, command, held):
    folder = tmp_path / "folder"
    for name, content in HELD[held].items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(json.dumps(content))
    before = sorted(folder.rglob("*"))
    assert main([command, "--output", str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"error: --output is '{folder}', which holds {held}; expected another folder" in error
    assert sorted(folder.rglob("*")) == before


def written(folder, config: SweepOptions, **changes) -> SweepOptions:
    """The sweep with its config.json, as if it had run."""
    config = changed(config, output=folder, **changes)
    study = Study(config.run)
    fixed = sweep._checked(study, configurations(study, config))
    text = json.dumps(as_json({"sweep": to_json(config), "settings": flat(config)} | fixed))
    (folder / "config.json").write_text(text)
    return config


def changed(config: SweepOptions, **changes) -> SweepOptions:
    if "grid" in changes:
        grid = {name: Axis(values) for name, values in changes.pop("grid").items()}
        config = dataclasses.replace(config, grid=grid)
    for name, value in changes.items():
        config = replaced(config, name, value)
    return config


FIRST = SweepOptions(options(algorithms=("fedprox",), hyper={"fedprox": {"mu": 2.0}}, batch_size=9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 5}, "batch_size is 9 there and 5 here"),
        ({"hyper": {"fedprox": {"mu": 1.0}}}, "fedprox.mu is 2.0 there and 1.0 here"),
        ({"rounds": 200, "seed": 7}, "rounds is 100 there and 200 here"),
        (
            {"sampling": "full", "grid": {"lr": (3.0,)}},
            "sampling is 'uniform' there and 'full' here",
        ),
    ],
)
def test_sweeps_with_other_fixed_settings_are_refused(tmp_path, changes, message):
    first = written(tmp_path, FIRST)
    with pytest.raises(ValueError, match=f"which holds another sweep: {message}; choose another"):
        sweep.run_sweep(Study(), changed(first, **changes))


@pytest.mark.parametrize("model", [None, models.mlp((8, 8, 1), (4,), 10)])
def test_a_sweep_that_another_one_overtakes_is_refused(tmp_path, monkeypatch, model):
    """Both found no sweep there; the later one runs nothing, and the other's file stays."""

    def overtaken(*arguments, callbacks, **named):
        written(tmp_path, FIRST)
        callbacks[0].progress(types.SimpleNamespace(round=0))
        raise AssertionError("runs")

    monkeypatch.setattr(sweep, "sweep", overtaken)
    changes = {"batch_size": 5} if model is None else {}
    message = "batch_size is 9 there and 5 here"
    if model is not None:
        message = "the parts of a study module are none there and model here"
    with pytest.raises(FolderError, match=f"which holds another sweep: {message}"):
        sweep.run_sweep(Study(model=model), changed(FIRST, output=tmp_path, **changes))
    assert json.loads((tmp_path / "config.json").read_text())["options"]["batch_size"] == 9


def test_a_sweep_keeps_what_another_process_has_added(tmp_path, monkeypatch):
    """The other one, which began later, has a rate and figures that this one's start lacks."""
    path = tmp_path / "config.json"

    def grown(*arguments, callbacks, **named):
        written(tmp_path, FIRST, grid={"batch_size": (2, 4)})
        path.write_text(json.dumps(json.loads(path.read_text()) | {"files": ["a.png"]}))
        callbacks[0].progress(types.SimpleNamespace(round=0))
        raise InterruptedError

    monkeypatch.setattr(sweep, "sweep", grown)
    with pytest.raises(InterruptedError):
        sweep.run_sweep(Study(), changed(FIRST, output=tmp_path))
    saved = json.loads(path.read_text())
    assert saved["algorithms"] == {"fedprox": {"mu": 2.0, "lr": 0.2}}
    assert saved["files"] == ["a.png"]


def test_a_sweep_is_refused_where_a_comparison_began_before_it_had_the_folder(
    tmp_path, monkeypatch
):
    @contextlib.contextmanager
    def locked(directory, *, wait):
        (directory / "fedavg").mkdir()
        (directory / "fedavg" / "run.json").write_text(json.dumps({"replicas": ["0", "1"]}))
        yield

    monkeypatch.setattr(store, "locked", locked)
    with pytest.raises(FolderError, match="which holds a comparison; expected another folder"):
        store.SweepStore(tmp_path, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedavg"]


def test_a_tuning_that_another_one_overtakes_is_refused(tmp_path, monkeypatch):
    words = ["quickstart", "--space.lr.from", "0.01", "--space.lr.to", "1"]
    words += ["--output", str(tmp_path)]

    def call(*more):
        _, _, study, config = TUNING.read([*words, *more], "")
        tune.run_tune(study, config, "quickstart", words)

    def begun(*arguments, callbacks, **named):
        callbacks[0].progress(types.SimpleNamespace(round=0))
        raise InterruptedError

    def overtaken(*arguments, **named):
        monkeypatch.setattr(tune, "tune", begun)
        with pytest.raises(InterruptedError):
            call("--rounds", "50")
        begun(*arguments, **named)

    monkeypatch.setattr(tune, "_check_setups", lambda runs: None)
    monkeypatch.setattr(tune, "tune", overtaken)
    message = "another tuning: rounds is 50 there and 100 here"
    with pytest.raises(FolderError, match=message):
        call()


def test_sweeps_grow_in_every_direction(tmp_path):
    """More values, seeds and algorithms, and settings that vary later; each counts as fixed."""
    first = written(tmp_path, FIRST)
    values = {"seed": 5, "seeds": 7, "metric": "test/loss", "mode": "min"}
    for changes in (
        {"grid": {"lr": (0.7, 0.8)}} | values,
        {"algorithms": ("fedavg", "fedprox"), "execution": "chunked"},
        {"grid": {"lr": (0.1,), "batch_size": (2, 4)}, "batch_size": 7},
        {"grid": {"cohort_size": (2, 4)}, "lr": 0.3, "algorithms": ("fedavg",), "hyper": {}},
    ):
        written(tmp_path, first, **changes)
    with pytest.raises(
        ValueError, match=r"another sweep: batch_size is 9 there and 7 here; choose"
    ):
        written(tmp_path, first, batch_size=7)
    with pytest.raises(ValueError, match=r"another sweep: fedavg.lr is 0.3 there and 0.4 here; ch"):
        written(
            tmp_path, first, grid={"cohort_size": (8,)}, lr=0.4, algorithms=("fedavg",), hyper={}
        )


def test_comparisons_without_a_run_are_refused(tmp_path, capsys):
    """Interrupted after config.json was written."""
    text = json.dumps({"config": to_json(options()), "algorithms": {}})
    (tmp_path / "config.json").write_text(text)
    assert main(["sweep", "--output", str(tmp_path)]) == 2
    assert "which holds a comparison; expected another folder" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == text
