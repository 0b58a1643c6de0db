"""Files of histories: what a kill leaves, and changes that must not go unnoticed."""

import pytest

from fedjax_sim.runs.storage.history_file import HistoryFile, Mark, read, verify

ROWS = [("0", 1, "loss", "0.5"), ("0", 1, "error", "nan"), ("1", 1, "loss", "1e-07")]


@pytest.fixture
def file(tmp_path):
    file = HistoryFile(tmp_path / "history.csv")
    file.create()
    file.append(ROWS)
    return file


def test_resuming_removes_later_rows_and_goes_on(file):
    mark, whole = file.mark(), file.path.read_bytes()
    file.append([("0", 2, "loss", "0.25")])
    with file.path.open("ab") as end:
        end.write(b"0,3,lo")  # torn by a kill
    later = HistoryFile(file.path)
    later.resume(mark)
    assert file.path.read_bytes() == whole
    later.append([("0", 2, "loss", "0.25")])
    later.append([("0", 3, "loss", "0.125")])
    verify(file.path, later.mark())
    assert [row[3] for row in read(file.path)][3:] == [0.25, 0.125]


@pytest.mark.parametrize("line", [1, 2, 3, 4])
@pytest.mark.parametrize("change", ["flip", "insert", "delete"])
def test_a_change_is_found_with_its_line(file, line, change):
    mark = file.mark()
    lines = file.path.read_bytes().splitlines(keepends=True)
    if change == "flip":
        lines[line - 1] = lines[line - 1][:-2] + bytes([lines[line - 1][-2] ^ 1]) + b"\n"
    elif change == "insert":
        lines.insert(line - 1, b"0,9,loss,7\n")
    else:
        del lines[line - 1]
    lines.append(b"0,2,loss,0.25\n" * 2)  # rows that a kill left may follow
    file.path.write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match=rf"history\.csv, line {line}: .* was changed after"):
        HistoryFile(file.path).resume(mark)


def test_a_change_is_found_without_checksums_of_lines(file):
    mark = file.mark()
    file.path.write_bytes(file.path.read_bytes().replace(b"0.5", b"0.6"))
    file.path.with_suffix(".crc").unlink()
    with pytest.raises(ValueError, match="differs from the digest in its checkpoint"):
        verify(file.path, mark)


def test_a_shorter_or_missing_history_is_refused(file):
    for _ in range(2):
        with pytest.raises(ValueError, match="expected at least the 999 that its checkpoint"):
            verify(file.path, Mark(999, None))
        file.path.unlink(missing_ok=True)


def test_checksums_of_lines_are_made_again(file):
    """For histories of earlier versions, and after a kill between the two files."""
    checksums = file.path.with_suffix(".crc")
    expected = checksums.read_bytes()
    mark = file.mark()
    for content in (None, b"", expected + b"1234"):
        checksums.unlink()
        if content is not None:
            checksums.write_bytes(content)
        HistoryFile(file.path).resume(mark)
        assert checksums.read_bytes() == expected


@pytest.mark.parametrize(
    "line", [b"0,1,loss", b"0,one,loss,1", b"0,1,loss,low", b"0,1,loss,1,2", b'"', b"\xff,1,a,1"]
)
def test_lines_that_are_no_rows_are_named(file, line):
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + line)
    assert len(list(read(file.path))) == 3  # torn
    file.path.write_bytes(whole + line + b"\n")
    with pytest.raises(ValueError, match=r"history\.csv, line 5: .*; expected replica,round"):
        list(read(file.path))
    file.path.write_bytes(line + b"\n" + whole)
    with pytest.raises(ValueError, match=r"history\.csv, line 1: "):
        list(read(file.path))
