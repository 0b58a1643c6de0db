"""Metrics of coalitions on disk."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_sim.runs import FolderError, digest, locked, read_json, read_npz, write_json, write_npz

_VALUES, _IDENTITY = "coalitions.npz", "game.json"

Known = dict[bytes, dict[str, float]]


class CoalitionStore:
    """Folder with the metrics of coalitions; several processes may share it.

    ``coalitions.npz`` has packed coalitions ``[K, ceil(M / 8)]``, the metrics' names and their
    values ``[K, metrics]``, and a digest of the game.  ``game.json`` has the identity of the game.
    """

    def __init__(self, directory: str | pathlib.Path, identity: Mapping[str, Any]):
        self._folder = pathlib.Path(directory)
        self._identity = dict(identity)
        self._game = np.array(digest(self._identity))

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
                write_json(path, self._identity, indent=1)
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
            arrays = {"coalitions": packed, "metrics": np.array(names), "values": values}
            write_npz(self._folder / _VALUES, arrays | {"game": self._game})
        return known

    def _load(self, num_clients: int) -> Known:
        path = self._folder / _VALUES
        if not path.exists():
            return {}
        arrays = read_npz(path, "expected it whole: delete it")
        if arrays["game"] != self._game:
            raise FolderError(f"{path} is of another game than {_IDENTITY}: delete it")
        packed, names, values = (arrays[name] for name in ("coalitions", "metrics", "values"))
        if packed.shape[1] != -(-num_clients // 8):
            raise FolderError(f"{path} has other clients; expected {num_clients}")
        rows = (dict(zip(names.tolist(), row.tolist(), strict=True)) for row in values)
        return {key.tobytes(): row for key, row in zip(packed, rows, strict=True)}
