"""A folder holds a run, a comparison or a sweep; the others are refused and nothing is written."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from sweep_problems import quadratic_trial

import fedjax_sim as fs
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.runs.storage.folders import is_seed
from fedjax_sim.runs.storage.store import claim

WRITERS = {"a run": small_runs.run, "a comparison": small_runs.compare, "a sweep": small_runs.sweep}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of every kind, as far as the kind is read from it."""
    base = tmp_path_factory.mktemp("folders")
    for path in ("a run", "a comparison/fedavg", "seeds/fedavg/0"):
        (base / path).mkdir(parents=True)
        claim(base / path / "run.json", {"replicas": ["0"]})
    (base / "a sweep").mkdir()
    (base / "a sweep" / "sweep.json").write_text("{}")
    return base


@pytest.mark.parametrize("holds", [*WRITERS, "seeds"])
@pytest.mark.parametrize("kind", WRITERS)
def test_folders_of_other_results_are_refused(folders, tmp_path, holds, kind):
    held = "a comparison" if holds == "seeds" else holds
    if kind == held:
        return
    folder = shutil.copytree(folders / holds, tmp_path / "folder")
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=f"^directory is '{folder}', which holds {held}; expected"):
        WRITERS[kind](folder)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_is_no_directory(tmp_path, kind):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match=r"^directory is '.*file', which is a file; expected"):
        WRITERS[kind](file)
    with pytest.raises(ValueError, match=r"^directory is '.*deep', which is inside the file"):
        WRITERS[kind](file / "very" / "deep")
    assert file.read_text() == "mine"


@pytest.mark.slow
def test_runs_share_a_parent_folder(tmp_path):
    """Only what a folder itself holds counts: not the comparisons in its folders."""
    for path in ("run", "compared/fedavg"):
        (tmp_path / "results" / path).mkdir(parents=True)
        claim(tmp_path / "results" / path / "run.json", {"replicas": ["0"]})
    with pytest.raises(ValueError, match="holds a comparison; expected another folder for a sweep"):
        small_runs.sweep(tmp_path / "results")
    small_runs.sweep(tmp_path)
    assert not fs.analysis.read_folder(tmp_path).history.empty


@pytest.mark.parametrize("text", ["{", "[1]", '{"replicas": ["0"]}'])
def test_a_damaged_identity_is_named(tmp_path, text):
    path = tmp_path / "0" / "run.json"
    path.parent.mkdir()
    path.write_text(text)
    for read in (fs.analysis.read_folder, fs.load):
        with pytest.raises(FolderError, match=rf"{path} is damaged \(.*\); restore it from a copy"):
            read(tmp_path)
    path.unlink()
    claim(path, {"replicas": ["0"]})
    assert is_seed(path.parent)


@pytest.mark.slow
def test_booleans_are_1_and_0(tmp_path):
    setup = quadratic_trial(num_seeds=2, num_rounds=2).setup
    evaluator = jax.tree_util.Partial(lambda x: {"fine": jnp.isfinite(x).all(), "each": x >= 0})
    setup = fs.Setup(setup.task, setup.timeline, setup.params, evaluator)
    keys = jax.random.split(jax.random.key(1), 2)
    in_memory = fs.simulate(fs.fedavg(0.1), setup, keys).to_frame()
    on_disk = fs.simulate(fs.fedavg(0.1), setup, keys, storage=tmp_path).to_frame()
    read = fs.analysis.read_folder(tmp_path).history
    for frame in (in_memory, on_disk, read):
        values = frame.loc[frame["metric"].str.contains("fine|each"), "value"]
        assert set(values) <= {0, 1}
        np.testing.assert_array_equal(frame.loc[frame["metric"] == "fine", "value"], 1)
