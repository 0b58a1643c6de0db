"""Full and read-only disks: one error with the path, and everything up to then is kept."""

import os
import pathlib
import sys

import pytest
import small_runs
from full_disk import full_disk

from fedjax_sim.runs.storage.checkpoints import one_error

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of Unix")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return small_runs.run_bits(small_runs.run(folder), folder)


# The history, the identity and the files of a checkpoint have other sizes.
@pytest.mark.parametrize(
    "most_bytes",
    [10, *(pytest.param(n, marks=pytest.mark.slow) for n in (150, 300, 450, 600, 900)), 1200],
)
def test_a_full_disk_is_one_error_and_nothing_is_lost(tmp_path, whole, capfd, most_bytes):
    folder = tmp_path / "run"
    with full_disk(most_bytes), pytest.raises(OSError, match="File too large: '/") as caught:
        small_runs.run(folder)
    assert str(folder) in str(caught.value.filename)
    printed = capfd.readouterr()
    assert printed.err == ""
    assert small_runs.run_bits(small_runs.run(folder), folder) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("RESOURCE_EXHAUSTED: Failed to write 5 bytes [os_error_code='28']", 28),
        ("Failed to write 5 bytes to file 7: No space left on device", 28),
        ("PERMISSION_DENIED: Read-only file system", 30),
    ],
)
def test_errors_of_tensorstore_become_those_of_the_system(text, number):
    folder = pathlib.Path("results")
    with pytest.raises(OSError, match=os.strerror(number)) as caught, one_error(folder):
        raise ValueError(text)
    assert (caught.value.errno, caught.value.filename) == (number, "results")


@pytest.mark.slow
def test_other_errors_stay_what_they_are():
    with pytest.raises(ValueError, match="shape"), one_error(pathlib.Path("results")):
        raise ValueError("shape")


def test_a_file_where_the_folder_belongs(tmp_path):
    path = tmp_path / "results"
    path.write_text("in the way")
    with pytest.raises(ValueError, match=f"directory is '{path}', which is a file; expected a fol"):
        small_runs.run(path)


def test_a_dangling_link_names_the_folder_to_create(tmp_path, whole):
    path = tmp_path / "results"
    path.symlink_to(tmp_path / "elsewhere" / "results")
    assert small_runs.run_bits(small_runs.run(path), tmp_path / "elsewhere" / "results") == whole
    assert path.is_symlink()
