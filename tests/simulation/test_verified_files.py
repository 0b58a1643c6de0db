"""Every file that a run or a sweep writes is verified, whole, before it is parsed.

Flips of one bit are the smallest change, so the expected result of each is a refusal that names the
file: no flip may be read, also where it changes no value, since nothing distinguishes those.
"""

import functools
import io
import pathlib
import shutil
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs

import fedjax_sim as fs
from fedjax_sim.analysis import read_client_values, read_folder
from fedjax_sim.evaluation import client_evaluator, evaluator, merge_evaluators
from fedjax_sim.simulation.files import FolderError

_KEYS = jax.random.split(jax.random.key(1), 2)


def _setup(rounds: int = 4, scale: float = 1.0) -> fs.Setup:
    examples = {"y": scale * np.arange(6, dtype=np.float32)}
    data = fs.FederatedData(examples, np.array([0, 2, 3, 6]))

    def metrics(w, e):
        return {"loss": (e["y"] - w) ** 2}

    task = fs.empirical_task(lambda w, e, key: metrics(w, e)["loss"], data, fs.full_batch(1))
    evaluate = merge_evaluators(
        test=evaluator(metrics, examples), client=client_evaluator(metrics, data, per_client=True)
    )
    return fs.Setup(
        task, fs.timelines.full(rounds, 3, task.num_steps), jnp.zeros(2), evaluate, eval_every=1
    )


def run(folder: pathlib.Path, **changes) -> fs.Simulation:
    """Runs four rounds, with a checkpoint after each, values per client and the best models."""
    callbacks = [fs.callbacks.BestModel("test/loss")]
    return fs.simulate(
        fs.fedavg(changes.pop("lr", 0.1)), _setup(**changes), _KEYS, directory=folder,
        callbacks=callbacks, evals_per_segment=1, checkpoint_seconds=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    base = tmp_path_factory.mktemp("whole")
    run(base / "run")
    run(base / "other", lr=0.2)
    fs.compare(
        {"a": fs.fedavg(0.1), "b, c": fs.fedavg(0.2)}, _setup(), _KEYS, directory=base / "compared"
    )
    small_runs.sweep(base / "sweep")
    return base


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "results")


def _slices(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a slice that is left out
        return read_folder(folder)


def _best(folder):
    return fs.load(folder).models(which="best")


def _last(folder):
    return fs.load(folder).models()


_READERS = {
    "run/history.csv": read_folder,
    "run/clients.csv": read_client_values,
    "run/outcome.json": read_folder,
    "run/models.npz": _last,
    "run/best.npz": _best,
    "compared/algorithms.json": read_folder,
    "sweep/slices/*.npz": _slices,
}


def flip(path: pathlib.Path, whole: bytes, bit: int) -> None:
    data = bytearray(whole)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def _headers(content: bytes) -> list[int]:
    """Returns the positions of an archive's bytes that hold no data: its and NumPy's headers."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        directory = archive.start_dir
        arrays = [info.header_offset for info in archive.infolist()]
    return [*range(directory, len(content)), *(at + i for at in arrays for i in range(180))]


def bits_of(content: bytes, name: str, number: int = 150) -> np.ndarray:
    places = _headers(content) if name.endswith("npz") else range(len(content))
    bits = np.array([8 * byte + bit for byte in places for bit in range(8)])
    bits = bits[bits < 8 * len(content)]
    return np.random.default_rng(0).choice(bits, min(number, len(bits)), replace=False)


def silent_flips(root: pathlib.Path, name: str, read) -> tuple[list[int], list[str]]:
    """Returns the flipped bits that a reader does not see, and errors that do not name the file."""
    path = next(root.glob(name))
    content, silent, unnamed = path.read_bytes(), [], []
    for bit in bits_of(content, name):
        flip(path, content, bit)
        try:
            read(root / pathlib.Path(name).parts[0])
            silent.append(int(bit))
        except Exception as error:
            if str(path) not in str(error) or not isinstance(error, ValueError | UserWarning):
                unnamed.append(repr(error))
    path.write_bytes(content)
    return silent, unnamed


@pytest.mark.parametrize("name", _READERS)
def test_every_flipped_bit_is_refused_with_the_file(folder, name):
    read = _READERS[name]
    assert silent_flips(folder, name, read) == ([], [])
    read(folder / pathlib.Path(name).parts[0])  # undamaged


def _without_last_checkpoints(folder: pathlib.Path) -> None:
    """Leaves rows that no checkpoint has confirmed, as a kill does."""
    steps = sorted((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(steps[-1])


@pytest.mark.parametrize("name", ["history.csv", "clients.csv"])
def test_rows_after_the_newest_checkpoint_are_verified(folder, name):
    read = {"history.csv": read_folder, "clients.csv": read_client_values}[name]
    _without_last_checkpoints(folder / "run")
    path = folder / "run" / name
    content = path.read_bytes()
    start = content.rindex(b"\n0,4,") + 1
    silent = []
    for bit in range(8 * start, 8 * len(content), 5):
        flip(path, content, bit)
        try:
            read(folder / "run")
            silent.append(bit)
        except FolderError as error:
            assert str(path) in str(error)
    assert silent == []


def silent_copies(root: pathlib.Path, names: list[str], read) -> bool:
    for name in names:
        shutil.copy(root / "other" / name, root / "run" / name)
    try:
        read(root / "run")
    except FolderError:
        return False
    return True
