"""Columns of tables of several libraries."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.data import missing, with_nan
from fedjax_sim.datasets.dataset import DataError


class Columns(NamedTuple):
    """A table whose columns are read when they are needed."""

    names: list[str]
    read: Callable[[str], np.ndarray]
    is_missing: Callable[[str], np.ndarray]  # rows without a value
    is_array: Callable[[str], bool]  # an array per row
    class_names: Callable[[str], Sequence[str] | None]  # of labels that are positions among them
    categories: Callable[[str], Sequence[Any] | None] = lambda name: (
        None
    )  # declared, in their order


def columns_of(table: Any) -> Columns:
    """Returns the columns of a dict of arrays, or of a table of pandas, pyarrow or Hugging Face."""
    if hasattr(table, "column_names") and hasattr(table, "with_format"):  # Hugging Face

        def read(name: str) -> np.ndarray:
            return np.asarray(table.select_columns([name]).with_format("numpy")[:][name])

        def names_of(name: str) -> Sequence[str] | None:
            return getattr(table.features[name], "names", None)

        def is_array(name: str) -> bool:
            return len(table) > 0 and np.ndim(table.with_format("numpy")[0][name]) > 0

        names = list(table.column_names)
        return Columns(names, read, lambda name: missing(read(name)), is_array, names_of)
    if hasattr(table, "column_names") and hasattr(table, "to_pandas"):  # pyarrow
        check_names("table", list(table.column_names))
        table = table.to_pandas()
    if hasattr(table, "columns") and hasattr(table, "isna"):  # pandas
        check_names("table", [str(name) for name in table.columns])
        by_name = {str(name): table[name] for name in table.columns}
        return Columns(
            list(by_name),
            lambda name: by_name[name].to_numpy(),
            lambda name: by_name[name].isna().to_numpy(),
            lambda name: len(table) > 0 and np.ndim(by_name[name].iloc[0]) > 0,
            lambda name: None,
            lambda name: getattr(getattr(by_name[name], "cat", None), "categories", None),
        )
    if isinstance(table, Mapping):
        check_names("table", [str(name) for name in table])
        given = {str(name): values for name, values in table.items()}
        arrays = {name: _column(name, values) for name, values in given.items()}
        return Columns(
            list(arrays),
            arrays.__getitem__,
            lambda name: missing(given[name]),
            lambda name: arrays[name].ndim > 1,
            lambda name: None,
        )
    raise DataError(
        f"table is {type(table).__name__}; expected a dict of arrays, a pandas DataFrame, a "
        "pyarrow.Table or a data set of Hugging Face"
    )


def _column(name: str, values: Any) -> np.ndarray:
    try:
        array = with_nan(values)
    except ValueError as error:
        raise DataError(
            f"table: column {name!r} is ragged; expected rows of one shape (lists of tokens: "
            "from_tokens)"
        ) from error
    if array.ndim == 0:
        raise DataError(f"table: column {name!r} is one value; expected one per example")
    return array


def without(where: str, table: Columns, drop: Sequence[str], *, some: bool = False) -> Columns:
    """Returns a table without some columns, of which it may lack some if ``some`` is True."""
    for name in drop:
        if name not in table.names and not some:
            raise DataError(
                f"drop is {name!r}; expected one of {', '.join(table.names)}, the columns of "
                f"{where}{did_you_mean(name, table.names)}"
            )
    return table._replace(names=[name for name in table.names if name not in drop])


def check_names(where: object, names: Sequence[str]) -> None:
    """Refuses columns without a name, and two columns of one name."""
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(
                f"{where}: column {number} has no name; expected one (pandas' to_csv writes row "
                f"numbers without a name unless index=False; drop='Unnamed: {number - 1}' leaves "
                "them out)"
            )
        if name in names[: number - 1]:
            raise DataError(f"{where}: column {name!r} occurs twice; expected distinct names")
