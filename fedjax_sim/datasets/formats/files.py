"""Bytes of files, folders and tar archives, with decompression that detects damage."""

import bz2
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedjax_sim.datasets.dataset import DataError

_BLOCK = 1 << 16  # bytes read at a time
_PIECE = 1 << 20  # bytes that one step of decompression may produce
# Contents may be this many times as large as the compressed file; data sets stay below 100, while
# 785 bytes of bz2 can become 2 GB.
_LARGEST_RATIO, _ALWAYS_ALLOWED = 1000, 1 << 26
_GZIP = 16 + zlib.MAX_WBITS
_DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(_GZIP),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}


def stream(path: Path) -> Iterator[bytes]:
    """Yields the contents of a file in blocks; ``.gz``, ``.bz2`` and ``.xz`` are decompressed."""
    make_decoder = _DECODERS.get(path.suffix)
    try:
        with path.open("rb") as file:
            blocks = iter(lambda: file.read(_BLOCK), b"")
            if make_decoder is None:
                yield from blocks
                return
            decoder = make_decoder()
            size, limit = 0, max(_ALWAYS_ALLOWED, _LARGEST_RATIO * path.stat().st_size)
            for block in blocks:
                while block:
                    if decoder.eof:  # a file may be several compressed streams in a row
                        decoder = make_decoder()
                    for piece in _decompressed(decoder, block):
                        size += len(piece)
                        if size > limit:
                            raise DataError(
                                f"{path}: becomes more than {limit} bytes; expected at most "
                                f"{_LARGEST_RATIO} times the size of the file"
                            )
                        yield piece
                    block = decoder.unused_data if decoder.eof else b""
            if not decoder.eof:
                raise DataError(f"{path}: ends early; expected complete {path.suffix} data")
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        kind = path.suffix if make_decoder else "a"
        raise DataError(f"{path}: {error}; expected {kind} file that can be read") from error


def _decompressed(decoder: Any, block: bytes) -> Iterator[bytes]:
    """Yields the contents of a block in pieces of bounded size."""
    piece = decoder.decompress(block, _PIECE)
    yield piece
    while len(piece) == _PIECE and not decoder.eof:
        # zlib returns the bytes that it did not process; bz2 and lzma keep them.
        piece = decoder.decompress(getattr(decoder, "unconsumed_tail", b""), _PIECE)
        yield piece


def read_bytes(path: Path) -> bytes:
    """Returns the whole contents of a file, decompressed as by :func:`stream`."""
    return b"".join(stream(path))


def read_tree(path: Path, want: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the wanted files of a folder or a tar archive by their relative names, in order."""
    if path.is_dir():
        names = {file.relative_to(path).as_posix(): file for file in path.rglob("*")}
        return {
            name: read_bytes(file)
            for name, file in sorted(names.items())
            if file.is_file() and want(name)
        }
    return parse_tar(read_bytes(path), path, want)


def parse_tar(data: bytes, where: object, want: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the wanted files of a tar archive, in order of names; see :func:`read_tree`."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            members = archive.getmembers()
    except Exception as error:  # malformed headers make tarfile raise other errors than TarError
        raise DataError(f"{where}: {error}; expected a tar archive") from error
    end = 0
    files: dict[str, bytes] = {}
    for member in members:
        size = member.size if member.isreg() else 0
        end = max(end, member.offset_data + -(-size // 512) * 512)
        if not (member.isreg() and want(member.name)):
            continue
        if member.issparse() or member.name in files:
            raise DataError(f"{where}: {member.name} is sparse or occurs twice; expected one file")
        files[member.name] = data[member.offset_data : member.offset_data + size]
    # tarfile treats a damaged header as the end of the archive: only zeros may follow.
    if len(data) < end + 512 or data[end:].strip(b"\0"):
        raise DataError(
            f"{where}: cut short or damaged at byte {end}; expected the end of the archive"
        )
    return dict(sorted(files.items()))


def find_one(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Returns the first file of a folder that matches one of the names (glob patterns), or None."""
    for name in names:
        for path in sorted(folder.glob(name)):
            if path.is_file():
                return path
    return None


def require(path: Path | None, folder: Path, names: tuple[str, ...]) -> Path:
    """Returns ``path``; raises a DataError that names the missing file if it is None."""
    if path is None:
        raise DataError(f"{folder}: {names[0]} is missing; expected one of {', '.join(names)}")
    return path
