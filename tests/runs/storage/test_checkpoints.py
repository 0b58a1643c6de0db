"""Damaged checkpoints: nothing wrong is ever restored, and older checkpoints are used."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
import small_runs
from call_records import records

import fedjax_sim as fs
from fedjax_sim.runs.storage import checkpoints
from fedjax_sim.runs.storage.checkpoints import damage, newest
from fedjax_sim.runs.storage.files import FolderError, RecoveryWarning
from fedjax_sim.runs.storage.store import RunFolder

LAST = small_runs.NUM_ROUNDS


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with its two newest checkpoints, and its bits."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, small_runs.run_bits(small_runs.run(folder), folder)


@pytest.fixture
def folder(finished, tmp_path) -> pathlib.Path:
    return shutil.copytree(finished[0], tmp_path / "run")


def flip(path: pathlib.Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def files_of(step: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


@pytest.mark.slow
def test_models_of_an_earlier_round_are_replaced(folder):
    """A kill between the last checkpoint and the models leaves those of an earlier call."""
    run = RunFolder(folder)
    right = run.models()
    run.write_models(right._replace(params=0 * right.params, rounds=[4, 4]))
    assert small_runs.run(folder).history is None
    assert run.models().rounds == [LAST, LAST]
    np.testing.assert_array_equal(run.models().params, right.params)


@pytest.mark.slow
def test_every_flipped_bit_and_every_cut_is_seen(folder):
    step = folder / "checkpoints" / str(LAST)
    assert damage(step) == ""
    rng = np.random.default_rng(0)
    for path in files_of(step):
        whole = path.read_bytes()
        bits = rng.choice(8 * len(whole), size=min(15, 8 * len(whole)), replace=False)
        for bit in bits if whole else ():
            flip(path, bit)
            assert damage(step), f"bit {bit} of {path}"
            path.write_bytes(whole)
        for length in {0, len(whole) // 2, len(whole) - 1} - {len(whole), -1}:
            path.write_bytes(whole[:length])
            assert damage(step), f"{path} cut to {length} bytes"
            path.write_bytes(whole)
        path.unlink()
        assert damage(step), f"{path} removed"
        path.write_bytes(whole)
    assert damage(step) == ""


@pytest.mark.parametrize("what", ["flip", "cut", "delete", "empty record"])
def test_an_older_checkpoint_replaces_a_damaged_one(folder, finished, what):
    step = folder / "checkpoints" / str(LAST)
    data = max(files_of(step / "state"), key=lambda path: path.stat().st_size)
    if what == "flip":
        flip(data, 99)
    elif what == "cut":
        data.write_bytes(data.read_bytes()[:-1])
    elif what == "delete":
        shutil.rmtree(step / "state")
    else:
        (step / "record.json").write_text("")
    with pytest.warns(
        RecoveryWarning, match=rf"checkpoint .*/{LAST} is damaged .*moved to .*damaged"
    ):
        again = small_runs.run(folder)
    assert again.history.round[0].tolist() == [LAST]  # only the last segment is repeated
    assert small_runs.run_bits(again, folder) == finished[1]
    assert (folder / "damaged" / str(LAST)).is_dir()


def test_the_folder_to_delete_is_named_if_no_checkpoint_is_left(folder):
    for step in (folder / "checkpoints").iterdir():
        flip(step / "state" / "manifest.ocdbt", 40)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=rf"no checkpoint in .* is intact .* delete {folder} to"):
        small_runs.run(folder)
    assert sorted(folder.rglob("*")) == before


def test_an_unfinished_checkpoint_does_not_count(folder, finished):
    """A kill between Orbax's last file and the record."""
    (folder / "checkpoints" / str(LAST) / "record.json").unlink()
    (folder / "checkpoints" / "9.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    again = small_runs.run(folder)
    assert small_runs.run_bits(again, folder) == finished[1]
    assert not (folder / "damaged").exists()
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"7", "8"}


def test_an_edited_history_is_refused_with_its_line(folder):
    path = folder / "history.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace(",w/0,", ",w/1,") if ",w/0," in lines[6] else "0,2,norm,0.5\n"
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"history\.csv, line 7: .* was changed"):
        small_runs.run(folder)
    assert newest(folder / "checkpoints") is not None


@pytest.mark.parametrize("rounds", [LAST, 4])
def test_a_checkpoint_of_another_run_is_refused_with_both(folder, tmp_path, rounds):
    """Its files are intact, and its model would continue this run."""
    small_runs.run(
        tmp_path / "other", eval_initial=True,
        callbacks=[lambda event: "interrupt" if event.round >= rounds else None],
    )  # fmt: skip
    other = max((tmp_path / "other" / "checkpoints").iterdir(), key=lambda path: int(path.name))
    step = folder / "checkpoints" / other.name
    shutil.rmtree(step, ignore_errors=True)
    shutil.copytree(other, step)
    message = (
        rf"{step} is a checkpoint of another run than {folder}/run\.json: eval_initial is True "
        "there, False here; move it elsewhere"
    )
    with pytest.raises(FolderError, match=message):
        small_runs.run(folder)
    assert step.is_dir()


def test_a_checkpoint_of_the_beginning_of_a_run_is_its_own(tmp_path):
    """A kill after a longer run has claimed the folder leaves the checkpoints of the shorter."""
    longer = dataclasses.replace(small_runs._SETUP)
    shorter = dataclasses.replace(longer, timeline=longer.timeline[:4])
    options = {"folder": tmp_path / "run", "checkpoint_seconds": 0, "segment_seconds": 1e-9}
    fs.simulate(small_runs._ALGORITHM, shorter, small_runs._KEYS, **records(**options))
    result = small_runs.run(tmp_path / "run")
    alone = small_runs.run(tmp_path / "alone")
    assert small_runs.run_bits(result, tmp_path / "run") == small_runs.run_bits(
        alone, tmp_path / "alone"
    )
    run = RunFolder(tmp_path / "run")
    assert list(run.rows()) == list(RunFolder(tmp_path / "alone").rows())


def test_errors_of_the_disk_are_damage_and_others_are_not(folder, monkeypatch):
    step = folder / "checkpoints" / str(LAST)

    def failing(number):
        def digest(path):
            raise OSError(number, "the disk's words", str(path))

        return digest

    monkeypatch.setattr(checkpoints, "file_digest", failing(5))  # EIO
    assert "cannot be read" in damage(step)
    monkeypatch.setattr(checkpoints, "file_digest", failing(13))  # EACCES
    with pytest.raises(PermissionError):
        damage(step)
