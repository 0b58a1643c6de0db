"""``fedjax-sim clients``: the clients of a comparison before anything is trained."""

import dataclasses
import pathlib

import numpy as np
from rich.table import Table

from fedjax_sim.cli.report import write_all
from fedjax_sim.data import FederatedData, label_counts, summarize
from fedjax_sim.datasets import Dataset
from fedjax_sim.reports import figures as plotting
from fedjax_sim.studies.setups.build import check, of_seed
from fedjax_sim.studies.setups.clients import Clients
from fedjax_sim.studies.setups.clients import clients as divide
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.own_objects import load_dataset

DESCRIPTION = """\
Divides the data set of PRESET, one of {presets} (default quickstart), or of a CONFIG.json among the
clients, as fedjax-sim run does with the same options, prints a summary and draws figures. Trains
nothing."""


@dataclasses.dataclass(frozen=True)
class ClientsOptions(RunConfig):
    """Options of ``fedjax-sim clients``."""

    output: pathlib.Path = pathlib.Path("results/clients")
    """Folder for the figures: labels.png, sizes.png, and with --feature-shift examples.png."""
    max_clients: int = 100
    """Largest number of clients in the map of labels."""


def draw(config: RunConfig, max_clients: int) -> tuple[Table, list[str]]:
    """Draws the clients to ``config.output``; returns a table and the names of the figures.

    With a partition per seed they are those of the first seed.

    Raises:
        ValueError: options or data as for a comparison.
    """
    check(config)
    if config.partition_per_seed:
        config = of_seed(config, config.seed)
    dataset = load_dataset(config)
    result = divide(config, dataset)
    trained, held_out = _parts(result)
    drawn = {"sizes.png": plotting.size_histogram(trained)}
    if dataset.target == "classes":
        counts = [label_counts(data, dataset.num_classes) for data in (trained, held_out) if data]
        labels = plotting.client_label_map(
            np.concatenate(counts),
            _short_names(dataset),
            max_clients=max_clients,
            held_out=0 if held_out is None else held_out.num_clients,
        )
        drawn = {"labels.png": labels, **drawn}
    if config.feature_shift != "none" and np.ndim(result.data.examples["x"]) in (3, 4):
        drawn["examples.png"] = plotting.client_examples(result.data)
    config.output.mkdir(parents=True, exist_ok=True)
    write_all(config.output, drawn)
    return _table(config, dataset, result), list(drawn)


def _parts(result: Clients) -> tuple[FederatedData, FederatedData | None]:
    """Returns the training examples of the clients that train, and all of the others."""
    return result.data, result.held_out


def _short_names(dataset: Dataset) -> tuple[str, ...] | None:
    """Returns the classes' names if they fit beside a map."""
    names = dataset.class_names
    fits = names is not None and len(names) <= 20 and max(map(len, names)) <= 15
    return names if fits else None


def _table(config: RunConfig, dataset: Dataset, result: Clients) -> Table:
    table = Table("clients", "", title=f"{dataset.name}, partition {config.partition}")
    summary = summarize(result.data, dataset.num_classes)
    rows: dict[str, object] = {
        "clients that train": summary.num_clients,
        "training examples": f"{summary.num_examples:,}",
        "training examples per client": summary.sizes,
    }
    if summary.classes is not None:
        rows["classes per client"] = summary.classes
        rows["label distance"] = f"{summary.label_distance:.3f} (0: equal)"
    rows |= {
        "test examples": f"{len(result.test['y']):,}",
    }
    if result.test_of_clients is not None:
        sizes = np.asarray(result.test_of_clients.sizes)
        rows["test examples per client"] = f"{sizes.min()} .. {sizes.max()}"
    if result.valid is not None:
        rows["validation examples"] = f"{len(result.valid['y']):,}"
    if result.held_out is not None:
        rows["clients that never train"] = result.held_out.num_clients
    if config.feature_shift != "none":
        rows["feature shift"] = config.feature_shift
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table
