"""Data of clients that PFLlib's scripts have generated: a file per client and part."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np

from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset, same_length
from fedjax_sim.datasets.formats.pickles import parse_pickle


def read_pfllib(folder: str | Path, *, name: str | None = None) -> Dataset:
    """Reads ``train/0.npz``, ``train/1.npz``, ..., ``test/0.npz``, ..., as PFLlib writes them.

    Each file has the pickled dict ``{"x": [n, ...], "y": [n]}`` of one client, whose name is the
    number of the file.  Only numbers and arrays in it are read
    (:mod:`fedjax_sim.datasets.formats.pickles`); no code of the file runs.  Images ``[n, C, H, W]``
    become ``[n, H, W, C]``.

    Source: https://github.com/TsingZ0/PFLlib (dataset/utils/dataset_utils.py).

    Args:
        folder: the data set's folder, such as ``dataset/MNIST``.
        name: name of the data set; default: that of the folder.

    Raises:
        DataError: no such files, clients with test files only, or contents other than numeric
            examples and labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "test"):
        ...         (Path(folder) / part).mkdir()
        ...         one = {"x": np.zeros((2, 1, 8, 8), np.float32), "y": np.array([0, 1])}
        ...         np.savez_compressed(Path(folder) / part / "0.npz", data=one)
        ...     data = read_pfllib(folder)
        >>> data.train["x"].shape, data.group_names
        ((2, 8, 8, 1), ('0',))
    """
    folder = Path(folder)
    parts = {}
    for part in ("train", "test"):
        files = {_number(file): file for file in (folder / part).glob("*.npz")}
        if not files:
            raise DataError(f"{folder} has no {part}/*.npz; expected the files of PFLlib")
        clients = {number: _read(files[number]) for number in sorted(files)}
        try:
            x, y = map(np.concatenate, zip(*clients.values(), strict=True))
        except ValueError as error:
            raise DataError(f"{folder / part}: clients have examples of several shapes") from error
        owners = np.repeat(
            [str(number) for number in clients], [len(c[1]) for c in clients.values()]
        )
        parts[part] = (x, y, owners)
    (x, y, clients), (x_test, y_test, test_clients) = parts.values()
    if lost := set(test_clients) - set(clients):
        raise DataError(f"{folder}: clients {', '.join(sorted(lost))} have no train/*.npz")
    return from_arrays(
        x, y, test=(x_test, y_test), clients=clients, test_clients=test_clients,
        scale="none", layout="as_given", target="classes",
        name=folder.name if name is None else name,
    )._replace(source="files")  # fmt: skip


def _number(file: Path) -> int:
    numbers = re.findall(r"\d+", file.stem)
    if len(numbers) != 1:
        raise DataError(f"{file}: expected the number of one client as its name, such as 0.npz")
    return int(numbers[0])


def _read(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with zipfile.ZipFile(file) as archive:
            stream = io.BytesIO(archive.read("data.npy"))
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        shape, _, dtype = (header or np.lib.format.read_array_header_2_0)(stream)
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise DataError(f"{file} cannot be read: {error}; expected PFLlib's array data") from error
    if shape != () or dtype.kind != "O":
        raise DataError(f"{file}: data is {dtype}{list(shape)}; expected a dict of x and y")
    content = parse_pickle(stream.read(), file, boxed=True)
    if not {"x", "y"} <= content.keys():
        raise DataError(f"{file} has {', '.join(content)}; expected x and y")
    try:
        x, y = np.asarray(content["x"]), np.asarray(content["y"])
    except ValueError as error:
        raise DataError(f"{file}: x or y is ragged; expected examples of one shape") from error
    if x.ndim < 2 or x.dtype.kind not in "biuf" or y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(
            f"{file}: x is {x.dtype}{list(x.shape)} and y {y.dtype}{list(y.shape)}; expected "
            "numbers [n, ...] and integers [n]"
        )
    same_length(file, x=x, y=y)
    return (np.moveaxis(x, 1, -1) if x.ndim == 4 else x), y
