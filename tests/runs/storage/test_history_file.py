"""Files that grow: what kills leave, readers meanwhile, and changes that must not go unnoticed."""

import itertools

import pytest

from fedjax_sim.runs.storage import history_file
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.runs.storage.history_file import HistoryFile, Mark, parsed, read

ROWS = [("0", 1, "loss", "0.5"), ("0", 1, "error", "nan"), ("1", 1, "loss", "1e-07")]
RUN = "ab"


@pytest.fixture
def file(tmp_path):
    file = HistoryFile(tmp_path / "history.csv", RUN)
    file.create()
    file.append(ROWS)
    return file


def digests(file):
    return file.path.with_suffix(".digests")


def values(file, **options):
    return [row[3] for row in parsed(read(file.path, RUN, **options))]


def test_resuming_removes_later_rows_and_goes_on(file):
    mark, whole = file.mark(), file.path.read_bytes()
    file.append([("0", 2, "loss", "0.25")])
    with file.path.open("ab") as end:
        end.write(b"0,3,lo")  # torn by a kill
    later = HistoryFile(file.path, RUN)
    assert later.resume(mark) == whole == file.path.read_bytes()
    assert values(file) == ["0.5", "nan", "1e-07"]
    later.append([("0", 2, "loss", "0.25")])
    later.append([("0", 3, "loss", "0.125")])
    assert values(file, confirmed=later.mark())[3:] == ["0.25", "0.125"]


def test_resuming_a_whole_file_writes_nothing(file):
    """It may be on a disk that can only be read."""
    mark, known = file.mark(), digests(file).read_bytes()
    times = [path.stat().st_mtime_ns for path in (file.path, digests(file))]
    HistoryFile(file.path, RUN).resume(mark)
    assert digests(file).read_bytes() == known
    assert [path.stat().st_mtime_ns for path in (file.path, digests(file))] == times


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("line", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("change", ["flip", "insert", "delete"])
def test_a_change_is_found_with_its_line(file, line, change, confirmed):
    """Also in rows that no checkpoint has confirmed."""
    file.append([("1", 2, "loss", "0.25"), ("1", 2, "error", "0.75")])
    lines = file.path.read_bytes().splitlines(keepends=True)
    if change == "flip":
        lines[line - 1] = lines[line - 1][:-2] + bytes([lines[line - 1][-2] ^ 1]) + b"\n"
    elif change == "insert":
        lines.insert(line - 1, b"0,9,loss,7\n")
    else:
        del lines[line - 1]
    mark = file.mark()
    file.path.write_bytes(b"".join([*lines, b"0,3,loss,9\n" * 2])[: mark.length])
    problem = rf"history\.csv, line {line}: .* was changed after"
    if change == "delete" and line == 6:
        problem = r"history\.csv"  # cut, as by a kill
    if change == "delete" and line == 6:
        file.path.write_bytes(b"".join(lines) + b"1,2,error,0.76\n")
    with pytest.raises(FolderError, match=problem):
        HistoryFile(file.path, RUN).resume(mark) if confirmed else read(file.path, RUN)


def test_a_change_is_found_without_checksums_of_lines(file):
    mark = file.mark()
    file.path.write_bytes(file.path.read_bytes().replace(b"0.5", b"0.6"))
    digests(file).unlink()
    with pytest.raises(FolderError, match=r"history\.csv differs from its recorded digest"):
        HistoryFile(file.path, RUN).resume(mark)
    with pytest.raises(FolderError, match=r"history\.digests is missing, without which .*again"):
        read(file.path, RUN)


def test_a_shorter_or_missing_history_is_refused(file):
    for _ in range(2):
        with pytest.raises(FolderError, match="expected at least the 999 that were recorded"):
            HistoryFile(file.path, RUN).resume(Mark(999, "ab"))
        with pytest.raises(FolderError, match="expected at least the 999 that were recorded"):
            read(file.path, RUN, Mark(999, "ab"))
        file.path.unlink(missing_ok=True)
        digests(file).unlink(missing_ok=True)
    assert read(file.path, RUN) == b""  # a run that has just begun


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "changed"])
def test_digests_are_made_again(file, damage):
    """The checkpoint's digest is enough for that."""
    mark, known = file.mark(), digests(file).read_bytes()
    content = {"empty": b"", "torn": known + b'{"sha', "changed": known.replace(b"a", b"b")}
    digests(file).unlink()
    if damage != "missing":
        digests(file).write_bytes(content[damage])
    HistoryFile(file.path, RUN).resume(mark)
    assert len(values(file, confirmed=mark)) == 3


@pytest.mark.slow
def test_every_flipped_bit_of_the_digests_is_refused_or_harmless(file):
    """A torn line, before its rows were written, is what a kill leaves."""
    file.append([("1", 2, "loss", "0.25")])
    whole, known = file.path.read_bytes(), digests(file).read_bytes()
    start = known.index(b"\n") + 1  # lines before the last two are needed to name lines only
    for bit in range(8 * start, 8 * len(known)):
        data = bytearray(known)
        data[bit // 8] ^= 1 << bit % 8
        digests(file).write_bytes(data)
        with pytest.raises(FolderError, match="history"):
            read(file.path, RUN)
    digests(file).write_bytes(known)
    assert read(file.path, RUN) == whole


def test_rows_of_another_run_are_refused(file):
    with pytest.raises(FolderError, match=r"history\.csv is of run ab; expected one of run cd"):
        read(file.path, "cd")


def test_rows_that_someone_adds_are_refused(file):
    with file.path.open("a") as end:
        end.write("0,9,loss,7\n")
    with pytest.raises(FolderError, match=r"has \d+ bytes; expected the \d+ of its digests: make"):
        read(file.path, RUN)


def test_readers_meanwhile_see_whole_writes(file, monkeypatch):
    """Between any two steps of writing and removing rows, which a kill may leave, too."""
    mark = file.mark()
    before, known = file.path.read_bytes(), digests(file).read_bytes()
    file.append([("1", 2, "loss", "0.25"), ("1", 2, "error", "0.75")])
    after, both = file.path.read_bytes(), digests(file).read_bytes()
    lines = [known + both[len(known) :][:length] for length in (0, 1, 50)] + [both]
    rows = [after[:length] for length in (len(before), len(before) + 1, len(after) - 1)]
    for line, row in itertools.product(lines, rows):
        if line != both and row != before:
            continue  # rows follow their digests
        digests(file).write_bytes(line)
        file.path.write_bytes(row)
        assert read(file.path, RUN) == before
    file.path.write_bytes(after)
    digests(file).write_bytes(both)
    monkeypatch.setattr(history_file.os, "truncate", lambda *_: None)  # a kill before it
    HistoryFile(file.path, RUN).resume(mark)
    assert file.path.read_bytes() == after
    assert read(file.path, RUN, mark) == before


def test_a_reader_waits_for_digests_and_rows_of_one_moment(file, monkeypatch):
    """Rows that are written between its two looks at the digests count or not, as a whole."""
    looks = []
    written = history_file._written

    def look(path):
        looks.append(path)
        if len(looks) == 2:
            file.append([("1", 2, "loss", "0.25")])
            file.append([("1", 3, "loss", "0.125")])
        return written(path)

    monkeypatch.setattr(history_file, "_written", look)
    assert values(file)[3:] == ["0.25", "0.125"]
