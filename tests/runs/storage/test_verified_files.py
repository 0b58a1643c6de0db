"""Every file that a run or a sweep writes is verified, whole, before it is parsed.

Flips of one bit are the smallest change, so the expected result of each is a refusal that names the
file: no flip may be read, also where it changes no value, since nothing distinguishes those.
"""

import io
import pathlib
import shutil
import warnings
import zipfile
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs

import fedjax_sim as fs
from fedjax_sim.engine.evaluation import client_evaluator, evaluator, merge_evaluators
from fedjax_sim.reports import read_client_values, read_folder
from fedjax_sim.runs.storage.files import FolderError

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
        fs.fedavg(changes.pop("lr", 0.1)),
        _setup(**changes),
        _KEYS,
        callbacks=callbacks,
        storage=fs.Storage(folder, checkpoint_seconds=0),
        options=fs.Options(segment_seconds=1e-9),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    base = tmp_path_factory.mktemp("whole")
    run(base / "run")
    run(base / "other", lr=0.2)
    fs.compare(
        {"a": fs.fedavg(0.1), "b, c": fs.fedavg(0.2)}, _setup(), _KEYS, storage=base / "compared"
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


def silent_flips(
    root: pathlib.Path, name: str, read, bits: Iterable[int] | None = None
) -> tuple[list[int], list[str]]:
    """Returns the flipped bits that a reader does not see, and errors that do not name the file."""
    path = next(root.glob(name))
    content, silent, unnamed = path.read_bytes(), [], []
    for bit in bits_of(content, name) if bits is None else bits:
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
    assert silent_flips(folder, f"run/{name}", read, range(8 * start, 8 * len(content), 5)) == (
        [],
        [],
    )


# A file of another run, the files that come with it, and a reader of it.
_FOREIGN = {
    "history": (["history.csv"], read_folder),
    "history with digests": (["history.csv", "history.digests"], read_folder),
    "clients": (["clients.csv"], read_client_values),
    "clients with digests": (["clients.csv", "clients.digests"], read_client_values),
    "outcome": (["outcome.json"], read_folder),
    "last models": (["models.npz"], _last),
    "best models": (["best.npz"], _best),
}


@pytest.mark.parametrize("link", [shutil.copy, "link", "hard link"])
@pytest.mark.parametrize("case", _FOREIGN)
def test_files_of_another_run_are_refused(folder, case, link):
    """They are intact; only what they say about their run tells them apart."""
    names, read = _FOREIGN[case]
    for name in names:
        here, there = folder / "run" / name, folder / "other" / name
        here.unlink()
        if link == "link":
            here.symlink_to(there)
        elif link == "hard link":
            here.hardlink_to(there)
        else:
            shutil.copy(there, here)
    with pytest.raises(FolderError, match=names[0].replace(".", r"\.")) as caught:
        read(folder / "run")
    assert str(folder / "run") in str(caught.value)


@pytest.mark.parametrize("name", ["history.csv", "clients.csv"])
def test_rows_of_another_run_are_refused_before_its_first_checkpoint(folder, name):
    """The checkpoints are lost, so only the digests beside the rows name the run."""
    read = {"history.csv": read_folder, "clients.csv": read_client_values}[name]
    shutil.rmtree(folder / "run" / "checkpoints")
    for other in (name, name.replace("csv", "digests")):
        shutil.copy(folder / "other" / other, folder / "run" / other)
    with pytest.raises(FolderError, match=rf"{name} is of run [0-9a-f]+; expected one of run"):
        read(folder / "run")


def test_a_copy_of_the_whole_folder_is_read(folder):
    """Also through links, and with its best models only."""
    (folder / "link").symlink_to(folder / "run")
    expected = read_folder(folder / "run").history
    for name in ("link", "run"):
        copy = shutil.copytree(folder / name, folder / f"copy of {name}")
        frame = read_folder(copy).history
        assert frame.drop(columns="algorithm").equals(expected.drop(columns="algorithm"))
        np.testing.assert_array_equal(_best(copy).params, _best(folder / "run").params)


@pytest.mark.slow
def test_a_longer_run_keeps_the_files_of_its_beginning(tmp_path):
    """Models and outcome have the identifier of the run as it began."""
    run(tmp_path, rounds=2)
    first = _best(tmp_path)
    again = run(tmp_path)
    assert again.history is not None
    assert set(again.history.round[0]) == {3, 4}
    assert set(_last(tmp_path).rounds) == {4}
    assert first.metrics["test/loss"] >= _best(tmp_path).metrics["test/loss"]
    assert set(read_client_values(tmp_path)["round"]) == {1, 2, 3, 4}
