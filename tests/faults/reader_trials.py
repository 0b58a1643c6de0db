"""Damaged inputs of all readers: a value, or one documented error."""

import bz2
import dataclasses
import functools
import gzip
import io
import json
import lzma
import pathlib
import pickle
import re
import tarfile
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import reference_vit
import small_runs
from faults import Outcome, Result, Trial, cut, flip, flip_header, retype, scramble

from fedjax_sim import models
from fedjax_sim.cli import report
from fedjax_sim.cli.grid import SWEEP, SweepOptions, configurations
from fedjax_sim.datasets.cifar import CIFAR100, parse_batch, parse_binary
from fedjax_sim.datasets.formats.files import parse_tar, read_bytes
from fedjax_sim.datasets.formats.pickles import parse_pickle
from fedjax_sim.datasets.leaf import parse_leaf
from fedjax_sim.datasets.linear import parse_libsvm
from fedjax_sim.datasets.mnist import read_idx
from fedjax_sim.datasets.shakespeare import parse_roles
from fedjax_sim.datasets.tables import read_table
from fedjax_sim.datasets.text import read_text
from fedjax_sim.datasets.tiny_imagenet import parse_annotations, parse_wnids
from fedjax_sim.engine import History
from fedjax_sim.runs.history import COLUMNS
from fedjax_sim.runs.storage.checkpoints import Confirmed, damage, write_record
from fedjax_sim.runs.storage.client_rows import ROW_INDEX, ClientRows, read_clients
from fedjax_sim.runs.storage.files import write_json
from fedjax_sim.runs.storage.folders import folder_names, is_seed, record_names, recorded_names
from fedjax_sim.runs.storage.history_file import HistoryFile, Mark
from fedjax_sim.runs.storage.history_file import read as read_rows
from fedjax_sim.runs.storage.model_files import Models, read_models, write_models
from fedjax_sim.runs.storage.outcome import Outcome as RunOutcome
from fedjax_sim.runs.storage.store import RunFolder, claim
from fedjax_sim.runs.sweeps.store import read_runs
from fedjax_sim.studies.executions import ExecutionChoice, Measured, store, stored
from fedjax_sim.studies.setups import NoAdapters, Study, initial_params, options, read, to_json
from fedjax_sim.studies.valuation.games import CoalitionStore
from fedjax_sim.timelines import read_trace

_MOST_BYTES = 200_000_000  # of memory for an input of some thousand bytes


class Reader(NamedTuple):
    """A reader of files, with a good file."""

    name: str
    content: bytes
    read: Callable[[pathlib.Path], Any]


def _of_bytes(parse: Callable[[bytes, pathlib.Path], Any]) -> Callable[[pathlib.Path], Any]:
    return lambda path: parse(path.read_bytes(), path)


def _in_folder(read: Callable[[pathlib.Path], Any]) -> Callable[[pathlib.Path], Any]:
    return lambda path: read(path.parent)


def _of_model(path: pathlib.Path) -> Any:
    return initial_params(path, NoAdapters(), _LINEAR, jax.random.split(jax.random.key(0), 1))


def _points(path: pathlib.Path) -> Any:
    return configurations(Study(), SweepOptions(points=path))


def _slices(sweep: bytes, path: pathlib.Path) -> Any:
    """Reads slices, of which damaged ones are named in a warning and left out."""
    (path.parent.parent / "sweep.json").write_bytes(sweep)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = read_runs(path.parent.parent)
    if caught:
        raise ValueError(str(caught[0].message))
    return runs


def _claim(path: pathlib.Path) -> None:
    claim(path, _IDENTITY)


_IDENTITY = {"algorithm": {"digest": "ab"}, "rounds": 3, "config": {"lr": 0.1}, "replicas": ["0"]}
_LINEAR = models.Model(lambda key: {"w": jnp.ones((2, 3))}, lambda params, x: x @ params["w"])
_GAME = {"seed": 0, "data": "ab"}
_RUN = "ab"


def _written(write: Callable[[pathlib.Path], Any], name: str) -> bytes:
    """Returns the content that ``write`` gives a file, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
        return path.read_bytes()


def _sweep() -> tuple[str, bytes, bytes]:
    """Returns the name of a slice, its content, and that of its sweep's identity."""
    with tempfile.TemporaryDirectory() as folder:
        small_runs.sweep(pathlib.Path(folder))
        path = next(pathlib.Path(folder).glob("slices/*.npz"))
        identity = pathlib.Path(folder) / "sweep.json"
        return f"slices/{path.name}", path.read_bytes(), identity.read_bytes()


def _run(path: pathlib.Path) -> RunFolder:
    """Returns the folder of a run; makes it."""
    if not (path.parent / "run.json").exists():
        claim(path.parent / "run.json", {"replicas": ["0"]})
    return RunFolder(path.parent)


