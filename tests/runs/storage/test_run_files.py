"""Files that are complete and old, or complete and new."""

import os

import pytest

from fedjax_sim.runs.storage import files
from fedjax_sim.runs.storage.files import remove_partials, replacing, write_text


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def fail():
        with replacing(path) as partial:
            partial.write_text("new, but not")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_text(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert path.read_text() == "old"


def test_the_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_end(
    tmp_path, monkeypatch
):
    events = []
    sync, replace = files.sync, files.pathlib.Path.replace

    def synced(path):
        events.append("file" if path.is_file() else "folder")
        sync(path)

    def replaced(path, target):
        events.append("replace")
        return replace(path, target)

    monkeypatch.setattr(files, "sync", synced)
    monkeypatch.setattr(files.pathlib.Path, "replace", replaced)
    write_text(tmp_path / "a.json", "{}")
    assert events == ["file", "replace", "folder"]


def test_two_writers_do_not_share_a_partial_file(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"


def test_a_link_is_replaced_and_its_target_stays(tmp_path):
    """Else a folder of results with links would overwrite files elsewhere."""
    target = tmp_path / "mine.json"
    target.write_text("mine")
    for name in ("mine.json", "nothing.json"):  # dangling, too
        link = tmp_path / "a.json"
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / name)
        write_text(link, "{}")
        assert not link.is_symlink()
        assert link.read_text() == "{}"
    assert target.read_text() == "mine"
    assert not (tmp_path / "nothing.json").exists()


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    (tmp_path / "ordinary").write_text("")
    write_text(tmp_path / "a.json", "{}")
    modes = {(tmp_path / name).stat().st_mode for name in ("ordinary", "a.json")}
    assert len(modes) == 1


def test_what_kills_leave_is_removed(tmp_path):
    for name in (".a.json.0123456789ab.tmp", ".b.npz.0123456789ab.tmp", "a.json", ".other"):
        (tmp_path / name).touch()
    remove_partials(tmp_path, "a.json")
    remaining = {".b.npz.0123456789ab.tmp", "a.json", ".other"}
    assert {path.name for path in tmp_path.iterdir()} == remaining
    remove_partials(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", ".other"}
