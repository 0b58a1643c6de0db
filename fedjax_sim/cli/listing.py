"""``fedjax-sim list``: the names that options take, and an algorithm's hyper-parameters."""

from collections.abc import Collection, Iterator

from rich.table import Table

from fedjax_sim import datasets, models
from fedjax_sim.cli import docstrings
from fedjax_sim.datasets import data_folder, folder_of
from fedjax_sim.studies.setups import names, registry
from fedjax_sim.studies.setups.aggregators import MIXING, RULES, described, hyper_parameters
from fedjax_sim.studies.setups.attacks import ATTACKS
from fedjax_sim.studies.setups.codecs import CODECS
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.studies.setups.partitions import PARTITIONS
from fedjax_sim.studies.setups.references import installed


def list_tables() -> Iterator[Table]:
    """Yields the names that options take: algorithms, data sets, models, partitions, presets."""
    table = Table("algorithm", "hyper-parameters and defaults", "paper")
    others = installed("algorithms", registry.GROUP, registry.ALGORITHMS)
    entries = registry.ALGORITHMS | registry.algorithms_of(list(others))
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
    yield _with_installed(table, "dataset", "datasets", datasets.NAMES)
    table = Table("model", "shape of the examples")
    for name, (shape, _) in models.MODELS.items():
        table.add_row(name, "any" if shape is None else " x ".join(map(str, shape)))
    yield _with_installed(table, "model", "models", models.MODELS)
    table = Table("partition", "clients' examples")
    for name, (description, _) in PARTITIONS.items():
        table.add_row(name, description)
    yield _with_installed(table, "partition", "partitions", PARTITIONS)
    table = Table("sampling", "clients per round")
    for name, (description, _) in names.SAMPLINGS.items():
        table.add_row(name, description)
    yield table
    table = Table("compress", "what is sent", "number")
    for name, codec in CODECS.items():
        table.add_row(name, codec.description, codec.number or "none")
    yield table
    table = Table("aggregator", "hyper-parameters")
    for name, rule in {**RULES, **{f"{name}+": rule for name, rule in MIXING.items()}}.items():
        table.add_row(name, described(hyper_parameters(rule)))
    yield table
    table = Table("attack", "what attackers send, or do", "number, default")
    for name, attack in ATTACKS.items():
        table.add_row(name, attack.description, attack.number or "none")
    yield table
    table = Table("preset", "algorithms", "data set")
    for name, preset in names.PRESETS.items():
        table.add_row(name, " ".join(preset.algorithms), preset.dataset)
    yield table


def _source(name: str) -> str:
    if name == "digits":
        return "scikit-learn"
    folder = folder_of(name)
    return "not found" if folder is None else f"found in {folder}"


def _with_installed(table: Table, option: str, group: str, known: Collection[str]) -> Table:
    """Adds the rows of other packages."""
    for name, reference in installed(option, group, known).items():
        table.add_row(name, f"of {reference.function.__module__}")
    return table


def algorithm_table(entry: AlgorithmEntry) -> Table:
    """Returns an algorithm's hyper-parameters: names, defaults and descriptions.

    Example:
        >>> table = algorithm_table(registry.ALGORITHMS["fedprox"])
        >>> list(table.columns[0].cells), list(table.columns[1].cells)
        (['lr', 'mu'], ['0.2', '0.1'])
    """
    table = Table("hyper-parameter", "default", "description", title=docstrings.summary(entry))
    described = docstrings.descriptions(entry)
    for key, default in entry.hyper_defaults.items():
        table.add_row(key, _shown(default), described.get(key, ""))
    return table


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
