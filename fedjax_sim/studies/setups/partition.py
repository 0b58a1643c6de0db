"""Options of the division of the training examples among the clients."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic

from fedjax_sim.data import partition
from fedjax_sim.datasets import Dataset
from fedjax_sim.studies.setups.fields import Concentration, Count, NotNegative, group
from fedjax_sim.studies.setups.own_code import own_code

Rows = Sequence[np.ndarray]  # of each client


@group
class Dirichlet:
    """Labels of each client Dirichlet(alpha), on average as in the data; equal sizes."""

    alpha: Concentration = 0.1
    """Concentration; smaller is more heterogeneous."""
    kind: Literal["dirichlet"] = "dirichlet"


@group
class DirichletByClass:
    """Each label split Dirichlet(alpha) over the clients; ragged sizes."""

    alpha: Concentration = 0.1
    """Concentration; smaller is more heterogeneous."""
    kind: Literal["dirichlet-by-class"] = "dirichlet-by-class"


@group
class Iid:
    """At random; equal sizes."""

    kind: Literal["iid"] = "iid"


@group
class Contiguous:
    """Consecutive examples, such as the parts of a text; equal sizes."""

    kind: Literal["contiguous"] = "contiguous"


@group
class Classes:
    """A number of labels each; equal sizes."""

    classes_per_client: Count = 2
    """Labels per client."""
    kind: Literal["classes"] = "classes"


@group
class LabelQuantity:
    """A number of labels each, divided equally; ragged sizes."""

    classes_per_client: Count = 2
    """Labels per client."""
    kind: Literal["label-quantity"] = "label-quantity"


@group
class Shards:
    """A number of shards of the sorted examples each; equal sizes."""

    classes_per_client: Count = 2
    """Shards per client."""
    kind: Literal["shards"] = "shards"


@group
class Pachinko:
    """Coarse labels Dirichlet(alpha), labels in them Dirichlet(fine_alpha); equal sizes."""

    alpha: Concentration = 0.1
    """Concentration of the coarse labels."""
    fine_alpha: Concentration = 10.0
    """Concentration of the labels within a coarse one."""
    kind: Literal["pachinko"] = "pachinko"


@group
class Quantity:
    """Labels at random; sizes Dirichlet(alpha)."""

    alpha: Concentration = 0.1
    """Concentration of the sizes."""
    kind: Literal["quantity"] = "quantity"


@group
class Exponential:
    """Labels at random; sizes exponential."""

    kind: Literal["exponential"] = "exponential"


@group
class LogNormal:
    """Labels at random; sizes log-normal."""

    size_sigma: NotNegative = 1.0
    """Standard deviation of the logarithm of a client's size."""
    kind: Literal["log-normal"] = "log-normal"


@group
class PfllibDir:
    """PFLlib's dir: as dirichlet-by-class, without further labels for full clients."""

    alpha: Concentration = 0.1
    """Concentration."""
    kind: Literal["pfllib-dir"] = "pfllib-dir"


@group
class PfllibPat:
    """PFLlib's pat: a number of labels each, in order; ragged or equal sizes."""

    classes_per_client: Count = 2
    """Labels per client."""
    balanced: bool = False
    """Equal sizes (PFLlib's balance) instead of ragged ones."""
    kind: Literal["pfllib-pat"] = "pfllib-pat"


@group
class PfllibExdir:
    """PFLlib's exdir: a number of labels each, split Dirichlet(alpha, best about 100)."""

    classes_per_client: Count = 2
    """Labels per client."""
    alpha: Concentration = 0.1
    """Concentration."""
    kind: Literal["pfllib-exdir"] = "pfllib-exdir"


@group
class Natural:
    """The data set's own clients: writers, roles, the values of a column."""

    kind: Literal["natural"] = "natural"


Partition = Annotated[
    Dirichlet | DirichletByClass | Iid | Contiguous | Classes | LabelQuantity | Shards | Pachinko
    | Quantity | Exponential | LogNormal | PfllibDir | PfllibPat | PfllibExdir | Natural,
    pydantic.Field(discriminator="kind"),
]  # fmt: skip


class Division(NamedTuple):
    """Rows of the clients."""

    rows: Rows
    names: tuple[str, ...] | None = None  # of the clients, if they have some
    test: Rows | None = None  # clients' own test examples, if the partition draws them


