"""Files in a run's folder that are links, of others, lost, or changed."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import small_runs

import fedjax_sim as fs
from fedjax_sim.reports.folders import read_config
from fedjax_sim.runs.storage.files import FolderError, RecoveryWarning, remove_partials, write_text
from fedjax_sim.runs.storage.folders import is_seed
from fedjax_sim.runs.storage.model_files import read_models
from fedjax_sim.runs.storage.store import claim
from fedjax_sim.studies.executions import stored


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    small_runs.run(folder)
    return folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    small_runs.run(folder, callbacks=[lambda e: "interrupt" if e.round >= 4 else None])
    return folder


@pytest.fixture
def run_folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def begun(interrupted, tmp_path):
    """The folder of a run that still has rounds to do."""
    return shutil.copytree(interrupted, tmp_path / "run")


@pytest.fixture
def others(tmp_path):
    """A folder of the user's, whose files have to stay as they are."""
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "file").write_text("mine\n")
    yield folder
    assert sorted(path.name for path in folder.rglob("*")) == ["file"]
    assert (folder / "file").read_text() == "mine\n"


@pytest.mark.parametrize(
    "name",
    ["history.csv", "history.digests", "clients.csv", "clients.parquet", "calls.jsonl", ".lock"],
)
def test_a_link_that_a_run_would_write_through_is_refused(begun, tmp_path, others, name):
    """The history is appended to, calls.jsonl too, a lock empties its file."""
    path, target = begun / name, others / "file"
    if name == "history.csv":  # as it was, so that only the link is wrong
        target = tmp_path / "copy.csv"
        shutil.copy(path, target)
    before = target.read_bytes()
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    with pytest.raises(FolderError, match=rf"{name} is a symbolic link to .*; expected a file or"):
        small_runs.run(begun)
    assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["history.csv", "history.digests", "calls.jsonl", ".lock"])
def test_a_hard_link_that_a_run_would_write_through_is_refused(begun, tmp_path, name):
    """As in a copy by `cp -al`: appending to the copy would change the original."""
    path, other = begun / name, tmp_path / "other"
    other.write_bytes(path.read_bytes() if name.startswith("history") else b"mine")
    before = other.read_bytes()
    path.unlink()
    path.hardlink_to(other)
    with pytest.raises(FolderError, match=rf"{name} is a hard link.*; expected a file of"):
        small_runs.run(begun)
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["run.json", "outcome.json", "models.npz", ".lock.json"])
def test_a_link_that_a_run_replaces_leaves_its_target(begun, tmp_path, others, name):
    if name == "run.json":
        shutil.move(begun / name, target := tmp_path / "elsewhere.json")
        content = target.read_bytes()
        (begun / name).symlink_to(target)
        small_runs.run(begun)
        assert target.read_bytes() == content
        return
    (begun / name).unlink(missing_ok=True)
    (begun / name).symlink_to(others / "file")
    small_runs.run(begun)
    assert not (begun / name).is_symlink()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/9", "damaged"])
def test_linked_folders_inside_the_run_are_refused(begun, tmp_path, others, name):
    if name == "checkpoints":
        (begun / name).rename(tmp_path / "moved")
    if name == "damaged":  # a newest checkpoint that has to be moved there
        newest = max(begun.glob("checkpoints/*"), key=lambda path: int(path.name))
        next(p for p in newest.rglob("*") if p.is_file()).write_text("changed")
    (begun / name).symlink_to(others)
    with pytest.raises(FolderError, match=f"{name} is a symbolic link"):
        small_runs.run(begun)


