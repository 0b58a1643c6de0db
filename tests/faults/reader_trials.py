"""Damaged inputs of all readers: a value, or one documented error."""

import bz2
import functools
import gzip
import io
import json
import lzma
import pathlib
import pickle
import tarfile
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import reference_vit
from faults import Outcome, Result, Trial, cut, flip, scramble

from fedjax_sim import models
from fedjax_sim.cli import config_file, report
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.datasets.cifar import CIFAR100, parse_batch, parse_binary
from fedjax_sim.datasets.formats.files import parse_tar, read_bytes
from fedjax_sim.datasets.formats.idx import read_idx
from fedjax_sim.datasets.formats.leaf import parse_leaf
from fedjax_sim.datasets.formats.libsvm import parse_libsvm
from fedjax_sim.datasets.formats.pickles import parse_pickle
from fedjax_sim.timelines import read_trace

_MOST_BYTES = 200_000_000  # of memory for an input of some thousand bytes


class Reader(NamedTuple):
    """A reader of files, with a good file."""

    name: str
    content: bytes
    read: Callable[[pathlib.Path], Any]


def _of_bytes(parse: Callable[[bytes], Any]) -> Callable[[pathlib.Path], Any]:
    return lambda path: parse(path.read_bytes())


def _tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("a.txt", "folder/b.txt"):
            info = tarfile.TarInfo(name)
            info.size = 700
            archive.addfile(info, io.BytesIO(bytes(700)))
    return stream.getvalue()


def _archive(tensors: dict[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **tensors)
    return stream.getvalue()


def readers() -> list[Reader]:
    """Returns all readers of the library."""
    from safetensors.numpy import save

    rng = np.random.default_rng(0)
    planes = rng.integers(0, 256, (2, 3072), dtype=np.uint8)
    labels = {b"fine_labels": [7, 3], b"coarse_labels": [1, 2]}
    users = {"bob": {"x": (rng.integers(0, 256, (1, 784)) / 255).tolist(), "y": [3]}}
    leaf = json.dumps({"users": ["bob"], "num_samples": [1], "user_data": users}).encode()
    compressed = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    network = models.vit((8, 8, 3), 3, patch_size=4, width=8, depth=1, heads=2, mlp_dim=8)
    params = network.init(jax.random.key(0))
    tensors = reference_vit.timm(params, 4)
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    load_vit = functools.partial(models.load_vit, params=params)
    run = {"config": config_file.to_json(RunConfig(algorithms=("fedavg",)))}
    run["algorithms"] = {"fedavg": {"lr": 0.1}}
    return [
        Reader("a.idx", b"\0\0\x08\2" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + bytes(6), read_idx),
        Reader(
            "a.libsvm",
            b"+1 1:0.5 3:2\n-1 2:1e-3\n" * 4,
            _of_bytes(lambda data: parse_libsvm([data], 4)),
        ),
        Reader("a.pickle", pickle.dumps({"data": planes, "labels": [1, 2]}, 2),
               _of_bytes(parse_pickle)),
        Reader("cifar.bin", b"".join(bytes([1, 7]) + bytes(x) for x in planes),
               _of_bytes(lambda data: parse_binary(data, CIFAR100))),
        Reader("cifar.pickle", pickle.dumps({b"data": planes, **labels}, 2),
               _of_bytes(lambda data: parse_batch(data, CIFAR100))),
        Reader("leaf.json", leaf, _of_bytes(parse_leaf)),
        Reader("a.tar", _tar(),
               _of_bytes(lambda data: parse_tar(data, "file", lambda name: True))),
        *(Reader(f"a.{suffix}", compress(bytes(5000) + rng.bytes(500)), read_bytes)
          for suffix, compress in compressed.items()),
        Reader("trace.csv", b"client,duration\n0,1.5\n1,4\n0,2.5\n",
               lambda path: read_trace(path, 2)),
        Reader("vit.npz", _archive(reference_vit.google(tensors, heads=2)), load_vit),
        Reader("vit.safetensors", save(contiguous), load_vit),
        Reader("config.json", json.dumps(run).encode(), config_file.read),
        Reader("timing.json", b'{"run_seconds": 1.5, "local_steps": 30, "num_rounds": 4}',
               lambda path: report.read_timing(path.parent)),
    ]  # fmt: skip


def trials() -> dict[str, Trial]:
    """Returns a trial per reader."""
    return {f"reader: {reader.name}": functools.partial(_trial, reader) for reader in readers()}


def _trial(reader: Reader, rng: np.random.Generator, folder: pathlib.Path) -> Result:
    """Reads a file after one to three damages.  A damage may be harmless, or give another value."""
    folder.mkdir()
    path = folder / reader.name
    path.write_bytes(reader.content)
    for _ in range(rng.integers(1, 4)):
        if path.stat().st_size:
            [flip, cut, scramble, scramble][rng.integers(4)](rng, path)
    damaged = path.read_bytes()
    tracemalloc.start()
    try:
        reader.read(path)
        outcome = Result(Outcome.SAME)
    except ValueError as error:
        outcome = Result(Outcome.REFUSED, str(error))
    except Exception as error:
        outcome = Result(Outcome.UNDOCUMENTED, f"{error!r} for {damaged[:60]!r}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if peak > _MOST_BYTES:
        return Result(Outcome.UNDOCUMENTED, f"{peak} bytes of memory for {damaged[:60]!r}")
    return outcome
