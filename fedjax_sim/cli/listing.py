"""``fedjax-sim list``: the names that options take, and an algorithm's hyper-parameters."""

import inspect
from collections.abc import Iterator

from rich.table import Table

from fedjax_sim import datasets, models
from fedjax_sim.cli import docstrings
from fedjax_sim.datasets import data_folder, folder_of
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    PRESETS,
    AlgorithmEntry,
    Field,
    Run,
    Study,
    algorithms_of,
    fields_of,
    flat,
    kind_of,
    names_of,
)


def list_tables(study: Study) -> Iterator[Table]:
    """Yields the names that options take: algorithms, data sets, models, partitions, presets."""
    table = Table("algorithm", "hyper-parameters and defaults", "paper")
    names = dict.fromkeys([*study.algorithms, *ALGORITHMS])
    for name, entry in algorithms_of([*names], study.algorithms).items():
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
    for name, field in names_of(Run).items():
        if len(field.alternatives) > 1:
            yield _choices(name, field)
    table = Table("preset", "algorithms", "data set")
    for name, preset in PRESETS.items():
        values = flat(preset)
        table.add_row(name, " ".join(values["algorithms"]), values["dataset"])
    yield table


def _choices(name: str, choice: Field) -> Table:
    """Returns the kinds of a choice: the word that is typed, its options, and what it does."""
    table = Table(name.replace("_", "-"), "flags", "")
    before = "" if choice.is_open else f"{name}."
    for kind in choice.alternatives:
        flags = [
            f"{before}{field.name}:KIND" if field.alternatives else f"--{before}{field.name}"
            for field in fields_of(kind)
        ]
        text = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
        word = f"{name}:{kind_of(kind)}".replace("_", "-")
        table.add_row(word, " ".join(flags).replace("_", "-") or "none", text)
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
