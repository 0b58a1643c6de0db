"""``clients.csv`` of a run: a row per seed, evaluated round, client and split.

Metrics ``per_client/NAME``, ``SPLIT/per_client/NAME`` and ``client/SPLIT/per_client/NAME`` are
arrays ``[M]`` (:func:`fedjax_sim.engine.evaluation.client_evaluator` with ``per_client=True``).
They are too many for ``history.csv`` and go to this file, or to the folder ``clients.parquet`` if
there are more than 100,000 rows and pyarrow is installed.  Rows are written before the checkpoint
of their round; resuming removes later rows, and the same rounds, run again, write the same rows.
The name of a part of ``clients.parquet`` has a digest of the run and of all parts up to it.
"""

import hashlib
import importlib.util
import io
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.engine import PER_CLIENT, ClientNames, History, split_of
from fedjax_sim.runs.history import as_number, due
from fedjax_sim.runs.storage.files import FolderError, own, replacing
from fedjax_sim.runs.storage.history_file import HistoryFile, Mark, read

if TYPE_CHECKING:
    import pandas as pd

ROW_INDEX = ("seed", "round", "client", "split", "num_examples")
CLIENT_NAME = "name"  # column after these, if a split has names of clients
_FILE, _FOLDER = "clients.csv", "clients.parquet"
_MOST_TEXT = 100_000  # rows in a text file
_DIGITS = 16  # of a digest in a name


_NO_NAMES: ClientNames = {}


class Table(NamedTuple):
    """Values of all clients with examples, for one seed, round and split."""

    seed: str
    round: int
    split: str
    columns: dict[str, np.ndarray]  # "client", "num_examples", metrics, maybe "name", [clients]


def tables(
    history: History, seeds: Sequence[str], names: ClientNames = _NO_NAMES
) -> Iterator[Table]:
    """Yields the clients' values by round, seed and split of a history with an axis of seeds."""
    splits = _splits(history)
    for e in range(np.shape(history.round)[1] if splits else 0):
        for r, seed in enumerate(seeds):
            for split, keys in splits.items():
                values = {name: np.asarray(history.metrics[key])[r, e] for key, name in keys}
                one = jax.tree.map(lambda x, r=r, e=e: np.asarray(x)[r, e], history.metrics)
                if not due(one, keys[0][0]):
                    continue
                present = np.flatnonzero(values["num_examples"])
                columns = {name: as_number(value[present]) for name, value in values.items()}
                if split in names:
                    columns.setdefault(CLIENT_NAME, printable(names[split])[present])
                done = int(np.asarray(history.round)[r, e])
                yield Table(seed, done, split, {"client": present, **columns})


