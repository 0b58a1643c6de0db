import bz2
import gzip
import io
import lzma
import tarfile

import pytest

from fedjax_sim.datasets import DataError
from fedjax_sim.datasets.formats import files
from fedjax_sim.datasets.formats.files import parse_tar, read_bytes, read_tree

CONTENT = bytes(range(256)) * 1000
COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".txt": bytes}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(("block", "piece"), [(7, 1 << 20), (1 << 16, 1000), (1 << 16, 256_000)])
def test_contents(tmp_path, monkeypatch, suffix, block, piece):
    monkeypatch.setattr(files, "_BLOCK", block)
    monkeypatch.setattr(files, "_PIECE", piece)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT))
    assert read_bytes(path) == CONTENT


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_several_compressed_streams_in_a_row(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](CONTENT) + COMPRESS[suffix](b"more"))
    assert read_bytes(path) == CONTENT + b"more"


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_refuses_damaged_compression(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    good = COMPRESS[suffix](CONTENT)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for data in (b"", good[:-1], good[: len(good) // 2], good + b"garbage", bytes(flipped)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=str(path)):
            read_bytes(path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_decompression_is_bounded(tmp_path, monkeypatch, suffix):
    """A file of some kB that becomes 8 MB is read in small pieces, and refused in time."""
    path = tmp_path / f"file{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(1 << 23)))
    assert max(map(len, files.stream(path))) <= 1 << 20
    monkeypatch.setattr(files, "_ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(files, "_LARGEST_RATIO", 100)
    limit = max(1 << 20, 100 * path.stat().st_size)
    sizes = []
    with pytest.raises(DataError, match=f"{path}: becomes more than {limit} bytes; expected at"):
        sizes.extend(map(len, files.stream(path)))
    assert sum(sizes) <= limit


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        read_bytes(tmp_path / "nowhere")


def tar(names, format=tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for i, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 600 * i
            archive.addfile(info, io.BytesIO(bytes([i]) * info.size))
    return buffer.getvalue()


NAMES = ["b/two.txt", "a/one.txt", "c/skip.bin", "z" * 150 + ".txt"]


def is_text(name):
    return name.endswith(".txt")


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_tar(format):
    found = parse_tar(tar(NAMES, format), "file", is_text)
    assert list(found) == ["a/one.txt", "b/two.txt", NAMES[3]]
    assert found["a/one.txt"] == b"\1" * 600
    assert found[NAMES[3]] == b"\3" * 1800


def test_a_folder_and_its_archive_have_the_same_files(tmp_path):
    for name in NAMES:
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "folder", "")
    of_folder = read_tree(tmp_path / "folder", is_text)
    of_archive = read_tree(tmp_path / "archive.tar.gz", is_text)
    assert (
        of_folder == of_archive == {name: name.encode() for name in sorted(NAMES[:2] + NAMES[3:])}
    )


def test_a_link_out_of_the_archive_is_not_followed():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(info)
    assert parse_tar(buffer.getvalue(), "file", is_text) == {}


GOOD = tar(NAMES)
SECOND_HEADER = 512  # the first member is empty


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:100],
        GOOD[:SECOND_HEADER],
        GOOD[: SECOND_HEADER + 512 + 300],
        GOOD[:SECOND_HEADER] + b"\xff" * 512 + GOOD[SECOND_HEADER + 512 :],
        GOOD + b"x",
        tar(["a.txt", "a.txt"]),
    ],
)
def test_refuses_damaged_tar(data):
    with pytest.raises(DataError, match=r"^file: "):
        parse_tar(data, "file", is_text)
