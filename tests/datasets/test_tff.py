"""Files of TensorFlow Federated: SQLite with tf.train.Example, HDF5 with a group per client.

The messages are encoded here by the rules of protocol buffers, packed and field by field, since
writers may do either.
"""

import sqlite3
import struct

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.datasets import DataError, read_tff
from fedjax_sim.datasets.shakespeare_tff import from_snippets
from fedjax_sim.datasets.tff import parse_example


def varint(value):
    value &= 2**64 - 1
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, packed=True):
    """BytesList is field 1 of Feature, FloatList field 2, Int64List field 3."""
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if values and isinstance(values[0], float):
        pieces = [struct.pack("<f", value) for value in values]
        each = b"".join(varint(1 << 3 | 5) + piece for piece in pieces)
        return field(2, field(1, b"".join(pieces)) if packed else each)
    pieces = [varint(value) for value in values]
    each = b"".join(varint(1 << 3) + piece for piece in pieces)
    return field(3, field(1, b"".join(pieces)) if packed else each)


def message(packed=True, **features):
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(values, packed)))
        for name, values in features.items()
    )
    return field(1, b"".join(entries))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5),
    st.lists(st.binary(max_size=5), min_size=1, max_size=3),
    st.booleans(),
)
def test_messages(integers, floats, texts, packed):
    read = parse_example(message(packed, label=integers, pixels=floats, snippets=texts))
    assert (read["label"].dtype, read["label"].tolist()) == (np.int64, integers)
    assert (read["pixels"].dtype, read["pixels"].tolist()) == (np.float32, floats)
    assert read["snippets"] == texts


WHOLE = message(label=[300, 7], pixels=[0.5, 1.0], snippets=[b"to be"])


def database(path, rows):
    """The tables of tff.simulation.datasets' SqlClientData."""
    with sqlite3.connect(path) as file:
        file.execute(
            "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
        )
        file.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num INTEGER)")
        file.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    file.close()
    return path


STREAM = np.random.default_rng(0)
IMAGES = STREAM.integers(0, 256, (5, 784)).astype(np.float32) / 255
EMNIST = [  # split, client, image, label
    ("train", "f0_1", 0, 3), ("test", "f0_1", 1, 5), ("train", "f9", 2, 5), ("test", "f9", 3, 3),
    ("train", "f0_1", 4, 5),
]  # fmt: skip


def check_emnist(data):
    assert (data.name, data.group_names, data.class_names) == ("emnist", ("f0_1", "f9"), ("3", "5"))
    assert data.train["x"].dtype == np.float32
    np.testing.assert_array_equal(data.train["x"].reshape(3, 784), IMAGES[[0, 4, 2]])
    assert data.train["x"].shape == (3, 28, 28, 1)
    np.testing.assert_array_equal(data.test["x"].reshape(2, 784), IMAGES[[1, 3]])
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == ([0, 1, 1], [1, 0])
    assert (data.train_groups.tolist(), data.test_groups.tolist()) == ([0, 0, 1], [0, 1])


def test_emnist(tmp_path):
    rows = [(s, c, message(pixels=IMAGES[i].tolist(), label=[y])) for s, c, i, y in EMNIST]
    check_emnist(read_tff(database(tmp_path / "emnist.sqlite", rows)))


def test_emnist_in_hdf5(tmp_path):
    for part in ("train", "test"):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            for client in ("f0_1", "f9"):
                own = [(i, y) for split, c, i, y in EMNIST if (split, c) == (part, client)]
                group = file.create_group(f"examples/{client}")
                group["pixels"] = np.stack([IMAGES[i].reshape(28, 28) for i, _ in own])
                group["label"] = np.array([y for _, y in own], np.int32)
    check_emnist(read_tff(tmp_path / "train.h5", tmp_path / "test.h5", name="emnist"))


def test_features_of_other_lengths_in_hdf5(tmp_path):
    """Before, the examples beyond the shortest feature were left out silently."""
    for part, labels in (("train", [3, 5]), ("test", [3])):
        with h5py.File(tmp_path / f"{part}.h5", "w") as file:
            file["examples/f9/pixels"] = IMAGES[:2].reshape(2, 28, 28)
            file["examples/f9/label"] = np.array(labels, np.int32)
    with pytest.raises(DataError, match=r"test.h5: f9: lengths are .*'label': 1, 'pixels': 2"):
        read_tff(tmp_path / "train.h5", tmp_path / "test.h5")


def test_cifar_100(tmp_path):
    images = STREAM.integers(0, 256, (4, 32, 32, 3))
    rows = [
        (split, "c", message(image=image.ravel().tolist(), label=[y], coarse_label=[0]))
        for split, image, y in zip(
            ["train", "train", "test", "test"], images, [7, 9] * 2, strict=True
        )
    ]
    data = read_tff(database(tmp_path / "cifar.sqlite", rows))
    assert data.train["x"].dtype == np.uint8
    np.testing.assert_array_equal(data.train["x"], images[:2])
    assert data.class_names == ("7", "9")


def test_shakespeare(tmp_path):
    texts = {"train": {"KING": ["to be", "or not"], "NURSE": ["d"]}, "test": {"KING": ["dh"]}}
    rows = [
        (part, role, message(snippets=[text.encode()]))
        for part, roles in texts.items()
        for role, snippets in roles.items()
        for text in snippets
    ]
    data = read_tff(database(tmp_path / "shakespeare.sqlite", rows))
    wanted = from_snippets(texts["train"], texts["test"])
    assert data.group_names == wanted.group_names
    for part in ("train", "test"):
        for key in "xy":
            np.testing.assert_array_equal(getattr(data, part)[key], getattr(wanted, part)[key])


def test_other_files_are_refused(tmp_path):
    one = message(pixels=[0.5] * 784, label=[1])
    (tmp_path / "b.sqlite").write_bytes(b"\xfd7zXZ" * 100)  # as downloaded
    (tmp_path / "c.h5").write_bytes(b"")
    rows = [("train", "x", one), ("test", "x", one)]
    schema = database(tmp_path / "h.sqlite", rows).read_bytes()
    schema = schema.replace(b"client_metadata", b"client_\xeeetadata")
    (tmp_path / "i.sqlite").write_bytes(schema.replace(b"CREATE TABLE c", b"CREATE TABLF c"))
    cases = [
        ((tmp_path / "none.sqlite",), "none.sqlite does not exist"),
        ((tmp_path / "b.sqlite",), r"not a database; .*decompressed \(unlzma\)"),
        ((tmp_path / "i.sqlite",), "i.sqlite cannot be read"),
        ((tmp_path / "c.h5",), "test is None; expected the .h5 file of the test part"),
        ((database(tmp_path / "d.sqlite", rows[:1]),), "has no split test; expected both"),
        (
            (database(tmp_path / "e.sqlite", [*rows, ("train", "y", b"\x0a\x05")]),),
            "e.sqlite: y: .*expected the message tf.train.Example",
        ),
        (
            (database(tmp_path / "f.sqlite", [(s, c, message(a=[1], b=[1])) for s, c, _ in rows]),),
            "has the features a, b; expected snippets, or label and one",
        ),
        (
            (database(tmp_path / "g.sqlite", [*rows, ("train", "y", message(label=[1]))]),),
            "train: pixels or label is missing or has another shape",
        ),
        ((tmp_path / "d.sqlite", tmp_path / "d.sqlite"), "test is .*d.sqlite'; expected None"),
    ]
    for arguments, text in cases:
        with pytest.raises(DataError, match=text):
            read_tff(*arguments)
