"""Options of the data set: one by name, a table, a plain text, or generated examples."""

import pathlib
from typing import Annotated, Literal

import numpy as np
import pydantic

from fedjax_sim import datasets
from fedjax_sim.datasets import Dataset, read_table, read_text
from fedjax_sim.studies.setups.fields import Count, NotNegative, group


@group
class Named:
    """A data set by name (see fedjax-sim list)."""

    dataset: str = "digits"
    """Name of the data set."""
    data_dir: pathlib.Path | None = None
    """Folder with the data set's files; default: the environment variable FEDJAX_SIM_DATA."""
    kind: Literal["named"] = "named"


@group
class Table:
    """A table: .csv, .tsv, .parquet or .npz, with a row per example."""

    table: pathlib.Path
    """File of the table."""
    label_column: str | None = None
    """Column with the labels, numbers or text; default: y or label."""
    client_column: str | None = None
    """Column with the client of each example; requires partition:natural; default: none."""
    drop: tuple[str, ...] = ()
    """Columns that are no features."""
    scale: Literal["none", "unit", "standardise"] | None = None
    """Scale of the features: as they are, pixels divided by 255, or mean 0 and deviation 1 of the
    training examples; default: none, with a warning where another one is likely."""
    layout: Literal["as_given", "channels_first", "channels_last"] | None = None
    """Order of the axes of images in an .npz; default: as the shape says, if it does."""
    target: Literal["classes", "numbers"] | None = None
    """Kind of the labels; default: as their type says, if it does."""
    encode: Literal["one_hot"] | None = None
    """Encoding of columns with text; default: such columns are refused."""
    separator: str | None = None
    """Separator of the fields of a CSV file; default: comma, semicolon or tab, as its first line
    has it."""
    decimal: Literal[".", ","] = "."
    """Decimal sign of a CSV file."""
    kind: Literal["table"] = "table"


@group
class Text:
    """A plain text (UTF-8); examples are windows with the next character as the label, best with
    partition:contiguous."""

    text: pathlib.Path
    """File of the text."""
    context: Count = 80
    """Characters of an example."""
    kind: Literal["text"] = "text"


@group
class Generated:
    """Examples of linear models that differ between clients, for any number of clients; with
    partition:natural each client has its own."""

    features: Count = 20
    """Features of an example."""
    classes: Count = 2
    """Number of classes."""
    examples: Count = 10
    """Training examples per client."""
    model_spread: NotNegative = 0.5
    """Standard deviation between clients of the model that gives the labels."""
    feature_spread: NotNegative = 0.5
    """Standard deviation between clients of the mean of the features."""
    kind: Literal["generated"] = "generated"


Data = Annotated[Named | Table | Text | Generated, pydantic.Field(discriminator="kind")]


def load(options: Data, num_clients: int, seed: int, *, numbers: bool = False) -> Dataset:
    """Returns the data set.

    Args:
        options: the options.
        num_clients: of generated examples.
        seed: of generated examples.
        numbers: the loss is one of numbers, which decides the target of a table.

    Raises:
        ValueError: an unknown name, files that are missing or malformed.
    """
    match options:
        case Named():
            try:
                return datasets.load(options.dataset, options.data_dir)
            except ValueError as error:  # of an unknown name
                text = str(error)
                if not text.startswith("name is"):
                    raise
                raise ValueError(f"dataset{text.removeprefix('name')}") from error
        case Text():
            return read_text(options.text, context=options.context)
        case Generated():
            return generated(options, num_clients, seed)
        case Table():
            return read_table(
                options.table,
                label_column=options.label_column,
                client_column=options.client_column,
                drop=options.drop,
                scale=options.scale,
                layout=options.layout,
                target=options.target or ("numbers" if numbers else None),
                encode=options.encode,
                separator=options.separator,
                decimal=options.decimal,
            )


def generated(options: Generated, num_clients: int, seed: int) -> Dataset:
    """Returns examples whose labels are those of a linear model per client.

    Client i has the mean m_i ~ N(0, s_x^2 I) of its features x ~ N(m_i, I) and the model
    W_i = W + s_w V_i with standard normal W and V_i; the label of x is the largest entry of W_i x.
    The test examples are one further example of each of at most 10,000 clients.

    Args:
        options: sizes, and the deviations s_x and s_w between clients.
        num_clients: M.
        seed: of all draws.

    Example:
        >>> data = generated(Generated(features=3, examples=4), num_clients=5, seed=0)
        >>> data.train["x"].shape, data.test["x"].shape, data.num_classes
        ((20, 3), (5, 3), 2)
    """
    random = np.random.default_rng(seed)
    M, n, d, K = num_clients, options.examples, options.features, options.classes
    common = random.standard_normal((K, d), np.float32)
    x = random.standard_normal((M, n + 1, d), np.float32)
    x += np.float32(options.feature_spread) * random.standard_normal((M, 1, d), np.float32)
    scores = np.einsum("mnd,kd->mnk", x, common)
    for k in range(K):  # one class at a time, so that a million clients need little memory
        own = random.standard_normal((M, d), np.float32)
        scores[..., k] += np.float32(options.model_spread) * np.einsum("mnd,md->mn", x, own)
    y = scores.argmax(-1).astype(np.int32)
    tested = min(M, 10_000)
    names = tuple(map(str, range(M)))
    return Dataset(
        name="generated",
        source=f"seed {seed}",
        train={"x": x[:, :n].reshape(M * n, d), "y": y[:, :n].reshape(M * n)},
        test={"x": x[:tested, n], "y": y[:tested, n]},
        num_classes=K,
        train_groups=np.repeat(np.arange(M, dtype=np.int32), n),
        group_names=names,
    )