def _rows(path: pathlib.Path) -> None:
    """Writes a history, or values of clients, in two steps."""
    if path.stem == "clients":
        columns = (*ROW_INDEX, "loss")
        rows = [("0", 2, 0, "test", 3, 0.5)], [("0", 4, 1, "test", 4, 0.25)]
    else:
        columns, rows = COLUMNS, ([("0", 2, "test/loss", 0.5)], [("0", 4, "a", 1e-3)])
    file = HistoryFile(path.with_suffix(".csv"), _RUN, columns)
    file.create()
    for part in rows:
        file.append(part)


def _read_rows(name: str, path: pathlib.Path) -> Any:
    """Reads a file that grows, whose rows or digests are damaged, beside its other file."""
    other = path.with_suffix(".csv" if path.suffix == ".digests" else ".digests")
    other.write_bytes(_written(_rows, other.name))
    csv = path.with_suffix(".csv")
    return read_clients(path.parent, _RUN, None) if name == "clients" else read_rows(csv, _RUN)


def _parquet() -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        rows = ClientRows(pathlib.Path(folder), _RUN, 10**6)
        one = {"per_client/loss": np.ones((1, 1, 2)), "per_client/num_examples": np.ones((1, 1, 2))}
        rows.append(History(np.array([[2]]), one, {}), ["0"])
        (path,) = pathlib.Path(folder).glob("*/part-*")
        return f"clients.parquet/{path.name}", path.read_bytes()


def _coalitions(path: pathlib.Path) -> None:
    store = CoalitionStore(path.parent, _GAME)
    store.read(3)
    store.write({b"\x01": {"loss": 0.5}, b"\x07": {"loss": 0.25}}, 3)


def _read_coalitions(path: pathlib.Path) -> Any:
    game = path.parent / "game.json"
    if not game.exists():
        write_json(game, _GAME)
    return CoalitionStore(path.parent, _GAME).read(3)


