"""``fedjax-sim list``: the names that options take, and an algorithm's hyper-parameters."""

import inspect
from collections.abc import Iterator, Sequence

from rich.table import Table

from fedjax_sim import datasets, models
from fedjax_sim.cli import docstrings
from fedjax_sim.datasets import data_folder, folder_of
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    OPEN,
    PRESETS,
    AlgorithmEntry,
    Run,
    fields_of,
    flat,
    kind_of,
)


def list_tables() -> Iterator[Table]:
    """Yields the names that options take: algorithms, data sets, models, partitions, presets."""
    table = Table("algorithm", "hyper-parameters and defaults", "paper")
    entries = ALGORITHMS
    for name, entry in entries.items():
        settings = [f"{key}={_shown(value)}" for key, value in entry.hyper_defaults.items()]
        table.add_row(name, " ".join(settings), docstrings.paper(entry))
    yield table
    table = Table(
        "data set",
        "source",
        caption=f"searched in {data_folder()} (--data-dir or FEDJAX_SIM_DATA)",
    )
    for name in datasets.NAMES:
        table.add_row(name, _source(name))
    yield table
    table = Table("model", "shape of the examples")
    for name, (shape, _) in models.MODELS.items():
        table.add_row(name, "any" if shape is None else " x ".join(map(str, shape)))
    yield table
    for field in fields_of(Run):
        if len(field.alternatives) > 1:
            yield _choices(field.name, field.alternatives, OPEN in field.marks)
    table = Table("preset", "algorithms", "data set")
    for name, preset in PRESETS.items():
        values = flat(preset)
        table.add_row(name, " ".join(values["algorithms"]), values["dataset"])
    yield table


def _choices(name: str, kinds: Sequence[type], is_open: bool) -> Table:
    """Returns the kinds of a choice: the word that is typed, its flags, and what it does."""
    table = Table(name.replace("_", "-"), "flags", "")
    before = "--" if is_open else f"--{name.replace('_', '-')}."
    for kind in kinds:
        flags = [before + field.name.replace("_", "-") for field in fields_of(kind)]
        text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        word = f"{name}:{kind_of(kind)}".replace("_", "-")
        table.add_row(word, " ".join(flags) or "none", text)
    return table


def _source(name: str) -> str:
    if name == "digits":
        return "scikit-learn"
    folder = folder_of(name)
    return "not found" if folder is None else f"found in {folder}"


def algorithm_table(entry: AlgorithmEntry) -> Table:
    """Returns an algorithm's hyper-parameters: names, defaults and descriptions."""
    table = Table("hyper-parameter", "default", "description", title=docstrings.summary(entry))
    described = docstrings.descriptions(entry)
    for key, default in entry.hyper_defaults.items():
        table.add_row(key, _shown(default), described.get(key, ""))
    return table


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