class ClientRows:
    """The files of clients' values that a run writes; ``num_evaluations`` is of the whole run."""

    def __init__(
        self,
        directory: pathlib.Path,
        run: str,
        num_evaluations: int,
        names: ClientNames = _NO_NAMES,
    ):
        self._file, self._folder = own(directory / _FILE), own(directory / _FOLDER)
        self._run, self._num_evaluations, self._names = run, num_evaluations, names
        self._csv: HistoryFile | None = None
        self._parts = Mark(0, run)

    def resume(self, confirmed: Mark | None) -> None:
        """Removes the rows after those that a checkpoint confirms; None: all rows."""
        if self._folder.exists():
            self._parts = confirmed or Mark(0, self._run)
            parts, number = _parts(self._folder), self._parts.length
            _read_parts(parts[:number], self._run, confirmed)
            for part in parts[number:]:
                part.unlink()
        elif confirmed is None:
            self._file.unlink(missing_ok=True)
        else:
            self._csv = HistoryFile(self._file, self._run)
            if not _has_names(self._csv.resume(confirmed)):
                self._names = _NO_NAMES  # they identify no run, and its rows go on without

    def mark(self) -> Mark | None:
        """Returns what a checkpoint confirms: bytes of the file or parts, and a digest."""
        if self._csv is not None:
            return self._csv.mark()
        return self._parts if self._parts.length else None

    def append(self, history: History, seeds: Sequence[str]) -> None:
        """Appends a segment's rows, if it has clients' values."""
        splits = _splits(history)
        if not splits:
            return
        metrics = _metrics(splits)
        if self._csv is None and (self._folder.exists() or self._is_large(history, splits)):
            parts = list(tables(history, seeds, self._names))
            self._write_part(parts, metrics, int(np.max(history.round)))
            return
        names = {split: self._names[split] for split in splits if split in self._names}
        columns = _name_column(bool(names), metrics) + metrics
        if self._csv is None:
            self._csv = HistoryFile(self._file, self._run, (*ROW_INDEX, *columns))
            self._csv.create()
        self._csv.append(
            row for table in tables(history, seeds, names) for row in _text_rows(table, columns)
        )

    def _is_large(self, history: History, splits: dict[str, list[tuple[str, str]]]) -> bool:
        clients = sum(history.metrics[names[0][0]].shape[-1] for names in splits.values())
        rows = np.shape(history.round)[0] * self._num_evaluations * clients
        return rows > _MOST_TEXT and importlib.util.find_spec("pyarrow") is not None

    def _write_part(self, parts: list[Table], metrics: Sequence[str], last: int) -> None:
        import pyarrow  # optional
        import pyarrow.parquet

        self._folder.mkdir(exist_ok=True)
        if not parts:
            return
        content = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(_joined(parts, metrics)), content)
        self._parts = _with_part(self._parts, content.getvalue())
        name = f"part-{last:09d}-{self._parts.digest[:_DIGITS]}.parquet"
        with replacing(self._folder / name) as partial:
            partial.write_bytes(content.getvalue())


def _parts(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("part-*.parquet"))


def _with_part(before: Mark, content: bytes) -> Mark:
    digest = hashlib.sha256(before.digest.encode() + content).hexdigest()
    return Mark(before.length + 1, digest)


def _read_parts(parts: Sequence[pathlib.Path], run: str, confirmed: Mark | None) -> list[bytes]:
    """Returns the contents of parts, once their digests are verified."""
    marks, contents = [Mark(0, run)], []
    for path in parts:
        contents.append(path.read_bytes())
        marks.append(_with_part(marks[-1], contents[-1]))
        if not path.stem.endswith(f"-{marks[-1].digest[:_DIGITS]}"):
            raise FolderError(
                f"{path} is damaged or of another run, or a part before it is missing; restore the "
                f"parts from a copy, or delete {path.parent.parent} to run again"
            )
    if confirmed is not None and confirmed not in marks:
        raise FolderError(
            f"{_FOLDER} has {len(parts)} parts; expected the {confirmed.length} that a checkpoint "
            "recorded: restore them from a copy"
        )
    return contents


def has_clients(directory: pathlib.Path) -> bool:
    """Returns True if a run's folder has the clients' values."""
    return (directory / _FILE).exists() or bool(_parts(directory / _FOLDER))


def read_clients(directory: pathlib.Path, run: str, confirmed: Mark | None) -> "pd.DataFrame":
    """Returns the clients' values in a run's folder; a torn last line is left out."""
    pd = import_extra("pandas", "cli")

    if not has_clients(directory):
        raise FolderError(
            f"{directory} has no {_FILE}; expected a run that was evaluated per client"
        )
    if parts := _parts(directory / _FOLDER):
        contents = _read_parts(parts, run, confirmed)
        frames = [pd.read_parquet(io.BytesIO(content)) for content in contents]
        frame = pd.concat(frames, ignore_index=True)
        return frame.fillna({CLIENT_NAME: ""}) if CLIENT_NAME in frame else frame
    content = read(directory / _FILE, run, confirmed)
    texts = ("seed", "split", CLIENT_NAME)
    header = content.partition(b"\n")[0].decode().split(",")
    return pd.read_csv(
        io.BytesIO(content), dtype=dict.fromkeys(texts, str), index_col=False,
        # A client may have the name NA.
        keep_default_na=False,
        na_values={name: ["", "nan"] for name in header if name not in texts},
    )  # fmt: skip


