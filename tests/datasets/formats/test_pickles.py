import os
import pickle
import struct
import subprocess

import numpy as np
import pytest

from fedjax_sim.datasets import DataError
from fedjax_sim.datasets.formats.pickles import parse_pickle

ARRAYS = [
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    np.arange(6, dtype=">i4").reshape(3, 2),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 4), np.float32),
]


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_arrays_and_containers_round_trip(array, protocol):
    content = {"data": array, "labels": [1, 2], "name": "batch", b"raw": (b"\xff", 1.5, None, True)}
    parsed = parse_pickle(pickle.dumps(content, protocol))
    np.testing.assert_array_equal(parsed["data"], array)
    assert parsed["data"].dtype == array.dtype.newbyteorder("=")
    assert parsed["labels"] == [1, 2]
    assert parsed["name"] == "batch"
    assert parsed["raw"] == (b"\xff", 1.5, None, True)


def test_python_2_strings_are_bytes_and_keys_text():
    # What Python 2 writes: SHORT_BINSTRING for str, numpy.core for the module of arrays.
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x02K\x02\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04\x01\x02\x03\x04tb"
    )
    parsed = parse_pickle(b"\x80\x02}(U\x04data" + array + b"U\x05names](U\x01aeu.")
    np.testing.assert_array_equal(parsed["data"], [[1, 2], [3, 4]])
    assert parsed["names"] == [b"a"]


class Run:
    """Pickles into a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("nested", [False, True])
def test_a_call_is_refused_and_not_run(tmp_path, protocol, nested):
    mark = tmp_path / "ran"
    calls = [
        Run(os.system, f"touch {mark}"),
        Run(subprocess.check_output, ["touch", str(mark)]),
        Run(eval, f"open({str(mark)!r}, 'w').close()"),
        Run(exec, f"open({str(mark)!r}, 'w').close()"),
        Run(os.mkdir, str(mark)),
        Run(getattr, Run(__import__, "os"), "system"),
        Run(np.lib.npyio.NpzFile, str(mark)),
    ]
    for call in calls:
        data = pickle.dumps({"data": [call]} if nested else call, protocol)
        with pytest.raises(DataError, match=r"^batch: .*expected numbers, strings"):
            parse_pickle(data, "batch")
        assert not mark.exists()


def test_the_payload_of_the_test_above_works(tmp_path):
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Run(os.mkdir, str(mark))))
    assert mark.exists()


DTYPE = (
    b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps([1, 2]),
        pickle.dumps({1: 2}),
        pickle.dumps({"a": {1, 2}}),
        pickle.dumps({"a": np.array([[1], "x"], object)}),
        pickle.dumps({"a": np.array(["x"])}),
        pickle.dumps({"a": np.zeros(2, [("f", "i4")])}),
        pickle.dumps({"a": np.float64(1.0)}),
        pickle.dumps({"a": np.zeros(2)}, protocol=5),
        pickle.dumps({"a": 1}) + b"x",
        pickle.dumps({"a": 1})[:-1],
        pickle.dumps({"a": 1}) * 2,
        b"",
        b"\x80\x02}U\x01a" + EMPTY + b"s.",  # an array that never gets its contents
        b"\x80\x02}U\x01a" + DTYPE + b"s.",  # a type in an array's place
        b"\x80\x02}U\x01acnumpy\ndtype\ns.",  # a name in a value's place
        b"\x80\x02}U\x01a" + EMPTY + b"(K\x01K\x05\x85" + DTYPE + b"\x89U\x04\1\2\3\4tbs.",
        b"\x80\x02}U\x01a" + EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE + b"\x89U\0tbs.",
        # A few bytes that would have the unpickler reserve gigabytes.
        b"\x80\x02}r" + struct.pack("<I", 2**31) + b".",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        b"p" + b"9" * 30 + b"\n.",
    ],
)
def test_refuses(data):
    with pytest.raises(DataError, match=r"^batch: "):
        parse_pickle(data, "batch")


def test_one_file_cannot_alter_how_the_next_is_read():
    # BUILD sets attributes of the stand-in for dtype: the file's own copy of it, no other's.
    array = pickle.dumps({"a": np.arange(3, dtype=np.uint8)}, 2)
    with pytest.raises(DataError):
        parse_pickle(b"\x80\x02cnumpy\ndtype\nN}X\x0c\x00\x00\x00__setstate__Ns\x86b.")
    np.testing.assert_array_equal(parse_pickle(array)["a"], [0, 1, 2])