def divided(
    options: Partition, dataset: Dataset, clients: int, seed: int, test_fraction: float | None
) -> Division:
    """Returns the rows of the clients."""
    match options:
        case Natural():
            return _natural(dataset)
        case PfllibDir() | PfllibPat() | PfllibExdir():
            return _pfllib(options, dataset, clients, seed, test_fraction)
        case Iid() | Contiguous() | Quantity() | Exponential() | LogNormal():
            return Division(_by_size(options, len(dataset.train["y"]), clients, seed))
    labels = _classes(dataset)
    match options:
        case Dirichlet():
            rows = partition.dirichlet(labels, clients, options.alpha, seed, disjoint=True)
        case DirichletByClass():
            rows = partition.dirichlet_by_class(labels, clients, options.alpha, seed)
        case Classes():
            rows = partition.classes_per_client(
                labels, clients, options.classes_per_client, seed, method="pairs"
            )
        case LabelQuantity():
            rows = partition.label_quantity(labels, clients, options.classes_per_client, seed)
        case Shards():
            rows = partition.shards(labels, clients, options.classes_per_client, seed)
        case Pachinko():
            if "coarse" not in dataset.train:
                raise ValueError(f"data set {dataset.name} has no coarse labels; expected cifar100")
            rows = partition.pachinko(
                dataset.train["y"], dataset.train["coarse"], clients, seed,
                alpha=options.alpha, beta=options.fine_alpha,
            )  # fmt: skip
    return Division(rows)


def _by_size(
    options: Iid | Contiguous | Quantity | Exponential | LogNormal, n: int, clients: int, seed: int
) -> Rows:
    match options:
        case Iid():
            return partition.iid(n, clients, seed)
        case Contiguous():
            return np.array_split(np.arange(n), clients)
        case Quantity():
            return partition.quantity_skew(n, clients, options.alpha, seed)
        case Exponential():
            return partition.exponential(n, clients, seed)
        case LogNormal():
            return partition.log_normal(n, clients, options.size_sigma, seed)


def _natural(dataset: Dataset) -> Division:
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(f"data set {dataset.name} does not say which client an example is from")
    # Groups in the order of their names are as the names themselves, and faster to sort.
    names, order = np.unique(np.asarray(dataset.group_names), return_inverse=True)
    rows, groups = partition.by_group(order[dataset.train_groups])
    return Division(rows, tuple(str(names[int(group)]) for group in groups))


def _classes(dataset: Dataset) -> np.ndarray:
    """Returns the classes of the training examples; refuses other labels."""
    labels = dataset.train["y"]
    if labels.ndim > 1 or dataset.target == "numbers":
        kind = "a label per position" if labels.ndim > 1 else "numbers as targets"
        raise ValueError(
            f"data set {dataset.name} has {kind}; expected a partition that does not need labels, "
            "such as contiguous, iid or natural"
        )
    return labels


def _pfllib(
    options: PfllibDir | PfllibPat | PfllibExdir,
    dataset: Dataset,
    clients: int,
    seed: int,
    test_fraction: float | None,
) -> Division:
    """One stream of random numbers for the partition and the clients' test examples."""
    random, labels = np.random.RandomState(seed), _classes(dataset)
    match options:
        case PfllibDir():
            rows = partition.pfllib_dirichlet(labels, clients, options.alpha, random)
        case PfllibPat():
            rows = partition.pfllib_pathological(
                labels, clients, options.classes_per_client, random, balance=options.balanced
            )
        case PfllibExdir():
            rows = partition.pfllib_extended_dirichlet(
                labels, clients, options.classes_per_client, options.alpha, random
            )
    if test_fraction is None:
        return Division(rows)
    train, test = partition.pfllib_split(rows, random, train_ratio=1 - test_fraction)
    return Division(train, test=test)


def own_division(rows: Any, dataset: Dataset, seed: int) -> Division:
    """Returns the rows of the clients as a study gives them."""
    if callable(rows):
        with own_code("rows of the study"):
            rows = rows(dataset, seed)
    if not isinstance(rows, list | tuple):
        raise ValueError(
            f"rows of the study is {type(rows).__name__}; expected a list of row numbers per client"
        )
    parts = []
    for client, part in enumerate(rows):
        part = np.asarray(part)
        if part.ndim != 1 or (part.size and not np.issubdtype(part.dtype, np.integer)):
            raise ValueError(
                f"rows of the study has {part.dtype}{list(part.shape)} for client {client}; "
                "expected row numbers, integers [n]"
            )
        parts.append(part.astype(np.int64))
    return Division(parts)
