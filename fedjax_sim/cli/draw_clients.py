"""``fedjax-sim clients``: the clients of a comparison before anything is trained."""

from typing import Annotated

import numpy as np
from rich.table import Table

from fedjax_sim.cli.report import write_all
from fedjax_sim.data import FederatedData, label_counts, summarize
from fedjax_sim.datasets import Dataset
from fedjax_sim.reports import figures as plotting
from fedjax_sim.studies.setups import (
    OPEN,
    Clients,
    Count,
    NoShift,
    Run,
    Study,
    check_study,
    clients_of,
    group,
    load_dataset,
    of_seed,
)

DESCRIPTION = """\
Divides the data set of PRESET, one of {presets} (default quickstart), or of a CONFIG.json among the
clients, as fedjax-sim run does with the same options, prints a summary and draws figures. Trains
nothing."""


@group
class ClientsOptions:
    """Options of ``fedjax-sim clients``."""

    run: Annotated[Run, OPEN]
    max_clients: Count = 100
    """Largest number of clients in the map of labels."""


def draw(study: Study, max_clients: int) -> tuple[Table, list[str]]:
    """Draws the clients to the output folder; returns a table and the names of the figures.

    They are labels.png, sizes.png, and with a shift of images examples.png.  With a partition per
    seed the clients are those of the first seed.
    """
    check_study(study)
    if study.options.population.partition_per_seed:
        study = of_seed(study, study.options.seed)
    dataset = load_dataset(study)
    if dataset is None:
        raise ValueError("setup is a study module's; expected data by options or of the study")
    result, run = clients_of(study, dataset), study.options
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
    if not isinstance(run.shift, NoShift) and np.ndim(result.data.examples["x"]) in (3, 4):
        drawn["examples.png"] = plotting.client_examples(result.data)
    run.output.mkdir(parents=True, exist_ok=True)
    write_all(run.output, drawn)
    kind = run.partition.kind if study.rows is None else "of the study module"
    return _table(f"{dataset.name}, partition {kind}", run, dataset, result), list(drawn)


def _parts(result: Clients) -> tuple[FederatedData, FederatedData | None]:
    """Returns the training examples of the clients that train, and all of the others."""
    return result.data, result.held_out


def _short_names(dataset: Dataset) -> tuple[str, ...] | None:
    """Returns the classes' names if they fit beside a map."""
    names = dataset.class_names
    fits = names is not None and len(names) <= 20 and max(map(len, names)) <= 15
    return names if fits else None


def _table(title: str, run: Run, dataset: Dataset, result: Clients) -> Table:
    table = Table("clients", "", title=title)
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
    if not isinstance(run.shift, NoShift):
        rows["shift"] = run.shift.kind
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table
