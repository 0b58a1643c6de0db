"""``clients.csv`` of a run: a row per seed, evaluated round, client and split.

Metrics ``per_client/NAME``, ``SPLIT/per_client/NAME`` and ``client/SPLIT/per_client/NAME`` are
arrays ``[M]`` (:func:`fedjax_sim.engine.evaluation.client_evaluator` with ``per_client=True``).
They are too many for ``history.csv`` and go to this file, or to the folder ``clients.parquet`` if
there are more than 100,000 rows and pyarrow is installed.  Rows are written before the checkpoint
of their round; resuming removes later rows, and the same rounds, run again, write the same rows.
"""

import csv
import hashlib
import importlib.util
import io
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.engine import History
from fedjax_sim.engine.evaluation.clients import PER_CLIENT
from fedjax_sim.engine.evaluation.names import ClientNames, split_of
from fedjax_sim.runs.history import as_number, due
from fedjax_sim.runs.storage.files import FolderError, own, replacing
from fedjax_sim.runs.storage.history_file import HistoryFile, Mark, check_lines

if TYPE_CHECKING:
    import pandas as pd

INDEX = ("seed", "round", "client", "split", "num_examples")
NAME = "name"  # column after these, if a split has names of clients
_MOST_TEXT = 100_000  # rows in a text file


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
    """Yields the clients' values by round, seed and split.

    Args:
        history: arrays with a leading axis of seeds.
        seeds: names of the seeds.
        names: of the clients, by split.

    Example:
        >>> metrics = {"test/per_client/loss": np.array([[[0.5, 0.0, 2.0]]]),
        ...            "test/per_client/num_examples": np.array([[[4, 0, 1]]])}
        >>> (table,) = tables(History(np.array([[10]]), metrics, {}), ["0"])
        >>> table.seed, table.round, table.split, table.columns["client"].tolist()
        ('0', 10, 'test', [0, 2])
        >>> table.columns["loss"].tolist()
        [0.5, 2.0]
    """
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
                    columns.setdefault(NAME, printable(names[split])[present])
                done = int(np.asarray(history.round)[r, e])
                yield Table(seed, done, split, {"client": present, **columns})


class ClientRows:
    """The files of clients' values in a run's folder."""

    def __init__(
        self, directory: pathlib.Path, num_evaluations: int, names: ClientNames = _NO_NAMES
    ):
        self._file = own(directory / "clients.csv")
        self._folder = own(directory / "clients.parquet")
        self._num_evaluations, self._names = num_evaluations, names
        self._csv: HistoryFile | None = None

    def resume(self, done: int | None) -> None:
        """Removes rows of rounds after ``done``, the round of the checkpoint; None: all rows.

        Raises:
            FolderError: a row was changed, or is none.
        """
        for part in self._folder.glob("part-*.parquet"):
            number = part.stem.removeprefix("part-")
            if number.isdecimal() and (done is None or int(number) > done):
                part.unlink()
        if done is None:
            self._file.unlink(missing_ok=True)
        elif self._file.exists():
            content = _until(self._file, done)
            check_lines(self._file, content)
            if not _has_names(content):  # of an earlier version: its rows go on without
                self._names = _NO_NAMES
            self._csv = HistoryFile(self._file)
            self._csv.resume(Mark(len(content), hashlib.sha256(content).hexdigest()))

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
            self._csv = HistoryFile(self._file, (*INDEX, *columns))
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
        table = pyarrow.table(_joined(parts, metrics))
        with replacing(self._folder / f"part-{last:09d}.parquet") as partial:
            pyarrow.parquet.write_table(table, partial)


def has_clients(directory: pathlib.Path) -> bool:
    """Returns True if a run's folder has the clients' values."""
    parts = (directory / "clients.parquet").glob("part-*.parquet")
    return (directory / "clients.csv").exists() or any(parts)


