"""``fedjax-sim list``: the names that options take, and an algorithm's hyper-parameters."""

from collections.abc import Iterator

from rich.table import Table

from fedjax_sim import datasets
from fedjax_sim.cli import docstrings, names, registry


def list_tables() -> Iterator[Table]:
    """Yields the names that options take: algorithms, data sets, models, partitions, presets."""
    table = Table("algorithm", "hyper-parameters and defaults", "paper")
    for name in registry.ALGORITHMS:
        defaults = registry.hyper_defaults(name)
        settings = [f"{key}={_shown(value)}" for key, value in defaults.items()]
        table.add_row(name, " ".join(settings), docstrings.paper(name))
    yield table
    table = Table("data set", "source")
    for name in datasets.NAMES:
        table.add_row(name, "scikit-learn" if name == "digits" else "--data-dir or FEDJAX_SIM_DATA")
    yield table
    table = Table("model", "shape of the examples")
    for name, (shape, _) in names.MODELS.items():
        table.add_row(name, "any" if shape is None else " x ".join(map(str, shape)))
    yield table
    table = Table("partition", "clients' examples")
    for name, (description, _) in names.PARTITIONS.items():
        table.add_row(name, description)
    yield table
    table = Table("preset", "algorithms", "data set")
    for name, preset in names.PRESETS.items():
        table.add_row(name, " ".join(preset.algorithms), preset.dataset)
    yield table


def algorithm_table(name: str) -> Table:
    """Returns an algorithm's hyper-parameters: names, defaults and descriptions.

    Example:
        >>> table = algorithm_table("fedprox")
        >>> list(table.columns[0].cells), list(table.columns[1].cells)
        (['lr', 'mu'], ['0.2', '0.1'])
    """
    table = Table("hyper-parameter", "default", "description", title=docstrings.summary(name))
    described = docstrings.descriptions(name)
    for key, default in registry.hyper_defaults(name).items():
        table.add_row(key, _shown(default), described.get(key, ""))
    return table


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
