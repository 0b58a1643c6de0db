import gzip
import struct

import numpy as np
import pytest
from idx_files import CODES
from idx_files import encode_idx as encode

from fedjax_sim.datasets import DataError, mnist
from fedjax_sim.datasets.mnist import parse_idx, read_idx


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 0), (2, 3, 4)])
def test_reads_what_is_encoded(code, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(CODES[code]) * 7
    parsed = parse_idx(encode(array, code))
    assert parsed.dtype == array.dtype
    assert parsed.dtype.isnative
    np.testing.assert_array_equal(parsed, array)


GOOD = encode(np.arange(6, dtype=np.uint8).reshape(2, 3), 0x08)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "nothing"),
        (GOOD[:3], "magic"),
        (b"\1" + GOOD[1:], "magic"),
        (GOOD[:2] + b"\x0a" + GOOD[3:], "TYPE"),
        (GOOD[:3] + b"\0", "rank 0"),
        (GOOD[:10], "rank 2 in 10 bytes"),
        (GOOD[:-1], "17 bytes; expected 18"),
        (GOOD + b"\0", "19 bytes; expected 18"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "expected"),
        (encode(np.array([1.0, np.nan]), 0x0E), "not finite"),
        (encode(np.array([1.0, np.inf]), 0x0D), "not finite"),
    ],
)
def test_refuses(data, message):
    with pytest.raises(DataError, match=f"^some/file: .*{message}"):
        parse_idx(data, "some/file")


def test_no_more_is_read_than_the_header_announces(tmp_path, monkeypatch):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(GOOD))
    np.testing.assert_array_equal(read_idx(path), np.arange(6).reshape(2, 3))
    blocks = iter([GOOD, bytes(1 << 16), bytes(1 << 16)])
    monkeypatch.setattr(mnist, "stream", lambda path: blocks)
    with pytest.raises(DataError, match=r"more bytes than 18; expected as many for shape \[2, 3\]"):
        read_idx(path)
    assert len(list(blocks)) == 1  # not read