def read_clients(directory: pathlib.Path) -> "pd.DataFrame":
    """Returns the clients' values in a run's folder; a torn last line is left out.

    Raises:
        FolderError: the folder has none.
    """
    pd = import_extra("pandas", "cli")

    if (folder := directory / "clients.parquet").exists():
        files = sorted(folder.glob("part-*.parquet"))
        parts = [_checked(part, lambda part=part: pd.read_parquet(part)) for part in files]
        if parts:
            frame = pd.concat(parts, ignore_index=True)
            return frame.fillna({NAME: ""}) if NAME in frame else frame
    elif (file := directory / "clients.csv").exists():
        # A kill or a full disk may leave a part of a line, whose last number would be another one.
        whole = file.read_bytes().rpartition(b"\n")[0]
        texts = ("seed", "split", NAME)
        header = whole.partition(b"\n")[0].decode(errors="replace").split(",")
        # index_col: fields beyond the header are an error, not an index in the first column.
        return _checked(
            file,
            lambda: pd.read_csv(
                io.BytesIO(whole), dtype=dict.fromkeys(texts, str), index_col=False,
                # A client may have the name NA.
                keep_default_na=False,
                na_values={name: ["", "nan"] for name in header if name not in texts},
            ),
        )  # fmt: skip
    raise FolderError(
        f"{directory} has no clients.csv; expected a run that was evaluated per client"
    )


def _checked(path: pathlib.Path, read: Callable[[], "pd.DataFrame"]) -> "pd.DataFrame":
    """Returns the clients' values that ``read`` finds in a file.

    Raises:
        FolderError: the file is damaged.
    """
    advice = f"restore it from a copy, or delete {path.parent} to run again"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of rows with more fields than the header
            frame = read()
    except ImportError:  # of pyarrow
        raise
    except Exception as error:  # pandas and pyarrow raise a dozen kinds
        reason = (str(error).splitlines() or [""])[0]
        raise FolderError(f"{path} is damaged ({reason}); {advice}") from error
    if absent := set(INDEX) - set(frame.columns):
        raise FolderError(f"{path} is damaged (it lacks {', '.join(sorted(absent))}); {advice}")
    kinds = {name: "biuf" for name in frame.columns if name not in ("seed", "split", NAME)}
    kinds |= dict.fromkeys(("round", "client"), "iu")
    for name, kind in kinds.items() if len(frame) else ():
        if frame[name].dtype.kind not in kind:
            raise FolderError(f"{path} is damaged ({name} has other values); {advice}")
    return frame


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
        return pd.DataFrame(columns=pd.Index([*INDEX, *metrics]))
    return pd.DataFrame(_joined(parts, metrics))


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
    named = _name_column(any(NAME in table.columns for table in parts), metrics)
    for name in ("client", "num_examples", *named, *metrics):
        absent = "" if name in named else np.nan
        columns[name] = np.concatenate(
            [
                table.columns.get(name, np.full(size, absent))
                for table, size in zip(parts, sizes, strict=True)
            ]
        )
    return {name: columns[name] for name in (*INDEX, *named, *metrics)}


def printable(names: Sequence[str]) -> np.ndarray:
    """Returns names as they stand in a table, with control characters escaped: one line each.

    Example:
        >>> printable(["hospital 0", "a\\nb"]).tolist()
        ['hospital 0', 'a\\\\nb']
    """
    texts = map(str, names)
    return np.array([t if t.isprintable() else t.encode("unicode_escape").decode() for t in texts])


def _name_column(present: bool, metrics: Sequence[str]) -> list[str]:
    """Returns the column of names, unless a metric has its name."""
    return [NAME] if present and NAME not in metrics else []


def _has_names(content: bytes) -> bool:
    header = content.partition(b"\n")[0].decode(errors="replace").split(",")
    return header[len(INDEX) : len(INDEX) + 1] == [NAME]


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


def _until(path: pathlib.Path, done: int) -> bytes:
    """Returns the whole lines of rounds up to ``done``; rows are ordered by round.

    Raises:
        FolderError: a whole line is no row.
    """
    content, length = path.read_bytes(), 0
    for number, line in enumerate(content.split(b"\n")[:-1]):  # the last one is torn, or empty
        fields = next(csv.reader([line.decode(errors="replace")]), [])
        if number and (len(fields) < len(INDEX) or not fields[1].isdecimal()):
            raise FolderError(
                f"{path}, line {number + 1}: {line[:80]!r}; expected {','.join(INDEX)}, ...: "
                f"restore it from a copy, or delete {path.parent} to run again"
            )
        if number and int(fields[1]) > done:
            break
        length += len(line) + 1
    return content[:length]
