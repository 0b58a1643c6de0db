"""Cooperative games of clients: values of coalitions, computed once each."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import called, check_count, check_key, check_takes, has_real_numbers
from fedjax_sim.runs import (
    FolderError,
    Mode,
    digest,
    locked,
    read_json,
    read_npz,
    sign,
    write_json,
    write_npz,
)
from fedjax_sim.timelines import host_generator

Metrics = Mapping[str, np.ndarray]


class Outcomes:
    """Metrics of coalitions, each computed once and optionally kept on disk.

    Args:
        evaluate: ``(coalitions [K, M] bool) -> {metric: [K]}`` for distinct coalitions.
        num_clients: M.
        chunk: ``K -> coalitions`` per call of ``evaluate``; metrics are kept after every call.
        directory: folder of the kept metrics; None: memory only.
        identity: JSON values on which the metrics depend; another identity in the folder is
            refused.
        on_progress: called after every chunk with the number of coalitions of this request that
            are computed, and of those that were missing.
    """

    def __init__(
        self,
        evaluate: Callable[[np.ndarray], Metrics],
        num_clients: int,
        *,
        chunk: Callable[[int], int] | None = None,
        directory: str | pathlib.Path | None = None,
        identity: Mapping[str, Any] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ):
        check_count(1, num_clients=num_clients)
        self.num_clients = num_clients
        self._evaluate, self._chunk, self._on_progress = evaluate, chunk, on_progress
        self._store = None if directory is None else CoalitionStore(directory, identity or {})
        self._known = {} if self._store is None else self._store.read(num_clients)

    def __call__(self, coalitions: np.ndarray) -> list[dict[str, float]]:
        """Returns the metrics of every coalition ``[K, M]``; computes those that are missing."""
        packed = np.packbits(coalitions, axis=1)
        names = [row.tobytes() for row in packed]
        missing = {name: i for i, name in enumerate(names) if name not in self._known}
        todo = coalitions[list(missing.values())]
        done = 0
        while done < len(todo):
            size = len(todo) - done
            if self._chunk is not None:
                size = min(self._chunk(size), size)
            part = todo[done : done + size]
            metrics = self._evaluate(part)
            for i, row in enumerate(np.packbits(part, axis=1)):
                self._known[row.tobytes()] = {k: float(v[i]) for k, v in metrics.items()}
            done += size
            if self._store is not None:
                self._known |= self._store.write(self._known, self.num_clients)
            if self._on_progress is not None:
                self._on_progress(done, len(todo))
        return [self._known[name] for name in names]


class Game:
    r"""A game of M clients: ``v(S)`` is the improvement of a metric over the empty coalition's.

    .. math:: v(S) = L(\emptyset) - L(S) \ (\text{mode "min"}), \qquad
              v(S) = L(S) - L(\emptyset) \ (\text{mode "max"})

    With mode None, the metric's name decides
    (:func:`~fedjax_sim.engine.evaluation.names.direction`).

    :func:`fedjax_sim.studies.valuation.game` and :func:`from_values` make games.  Values are
    cached, also for other methods and for :meth:`with_metric`.

    Example:
        >>> majority = from_values(lambda S: S @ [3, 2, 1, 1] >= 4, num_clients=4)
        >>> majority.values([[True, False, True, False], [False, True, True, False]]).tolist()
        [1.0, 0.0]
    """

    def __init__(
        self, outcomes: Outcomes, metric: str, mode: Mode = None, number: int | None = None
    ):
        sign(metric, mode)
        self.metric = metric
        self.mode: Mode = mode
        self._outcomes = outcomes
        self._number = number  # among games whose values are added up
        self._requested: set[bytes] = set()

    @property
    def num_clients(self) -> int:
        """Number of clients M."""
        return self._outcomes.num_clients

    @property
    def num_runs(self) -> int:
        """Number of distinct coalitions, without the empty one, that were asked for."""
        return len(self._requested)

    def values(self, coalitions: Any) -> np.ndarray:
        """Returns ``v(S)`` of coalitions, ``[K, M] bool -> [K]``, in double precision.

        Raises:
            ValueError: another shape, values that are not booleans, an unknown metric.
            FloatingPointError: the metric of a coalition is not finite, since its run diverged.
        """
        coalitions = np.asarray(coalitions)
        if coalitions.ndim != 2 or coalitions.shape[1] != self.num_clients:
            raise ValueError(
                f"coalitions has shape {coalitions.shape}; expected [K, {self.num_clients}]"
            )
        if coalitions.dtype != bool:
            raise ValueError(f"coalitions has dtype {coalitions.dtype}; expected booleans")
        self._requested |= {
            row.tobytes() for row in np.packbits(coalitions[coalitions.any(axis=1)], axis=1)
        }
        empty = np.zeros((1, self.num_clients), bool)
        outcomes = self._outcomes(np.concatenate([empty, coalitions]))
        if self.metric not in outcomes[0]:
            known = ", ".join(sorted(outcomes[0]))
            raise ValueError(f"metric is {self.metric!r}; expected one of {known}")
        metrics = np.array([metrics[self.metric] for metrics in outcomes])
        if (failed := np.flatnonzero(~np.isfinite(metrics))).size:
            members = np.flatnonzero(np.concatenate([empty, coalitions])[failed[0]]).tolist()
            raise FloatingPointError(
                f"{self.metric} is {metrics[failed[0]]} for the coalition of the clients {members} "
                f"({len(failed)} of {len(metrics)} coalitions); expected finite numbers, of which "
                "values of clients are sums: try a smaller learning rate"
            )
        return sign(self.metric, self.mode) * (metrics[1:] - metrics[0])

    def total(self) -> float:
        """Returns the value of all clients together, ``v(N)``."""
        return float(self.values(np.ones((1, self.num_clients), bool))[0])

    def counted(self) -> Game:
        """Returns the game with the cache of this one and a count of runs of its own."""
        return Game(self._outcomes, self.metric, self.mode, self._number)

    def generator(self, key: Array) -> np.random.Generator:
        """Returns the generator of a method's coalitions.

        Games whose values are added up have different ones for one key, so that the variances of
        their estimates add up, too.
        """
        check_key(key)
        own = key if self._number is None else jax.random.fold_in(key, self._number)
        return host_generator(own)

    def with_metric(self, metric: str, mode: Mode = None) -> Game:
        """Returns the game of another metric of the same runs.

        Example:
            >>> runs = Outcomes(lambda S: {"loss": 1.0 - S.mean(1), "accuracy": S.mean(1)}, 2)
            >>> loss = Game(runs, "loss")
            >>> loss.total(), loss.with_metric("accuracy").total()
            (1.0, 1.0)
        """
        return Game(self._outcomes, metric, mode, self._number)


def check_game(game: Any) -> None:
    """Refuses what is no game, such as the function of one."""
    if not isinstance(game, Game):
        raise ValueError(
            f"game is a {type(game).__name__}; expected a game, as from fs.valuation.game or "
            "fs.valuation.from_values"
        )


def from_values(
    values: Callable[[np.ndarray], Any], num_clients: int, *, mode: Mode = None
) -> Game:
    """Returns the game of a function of coalitions.

    Args:
        values: ``(coalitions [K, M] bool) -> [K]``; the value of the empty coalition is
            subtracted.
        num_clients: M.
        mode: ``"max"`` or None: large values are good; ``"min"``: small ones.

    Raises:
        ValueError: no clients, no function of coalitions; when values are computed, a function
            that fails or does not return one real number per coalition.

    Example:
        >>> game = from_values(lambda S: S @ [1.0, 2.0], num_clients=2)
        >>> game.total(), game.num_runs
        (3.0, 1)
    """

    check_takes("values", values, ("coalitions",))
    expected = "a function that returns one number per coalition"

    def evaluate(coalitions: np.ndarray) -> Metrics:
        given = f"{len(coalitions)} coalitions of {num_clients} clients"
        result = np.asarray(called("values", given, expected, values, coalitions))
        if not has_real_numbers(result):
            raise ValueError(f"values returns {result.dtype} for {given}; expected {expected}")
        result = result.astype(np.float64)
        if result.shape != (len(coalitions),):
            raise ValueError(
                f"values returns shape {result.shape} for {len(coalitions)} coalitions; expected "
                f"({len(coalitions)},), one number per coalition"
            )
        return {"value": result}

    return Game(Outcomes(evaluate, num_clients), "value", "max" if mode is None else mode)


_VALUES, _IDENTITY = "coalitions.npz", "game.json"

Known = dict[bytes, dict[str, float]]


class CoalitionStore:
    """Folder with the metrics of coalitions; several processes may share it.

    ``coalitions.npz`` has packed coalitions ``[K, ceil(M / 8)]``, the metrics' names and their
    values ``[K, metrics]``, and a digest of the game.  ``game.json`` has the identity of the game.
    """

    def __init__(self, directory: str | pathlib.Path, identity: Mapping[str, Any]):
        if not isinstance(directory, str | pathlib.Path):
            raise ValueError(f"directory is {directory!r:.60}; expected the path of a folder")
        self._folder = pathlib.Path(directory)
        if self._folder.is_file():
            raise ValueError(f"directory is '{directory}', which is a file; expected a folder")
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
