"""Data sets of the Hugging Face Hub, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.columns import Encode
from fedjax_sim.datasets.dataset import DataError, Dataset, check_listed
from fedjax_sim.datasets.features import Layout, Scale
from fedjax_sim.datasets.tables import LABELS, from_table
from fedjax_sim.datasets.targets import Target

# Names of the labels' columns on the Hub, besides those of any table: CIFAR-100's and FEMNIST's.
_LABELS = ("fine_label", "character")


def from_hub(
    path: str,
    name: str | None = None,
    *,
    revision: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    feature_columns: str | Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    scale: Scale | None = None,
    layout: Layout | None = None,
    target: Target | None = None,
    encode: Encode | None = None,
) -> Dataset:
    """Returns a data set of the Hugging Face Hub (the package ``datasets``, extra ``huggingface``).

    The package keeps data sets in its cache and downloads what the cache lacks; without a network,
    or with ``HF_HUB_OFFLINE=1``, the cache alone counts.

    Args:
        path: name on the Hub, such as ``"uoft-cs/cifar100"``, or a folder of Parquet or CSV files.
        name: configuration, of a data set that has several.
        revision: commit or tag on the Hub; default: the newest that the package finds.
        train_split: split of the training examples.
        test_split: split of the test examples; default: "test" if there is one, else a part of the
            training examples, see :func:`~fedjax_sim.datasets.from_table`.
        label_column: default: ``y``, ``label``, ``fine_label`` (CIFAR-100) or ``character``
            (FEMNIST).
        client_column: column of the client of each example, such as FEMNIST's ``writer_id``;
            default: no natural clients.
        feature_columns, drop, scale, layout, target, encode: as for
            :func:`~fedjax_sim.datasets.from_table`.

    Raises:
        DataError: a data set that is neither in the cache nor within reach, a split that it lacks;
            as :func:`~fedjax_sim.datasets.from_table`.
        ImportError: the package is not installed.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = "a,site,label\\n1,x,0\\n3,y,1\\n5,x,0\\n7,y,1\\n"
        ...     _ = pathlib.Path(folder, "train.csv").write_text(rows)
        ...     from_hub(folder, client_column="site").group_names
        ('x', 'y')
    """
    library = import_extra("datasets", "huggingface")
    try:
        parts = library.load_dataset(path, name, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        arguments = ", ".join(map(repr, (path, *([] if name is None else [name]))))
        raise DataError(
            f"path is {path!r}: {reason}; expected a data set in the cache or within reach: on a "
            f"machine with a network, datasets.load_dataset({arguments}) fills the cache, which "
            "the environment variable HF_HOME names"
        ) from error
    test = test_split if test_split is not None or "test" not in parts else "test"
    for option, split in (("train_split", train_split), ("test_split", test)):
        if split is not None:
            check_listed(option, split, list(parts), f"the splits of {path}")
    names = parts[train_split].column_names
    if label_column is None and not set(LABELS) & set(names):
        label_column = next((label for label in _LABELS if label in names), None)
    tables: dict[str, Any] = {"table": parts[train_split]}
    if test is not None:
        tables["test"] = parts[test]
    return from_table(
        **tables,
        label_column=label_column,
        client_column=client_column,
        feature_columns=feature_columns,
        drop=drop,
        scale=scale,
        layout=layout,
        target=target,
        encode=encode,
        name=path.rstrip("/").rpartition("/")[2],
    )
