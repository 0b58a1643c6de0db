"""Options of the data set: by name, of a hub, a table, a plain text, or generated examples."""

import pathlib
from typing import Annotated, Literal

import numpy as np
import pydantic

from fedjax_sim import datasets
from fedjax_sim.datasets import Dataset, from_hub, read_table, read_text
from fedjax_sim.runs import arrays_digest
from fedjax_sim.studies.setups.fields import Count, NotNegative, group, without

_TEST_EXAMPLES = 10_000  # of generated data


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
class HuggingFace:
    """A data set of the Hugging Face Hub, from the local cache or downloaded by its library."""

    hub: str
    """Name on the Hub, such as uoft-cs/cifar100, or a folder of Parquet or CSV files."""
    configuration: str | None = None
    """Configuration, of a data set that has several."""
    revision: str | None = None
    """Commit or tag on the Hub; default: the newest within reach."""
    train_split: str = "train"
    """Split of the training examples."""
    test_split: str | None = None
    """Split of the test examples; default: test if there is one, else a fifth of the others."""
    label_column: str | None = None
    """Column with the labels, numbers or text; default: y, label, fine_label or character."""
    client_column: str | None = None
    """Column with the client of each example; requires partition:natural; default: none."""
    drop: tuple[str, ...] = ()
    """Columns that are no features."""
    scale: Literal["none", "unit", "standardise"] | None = None
    """Scale of the features: as they are, pixels divided by 255, or mean 0 and deviation 1 of the
    training examples; default: none, with a warning where another one is likely."""
    target: Literal["classes", "numbers"] | None = None
    """Kind of the labels; default: as their type says, if it does."""
    encode: Literal["one_hot"] | None = None
    """Encoding of columns with text; default: such columns are refused."""
    kind: Literal["huggingface"] = "huggingface"


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


Data = Annotated[
    Named | Table | HuggingFace | Text | Generated, pydantic.Field(discriminator="kind")
]


def load(options: Data, num_clients: int, seed: int, *, numbers: bool = False) -> Dataset:
    """Returns the data set."""
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
        case HuggingFace():
            reading = without(options, "hub", "configuration", "kind", "target")
            target = options.target or ("numbers" if numbers else None)
            return from_hub(options.hub, options.configuration, target=target, **reading)
        case Table():
            reading = without(options, "table", "kind", "target")
            target = options.target or ("numbers" if numbers else None)
            return read_table(options.table, target=target, **reading)


def generated(options: Generated, num_clients: int, seed: int) -> Dataset:
    """Returns examples whose labels are those of a linear model per client.

    Client i has the mean m_i ~ N(0, s_x^2 I) of its features x ~ N(m_i, I) and the model
    W_i = W + s_w V_i with standard normal W and V_i; the label of x is the largest entry of W_i x.
    The test examples are further ones of the same clients, as many of each, about 10,000 in all:
    of every client, or of 10,000 of them, which are a sample since all clients have one law.
    """
    random = np.random.default_rng(seed)
    M, n, d, K = num_clients, options.examples, options.features, options.classes
    tested = min(M, _TEST_EXAMPLES)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32)

    common, means = normal(K, d), np.float32(options.feature_spread) * normal(M, 1, d)
    parts = [normal(M, n, d), normal(tested, _TEST_EXAMPLES // tested, d)]
    for x in parts:
        x += means[: len(x)]
    scores = [x.reshape(-1, d) @ common.T for x in parts]
    for k in range(K):  # one class at a time, so that a million clients need little memory
        own = np.float32(options.model_spread) * normal(M, d)
        for x, score in zip(parts, scores, strict=True):
            score[:, k] += np.einsum("mnd,md->mn", x, own[: len(x)]).ravel()
    train, test = (
        {"x": x.reshape(-1, d), "y": score.argmax(-1).astype(np.int32)}
        for x, score in zip(parts, scores, strict=True)
    )
    owners = [np.repeat(np.arange(len(x), dtype=np.int32), x.shape[1]) for x in parts]
    width = len(str(M - 1))
    return Dataset(
        name="generated",
        source=f"seed {seed}",
        train=train,
        test=test,
        num_classes=K,
        train_groups=owners[0],
        test_groups=owners[1],
        group_names=tuple(f"{i:0{width}}" for i in range(M)),  # sorted as numbers and as text
    )


def examples_digest(dataset: Dataset | None) -> str | None:
    """Returns a digest of the examples, which the options may not name; None without a data set."""
    if dataset is None:
        return None
    return arrays_digest((dataset.train, dataset.test, dataset.train_groups, dataset.test_groups))
