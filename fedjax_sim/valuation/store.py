"""Metrics of coalitions on disk."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.data.archives import read_npz
from fedjax_sim.simulation.files import FolderError, read_json, replacing, write_text
from fedjax_sim.simulation.locks import locked

_VALUES, _IDENTITY = "coalitions.npz", "game.json"

Known = dict[bytes, dict[str, float]]


class CoalitionStore:
    """Folder with the metrics of coalitions; several processes may share it.

    ``coalitions.npz`` has packed coalitions ``[K, ceil(M / 8)]``, the metrics' names and their
    values ``[K, metrics]``.  ``game.json`` has the identity of the game.
    """

    def __init__(self, directory: str | pathlib.Path, identity: Mapping[str, Any]):
        self._folder = pathlib.Path(directory)
        self._identity = dict(identity)

    def read(self, num_clients: int) -> Known:
        """Returns the metrics on disk; writes the identity into a new folder."""
        with locked(self._folder, wait=True):
            path = self._folder / _IDENTITY
            if not path.exists():
                if (self._folder / _VALUES).exists():
                    raise FolderError(
                        f"{path} is missing beside {_VALUES}; expected both: choose another "
                        "directory"
                    )
                write_text(path, json.dumps(self._identity, indent=1, sort_keys=True))
            stored = read_json(path, "expected it whole: choose another directory")
            mine = json.loads(json.dumps(self._identity))
            if stored != mine:
                names = sorted(k for k in stored | mine if stored.get(k) != mine.get(k))
                raise FolderError(
                    f"{self._folder} has the coalitions of a game with another "
                    f"{', '.join(names):.80} in {path.name}; expected the same game, or another "
                    "directory"
                )
            return self._load(num_clients)

    def write(self, known: Known, num_clients: int) -> Known:
        """Adds metrics to those on disk; returns all of them."""
        with locked(self._folder, wait=True):
            known = self._load(num_clients) | known
            names = list(next(iter(known.values())))
            packed = np.array([np.frombuffer(key, np.uint8) for key in known])
            values = np.array([[row[name] for name in names] for row in known.values()])
            with replacing(self._folder / _VALUES) as partial, partial.open("wb") as file:
                np.savez(file, coalitions=packed, metrics=np.array(names), values=values)
        return known

    def _load(self, num_clients: int) -> Known:
        path = self._folder / _VALUES
        if not path.exists():
            return {}
        try:
            arrays = read_npz(path)
            packed, names, values = (arrays[k] for k in ("coalitions", "metrics", "values"))
            rows, columns = values.shape
            if packed.ndim != 2 or packed.dtype != np.uint8 or len(packed) != rows:
                raise ValueError(f"coalitions has shape {packed.shape} for {rows} rows")
            if names.shape != (columns,) or names.dtype.kind != "U" or values.dtype.kind != "f":
                raise ValueError(f"metrics has {names} for {columns} columns of numbers")
        except (OSError, ValueError, KeyError) as error:
            raise FolderError(
                f"{path} is damaged ({error}); expected it whole: delete it"
            ) from error
        if packed.shape[1] != -(-num_clients // 8):
            raise FolderError(f"{path} has other clients; expected {num_clients}")
        rows = (dict(zip(names.tolist(), row.tolist(), strict=True)) for row in values)
        return {key.tobytes(): row for key, row in zip(packed, rows, strict=True)}