def client_frame(
    history: History, seeds: Sequence[str], names: ClientNames = _NO_NAMES
) -> "pd.DataFrame":
    """Returns the clients' values in a history whose arrays have a leading axis of seeds.

    Columns seed, round, client, split, num_examples, name if clients of a split have names, then a
    column per metric.  There are no rows without an evaluation per client.
    """
    pd = import_extra("pandas", "cli")

    metrics, parts = _metrics(_splits(history)), list(tables(history, seeds, names))
    if not parts:
        return pd.DataFrame(columns=pd.Index([*ROW_INDEX, *metrics]))
    return pd.DataFrame(_joined(parts, metrics))


def of_finite_models(frame: "pd.DataFrame", diverged_at: Mapping[str, int]) -> "pd.DataFrame":
    """Returns the clients' values with NaN in every round of a model that was not finite."""
    if not any(diverged_at.values()):
        return frame
    at = np.array([diverged_at.get(str(seed), 0) for seed in frame["seed"]], int)
    after = (at > 0) & (np.asarray(frame["round"], int) >= at)
    # A model of NaN has values, too, such as the accuracy of one class.
    metrics = [name for name in frame.columns if name not in (*ROW_INDEX, CLIENT_NAME)]
    return frame.assign(**{name: frame[name].mask(after) for name in metrics})


def _joined(parts: Sequence[Table], metrics: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the columns of several tables, one below the other; NaN for a metric that one lacks.

    Joined once: a frame that grows table by table takes quadratic time.
    """
    sizes = [len(table.columns["client"]) for table in parts]
    columns: dict[str, Any] = {
        "seed": np.repeat([table.seed for table in parts], sizes),
        "round": np.repeat([table.round for table in parts], sizes),
        "split": np.repeat([table.split for table in parts], sizes),
    }
    named = _name_column(any(CLIENT_NAME in table.columns for table in parts), metrics)
    for name in ("client", "num_examples", *named, *metrics):
        absent = "" if name in named else np.nan
        columns[name] = np.concatenate(
            [
                table.columns.get(name, np.full(size, absent))
                for table, size in zip(parts, sizes, strict=True)
            ]
        )
    return {name: columns[name] for name in (*ROW_INDEX, *named, *metrics)}


def printable(names: Sequence[str]) -> np.ndarray:
    """Returns names as they stand in a table, with control characters escaped: one line each."""
    texts = map(str, names)
    return np.array([t if t.isprintable() else t.encode("unicode_escape").decode() for t in texts])


def _name_column(present: bool, metrics: Sequence[str]) -> list[str]:
    """Returns the column of names, unless a metric has its name."""
    return [CLIENT_NAME] if present and CLIENT_NAME not in metrics else []


def _has_names(content: bytes) -> bool:
    header = content.partition(b"\n")[0].decode(errors="replace").split(",")
    return header[len(ROW_INDEX) : len(ROW_INDEX) + 1] == [CLIENT_NAME]


def _splits(history: History) -> dict[str, list[tuple[str, str]]]:
    """Returns the metrics of all clients by split: their keys and their names."""
    result: dict[str, list[tuple[str, str]]] = {}
    for key in sorted(history.metrics):
        split, marker, name = f"/{key}".rpartition(f"/{PER_CLIENT}/")
        if marker:
            split = split_of(split.removeprefix("/"))
            result.setdefault(split, []).append((key, name))
    return result


def _metrics(splits: dict[str, list[tuple[str, str]]]) -> list[str]:
    names = {name for pairs in splits.values() for _, name in pairs}
    return sorted(names - {"num_examples"})


def _text_rows(table: Table, metrics: Sequence[str]) -> Iterator[tuple]:
    empty = [""] * len(table.columns["client"])
    values = [table.columns.get(name, empty) for name in metrics]
    clients = zip(table.columns["client"], table.columns["num_examples"], *values, strict=True)
    for client, num_examples, *row in clients:
        fixed = table.seed, table.round, client, table.split, num_examples
        yield *fixed, *(str(value) for value in row)