def test_a_linked_folder_of_results_works(tmp_path, interrupted):
    """The user named it."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "scratch")
    shutil.copytree(interrupted, tmp_path / "results" / "run")
    result = small_runs.run(tmp_path / "results" / "run")
    assert result.rounds_done == small_runs.NUM_ROUNDS
    assert (tmp_path / "scratch" / "run" / "history.csv").exists()
    (tmp_path / "again").symlink_to(tmp_path / "scratch" / "run")
    assert small_runs.run(tmp_path / "again").history is None  # finished before


def test_a_linked_folder_of_an_algorithm_is_refused(tmp_path, others):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "fedavg").symlink_to(others)
    with pytest.raises(FolderError, match="results/fedavg is a symbolic link"):
        small_runs.compare(tmp_path / "results")


@pytest.mark.parametrize("name", ["slices", "slices/.claims"])
def test_linked_folders_of_a_sweep_are_refused(tmp_path, others, name):
    folder = tmp_path / "sweep"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(others)
    with pytest.raises(FolderError, match=f"{name} is a symbolic link"):
        small_runs.sweep(folder)


@pytest.mark.parametrize("round", [1, 6, 9])
def test_a_folder_of_the_user_among_checkpoints_is_refused_and_stays(begun, round):
    """Neither as an unfinished checkpoint nor, by Orbax, as an old one is it deleted."""
    own = begun / "checkpoints" / str(round)
    own.mkdir(exist_ok=True)
    (own / "thesis.tex").write_text("mine")
    with pytest.raises(FolderError, match=rf"checkpoints/{round} has thesis.tex, which a check"):
        small_runs.run(begun)
    assert (own / "thesis.tex").read_text() == "mine"
    shutil.rmtree(own) if round != 6 else (own / "thesis.tex").unlink()
    small_runs.run(begun)


def test_what_a_kill_leaves_of_a_checkpoint_is_deleted(run_folder):
    newest = max(run_folder.glob("checkpoints/*"), key=lambda path: int(path.name))
    (newest / "record.json").unlink()
    (newest / "_CHECKPOINT_METADATA").unlink()
    (newest / ".record.json.0123456789ab.tmp").touch()
    small_runs.run(run_folder)
    assert (newest / "record.json").exists()


def test_an_earlier_damaged_checkpoint_stays(run_folder):
    newest = max(run_folder.glob("checkpoints/*"), key=lambda path: int(path.name))
    mine = run_folder / "damaged" / newest.name / "notes"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    (newest / "record.json").write_text("{}")
    with pytest.warns(RecoveryWarning, match=rf"was moved to .*/damaged/{newest.name}-2;"):
        small_runs.run(run_folder)
    assert mine.read_text() == "mine"


def test_only_unfinished_files_of_runs_are_removed(tmp_path):
    mine, left = tmp_path / ".notes.v2.tmp", tmp_path / ".run.json.0123456789ab.tmp"
    mine.touch()
    left.touch()
    remove_partials(tmp_path)
    assert mine.exists()
    assert not left.exists()


@pytest.mark.parametrize(
    "fault", ["missing", "emptied", "without keys", "no object", "another algorithm"]
)
def test_a_lost_identity_is_refused(run_folder, fault):
    """Else another rate would continue the old checkpoint."""
    path = run_folder / "run.json"
    values = json.loads(path.read_text())
    other = values | {"algorithm": {"digest": "ab"}}
    content = {
        "emptied": "{}",
        "without keys": json.dumps({"sha256": values["sha256"], "id": values["id"]}),
        "no object": "[]",
        "another algorithm": json.dumps(other, indent=2) + "\n",
    }
    path.unlink()
    if fault != "missing":
        path.write_text(content[fault])
    problem = {
        "missing": r"run\.json is missing, beside history\.csv and checkpoints, so that nothing",
        "another algorithm": r"run\.json is damaged \(it is not what was written\); restore it",
    }.get(fault, r"run\.json is damaged \(.*\); restore it from a copy")
    history = (run_folder / "history.csv").read_bytes()
    with pytest.raises(FolderError, match=problem):
        fs.simulate(fs.fedavg(7.0), small_runs._SETUP, small_runs._KEYS, storage=run_folder)
    assert (run_folder / "history.csv").read_bytes() == history


def test_a_lost_identity_of_a_sweep_is_refused(tmp_path):
    small_runs.sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(FolderError, match=r"sweep\.json is damaged \(its digest or its end is"):
        small_runs.sweep(tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(FolderError, match=r"sweep\.json is missing, beside finished runs"):
        small_runs.sweep(tmp_path)


def _npz_of_unknown_compression(path: pathlib.Path) -> None:
    """NotImplementedError of zipfile: method 99 in both headers of the only member."""
    np.savez(path, description=np.zeros(2))
    data = bytearray(path.read_bytes())
    data[8:10] = (99).to_bytes(2, "little")
    central = data.index(b"PK\x01\x02")
    data[central + 10 : central + 12] = (99).to_bytes(2, "little")
    path.write_bytes(data)


def _npz_of_an_odd_header(path: pathlib.Path) -> None:
    """TokenError of the parser of NumPy's headers."""
    import zipfile

    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2L"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("description.npy", header)


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("models.npz", _npz_of_unknown_compression, lambda path: read_models(path, "ab")),
        ("table.npz", _npz_of_unknown_compression, fs.datasets.tables.read_table),
        ("table.npz", _npz_of_an_odd_header, fs.datasets.tables.read_table),
        (
            "table.parquet",
            lambda path: path.write_bytes(b"PAR1 no table PAR1"),
            fs.datasets.tables.read_table,
        ),
        (
            "trace.csv",
            lambda path: path.write_bytes(b"client,duration\n0,\xff\n"),
            lambda path: fs.timelines.read_trace(path, 1),
        ),
        (
            "executions.json",
            lambda path: path.write_text('{"choices": []}'),
            lambda path: stored(path, {}),
        ),
        (
            "run.json",
            lambda path: path.write_text("[" * 10**5),
            lambda path: claim(path, {"rounds": 3}),
        ),
        ("run.json", lambda path: write_text(path, '{"replicas": 3}'), lambda p: is_seed(p.parent)),
        ("config.json", lambda path: path.write_text("[" * 10**5), lambda p: read_config(p.parent)),
    ],
)  # fmt: skip
def test_readers_name_the_file_in_a_value_error(tmp_path, name, write, read):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=name) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
