"""Damaged files of all readers of bytes: refused, or read as what such a file may hold."""

import io
import json
import pickle
import re
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from damage import damaged
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.datasets import DataError
from fedjax_sim.datasets.cifar import CIFAR100, parse_batch, parse_binary
from fedjax_sim.datasets.formats.files import parse_tar
from fedjax_sim.datasets.formats.pickles import parse_pickle
from fedjax_sim.datasets.leaf import parse_leaf
from fedjax_sim.datasets.linear import parse_libsvm
from fedjax_sim.datasets.mnist import parse_idx
from fedjax_sim.datasets.tff import parse_example
from fedjax_sim.datasets.tiny_imagenet import parse_annotations, parse_wnids

CLASSES = ("n02124075", "n04067472", "n01443537")
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)


# A tf.train.Example: label 300, 7; pixels 0.5, 1; snippets "to be".
MESSAGE = bytes.fromhex(
    "0a410a100a056c6162656c12071a050a03ac02070a160a06706978656c73120c120a0a080000003f"
    "0000803f0a150a08736e69707065747312090a070a05746f206265"
)


class Reader(NamedTuple):
    files: list[bytes]
    parse: Callable[[bytes], Any]
    check: Callable[[Any, bytes], bool]  # of what is read, and of the damaged file


def is_cifar(part, data):
    size = len(part["x"])
    ranges = ((part["y"], 100), (part["coarse"], 20))
    whole = (part["x"].shape, part["x"].dtype) == ((size, 32, 32, 3), np.uint8)
    return whole and all(
        y.shape == (size,) and ((y >= 0) & (y < classes)).all() for y, classes in ranges
    )


def is_libsvm(read, data):
    x, y = read
    finite = x.shape == (data.count(b"\n"), 4) and np.isfinite(x).all()
    return finite and set(y.tolist()) <= {0, 1} and len(x) == len(y)


def is_leaf(users, data):
    return all(
        x.shape == (len(y), 28, 28, 1) and ((y >= 0) & (y < 62)).all() for x, y in users.values()
    )


def is_plain(parsed, data):
    plain = (np.ndarray, bytes, str, int, float, list, tuple, dict, type(None))
    return all(isinstance(key, str) and isinstance(parsed[key], plain) for key in parsed)


def are_classes(classes, data):
    distinct = len(set(classes)) == len(classes) > 0
    named = all(re.fullmatch(r"n[0-9]{8}", wnid) for wnid in classes)
    return distinct and named and parse_wnids("\n".join(classes).encode()) == classes


def are_annotations(read, data):
    names, labels = read
    distinct = len(set(names)) == len(names) == len(labels) > 0
    named = all(re.fullmatch(r"val_[0-9]+\.JPEG", name) for name in names)
    return distinct and named and set(labels) <= {0, 1, 2}


def archive():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for i, name in enumerate(("b/two.txt", "a/one.txt", "c/skip.bin")):
            info = tarfile.TarInfo(name)
            info.size = 600 * i
            tar.addfile(info, io.BytesIO(bytes([i]) * info.size))
    return stream.getvalue()


def leaf():
    images = (IMAGES[:, :784] / 255).tolist()
    data = {"users": ["bob"], "num_samples": [2], "user_data": {"bob": {"x": images, "y": [3, 61]}}}
    return json.dumps(data).encode()


def cifar():
    labels = {b"fine_labels": [7, 3], b"coarse_labels": [1, 2]}
    return pickle.dumps({b"data": IMAGES, **labels}, 2)


def pickles():
    one = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "names": ["a"]}
    return [pickle.dumps(one, protocol) for protocol in range(5)]


def boxed():
    """The array of a file of PFLlib, after its header of 128 bytes."""
    stream = io.BytesIO()
    np.savez(stream, data={"x": np.ones((2, 3), np.float32), "y": np.array([0, 1])})
    return zipfile.ZipFile(stream).read("data.npy")[128:]


READERS = {
    "cifar": lambda: Reader(
        [b"\1\7" + bytes(IMAGES[0]) + b"\2\3" + bytes(IMAGES[1])],
        lambda data: parse_binary(data, CIFAR100), is_cifar
    ),
    "cifar pickle": lambda: Reader(
        [cifar()], lambda data: parse_batch(data, CIFAR100), is_cifar
    ),
    # What is accepted is the whole of the bytes: header and values, nothing beside.
    "idx": lambda: Reader(
        [b"\0\0\x08\2" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6))], parse_idx,
        lambda array, data: array.nbytes + 4 + 4 * array.ndim == len(data)
    ),
    "libsvm": lambda: Reader(
        [b"-1 1:0.25 3:-2e-1 \n+1 2:1\n1\n-1.0 3:.5\n"], lambda data: parse_libsvm([data], 4),
        is_libsvm,
    ),
    "leaf": lambda: Reader(
        [leaf()], parse_leaf, is_leaf
    ),
    "pickle": lambda: Reader(pickles(), parse_pickle, is_plain),
    "boxed pickle": lambda: Reader(
        [boxed()], lambda data: parse_pickle(data, boxed=True), is_plain
    ),
    "tar": lambda: Reader(
        [archive()], lambda data: parse_tar(data, "file", lambda name: name.endswith(".txt")),
        lambda files, data: all(isinstance(contents, bytes) for contents in files.values()),
    ),
    "tf.train.Example": lambda: Reader(
        [MESSAGE], parse_example,
        lambda read, data: all(isinstance(x, list | np.ndarray) for x in read.values()),
    ),
    "class list": lambda: Reader(
        ["".join(f"{wnid}\n" for wnid in CLASSES).encode()], parse_wnids, are_classes
    ),
    "annotations": lambda: Reader(
        ["".join(f"val_{i}.JPEG\t{wnid}\t0\t1\t2\t3\n" for i, wnid in enumerate(CLASSES)).encode()],
        lambda data: parse_annotations(data, CLASSES), are_annotations,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(max_examples=150)
def test_damage_is_refused_or_harmless(name, data):
    reader = READERS[name]()
    file = data.draw(st.sampled_from(reader.files))
    # Damage to names and labels is rarer by chance than that to contents: strike them, too.
    ends = [damaged(file), damaged(file[:80]).map(lambda head: head + file[80:])]
    broken = data.draw(st.one_of(*ends, damaged(file[-60:]).map(lambda tail: file[:-60] + tail)))
    try:
        read = reader.parse(broken)
    except DataError:
        return
    assert reader.check(read, broken)