def _checkpoint_mark(path: pathlib.Path) -> Any:
    """Reads a checkpoint's record; a damaged one is named by the callers, which know its folder."""
    reason = damage(path.parent)
    if reason:
        raise ValueError(f"{path}: {reason}")


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
    load_vit = functools.partial(models.load_vit, params=params, heads=2)
    run: dict[str, Any] = {"config": to_json(options(algorithms=("fedavg",)))}
    run["algorithms"] = {"fedavg": {"lr": 0.1}}
    sweep = {"sweep": to_json(SweepOptions())}
    frame = pd.DataFrame({"a": [0.5, 1.5, 2.5], "b": [3, 1, 2], "y": ["x", "y", "x"]})
    part, parquet = _parquet()
    name_of_slice, content_of_slice, identity_of_sweep = _sweep()
    trained = Models({"w": np.ones((2, 3)), "b": [np.zeros((2, 1), np.float32)]}, ["0", "1"],
                     [4, 4], {"loss": [0.5, 0.25]})  # fmt: skip
    done = RunOutcome(4, {"0": 0, "1": 3}, 5, 32, 64, {"0": 2, "1": [[2, 3], [4, 7]]})
    confirmed = Confirmed(_IDENTITY, Mark(5, "ab"), None)
    choice = ExecutionChoice(4, 2, "im2col")
    measured = [Measured(choice, 0.1, 1.0, 100)]
    timing = report.Timing(1.5, 2.5, 30, 0, 4)
    role = {"x": ["a" * 80], "y": ["b"]}
    roles = {"users": ["PLAY_ROLE"], "num_samples": [1], "user_data": {"PLAY_ROLE": role}}
    annotations = b"val_0.JPEG\tn01443537\t0\t32\t44\t62\nval_1.JPEG\tn01629819\t5\t6\t7\t8\n"
    wnids = ("n01443537", "n01629819")
    folders = [
        Reader("run.json", _written(_claim, "run.json"), _claim),
        Reader("0/run.json", _written(lambda path: _run(path), "run.json"), _in_folder(is_seed)),
        Reader("outcome.json",
               _written(lambda path: _run(path)._write(path.name, dataclasses.asdict(done)),
                        "outcome.json"),
               lambda path: _run(path).outcome()),
        Reader("algorithms.json",
               _written(lambda path: record_names(path.parent, folder_names(["a, b", "fedavg"])),
                        "algorithms.json"),
               _in_folder(recorded_names)),
        *(Reader(f"{stem}.{kind}", _written(_rows, f"{stem}.{kind}"),
                 functools.partial(_read_rows, stem))
          for stem in ("history", "clients") for kind in ("csv", "digests")),
        Reader(part, parquet, lambda path: read_clients(path.parent.parent, _RUN, None)),
        Reader("models.npz", _written(lambda path: write_models(path, trained, _RUN), "models.npz"),
               lambda path: read_models(path, _RUN)),
        Reader(name_of_slice, content_of_slice, functools.partial(_slices, identity_of_sweep)),
        Reader("coalitions.npz", _written(_coalitions, "coalitions.npz"), _read_coalitions),
        Reader("game.json", _written(lambda path: write_json(path, _GAME), "game.json"),
               _read_coalitions),
        Reader("3/record.json",
               _written(lambda path: write_record(path.parent, confirmed), "record.json"),
               _checkpoint_mark),
        Reader("executions.json",
               _written(lambda path: store(path, {"device": "cpu"}, measured), "executions.json"),
               lambda path: stored(path, {"device": "cpu"})),
        Reader("sweep/config.json", json.dumps(sweep).encode(), SWEEP.read_saved),
        Reader("initial.npz", _archive({"w": np.ones((2, 3))}), _of_model),
        Reader("points.csv", b"lr,cohort_size\n0.1,5\n0.2,10\n", _points),
        Reader("table.csv", frame.to_csv(index=False).encode(), read_table),
        Reader("table.parquet", _written(lambda path: frame.to_parquet(path), "a.parquet"),
               read_table),
        Reader("table.npz", _archive({"x": np.ones((4, 2)), "y": np.array([0, 1, 0, 1])}),
               read_table),
        Reader("text.txt", b"to be, or not to be, that is the question " * 8,
               functools.partial(read_text, context=16)),
        Reader("shakespeare.json", json.dumps(roles).encode(), _of_bytes(parse_roles)),
        Reader("wnids.txt", "\n".join(wnids).encode(), _of_bytes(parse_wnids)),
        Reader("val_annotations.txt", annotations,
               _of_bytes(lambda data, path: parse_annotations(data, wnids, path))),
        Reader("vit.msgpack",
               flax.serialization.msgpack_serialize(reference_vit.flax_tree(tensors)), load_vit),
    ]  # fmt: skip
    return [
        *folders,
        Reader("a.idx", b"\0\0\x08\2" + bytes([0, 0, 0, 2, 0, 0, 0, 3]) + bytes(6), read_idx),
        Reader(
            "a.libsvm",
            b"+1 1:0.5 3:2\n-1 2:1e-3\n" * 4,
            _of_bytes(lambda data, path: parse_libsvm([data], 4, path)),
        ),
        Reader("a.pickle", pickle.dumps({"data": planes, "labels": [1, 2]}, 2),
               _of_bytes(parse_pickle)),
        Reader("cifar.bin", b"".join(bytes([1, 7]) + bytes(x) for x in planes),
               _of_bytes(lambda data, path: parse_binary(data, CIFAR100, path))),
        Reader("cifar.pickle", pickle.dumps({b"data": planes, **labels}, 2),
               _of_bytes(lambda data, path: parse_batch(data, CIFAR100, path))),
        Reader("leaf.json", leaf, _of_bytes(parse_leaf)),
        Reader("a.tar", _tar(),
               _of_bytes(lambda data, path: parse_tar(data, path, lambda name: True))),
        *(Reader(f"a.{suffix}", compress(bytes(5000) + rng.bytes(500)), read_bytes)
          for suffix, compress in compressed.items()),
        Reader("trace.csv", b"client,duration\n0,1.5\n1,4\n0,2.5\n",
               lambda path: read_trace(path, 2)),
        Reader("vit.npz", _archive(reference_vit.google(tensors, heads=2)), load_vit),
        Reader("vit.safetensors", save(contiguous), load_vit),
        Reader("config.json", json.dumps(run).encode(), read),
        Reader("written/config.json", _written(lambda path: write_json(path, run), "config.json"),
               read),
        Reader("timing.json",
               _written(lambda path: _run(path).write_timing(dataclasses.asdict(timing)),
                        "timing.json"),
               lambda path: report.read_timing(_run(path).path)),
    ]  # fmt: skip


def trials() -> dict[str, Trial]:
    """Returns a trial per reader."""
    return {
        f"reader: {re.sub('[0-9a-f]{16}', 'DIGEST', reader.name)}": functools.partial(
            _trial, reader
        )
        for reader in readers()
    }


def _trial(reader: Reader, rng: np.random.Generator, folder: pathlib.Path) -> Result:
    """Reads a file after one to three damages.  A damage may be harmless, or give another value."""
    path = folder / reader.name
    path.parent.mkdir(parents=True)
    path.write_bytes(reader.content)
    for _ in range(rng.integers(1, 4)):
        if path.stat().st_size:
            [flip, flip_header, cut, scramble, scramble, retype][rng.integers(6)](rng, path)
    damaged = path.read_bytes()
    tracemalloc.start()
    try:
        reader.read(path)
        outcome = Result(Outcome.SAME)
    except ValueError as error:
        # Digests of rows are named by the rows: which of the two is damaged cannot be seen.
        name = path.name.removesuffix(".digests")
        named = str(path.parent) in str(error) and name in str(error)
        documented = named and "\n" not in str(error)
        kind = Outcome.REFUSED if documented else Outcome.UNDOCUMENTED
        outcome = Result(kind, f"{error!r} for {damaged[:60]!r}")
    except Exception as error:
        outcome = Result(Outcome.UNDOCUMENTED, f"{error!r} for {damaged[:60]!r}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if peak > _MOST_BYTES:
        return Result(Outcome.UNDOCUMENTED, f"{peak} bytes of memory for {damaged[:60]!r}")
    return outcome
