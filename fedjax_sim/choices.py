"""From the names of a configuration to the functions they stand for.

The only place where names become functions: the library itself has no registries.  A further
algorithm or model on the command line is a row of a dict here.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim import algorithms, cohort, models, participation
from fedjax_sim.cohort import Cohort
from fedjax_sim.config import CompareConfig
from fedjax_sim.data import partition
from fedjax_sim.data.batches import Batches, epochs, with_replacement
from fedjax_sim.data.federated import FederatedData, from_assignment
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine import Weighting, by_examples, uniform_weights
from fedjax_sim.gradients import clipped, weight_decayed, with_oracle
from fedjax_sim.local import Rate, exponential
from fedjax_sim.models import Model
from fedjax_sim.models.lowering import Convolution
from fedjax_sim.typing import FedAlgorithm, Oracle, Task, Timeline

Hyper = Mapping[str, Any]


class Choice(NamedTuple):
    """An algorithm on the command line."""

    factory: Callable[..., FedAlgorithm]
    defaults: Hyper  # of those hyper-parameters that have no default in the factory, or another
    paper: str


# One client rate for all, so that curves compare methods; it and the rest were chosen on the
# quickstart from coarse grids (client rates 0.05 to 0.4) by the test accuracy it reports: the
# defaults are sensible, but the quickstart's table is no ranking of methods.
ALGORITHMS: dict[str, Choice] = {
    "fedavg": Choice(algorithms.fedavg, {"lr": 0.2}, "McMahan et al., 2017"),
    "fedprox": Choice(algorithms.fedprox, {"lr": 0.2, "mu": 0.1}, "Li et al., 2020"),
    "fedavgm": Choice(
        algorithms.fedavgm, {"lr": 0.2, "server_lr": 1.0, "momentum": 0.7}, "Hsu et al., 2019"
    ),
    "fedadam": Choice(algorithms.fedadam, {"lr": 0.2, "server_lr": 0.03}, "Reddi et al., 2021"),
    "fedyogi": Choice(algorithms.fedyogi, {"lr": 0.2, "server_lr": 0.03}, "Reddi et al., 2021"),
    "fedadagrad": Choice(
        algorithms.fedadagrad, {"lr": 0.2, "server_lr": 0.1}, "Reddi et al., 2021"
    ),
    "scaffold": Choice(
        algorithms.scaffold, {"lr": 0.2, "server_lr": 1.0}, "Karimireddy et al., 2020"
    ),
    "fedsgd": Choice(algorithms.fedsgd, {"lr": 0.5}, "McMahan et al., 2017"),
    "feddyn": Choice(algorithms.feddyn, {"lr": 0.2, "weight": 0.1}, "Acar et al., 2021"),
    "fedacg": Choice(algorithms.fedacg, {"lr": 0.2}, "Kim et al., 2024"),
    "fedsam": Choice(algorithms.fedsam, {"lr": 0.2}, "Qu et al., 2022"),
    "mofedsam": Choice(algorithms.mofedsam, {"lr": 0.2}, "Qu et al., 2022"),
    "fedasam": Choice(algorithms.fedasam, {"lr": 0.2}, "Caldarola et al., 2022"),
    "fedlesam": Choice(algorithms.fedlesam, {"lr": 0.2}, "Fan et al., 2024"),
    "fedgamma": Choice(algorithms.fedgamma, {"lr": 0.2}, "Dai et al., 2023"),
    "fedsmoo": Choice(algorithms.fedsmoo, {"lr": 0.2}, "Sun et al., 2023"),
    "fedswa": Choice(algorithms.fedswa, {"lr": 0.2}, "Liu et al., 2025"),
    "fedmo": Choice(algorithms.fedmo, {"lr": 0.2}, "Liu et al., 2025"),
    "fedmoswa": Choice(algorithms.fedmoswa, {"lr": 0.2}, "Liu et al., 2025"),
    "fedac": Choice(
        algorithms.fedac, {"lr": 0.05, "mu": 0.1, "num_steps": 20.0}, "Yuan and Ma, 2020"
    ),
    "averaged_fedavg": Choice(algorithms.averaged_fedavg, {"lr": 0.2}, "Yuan, 2023"),
    "mb_sgd": Choice(algorithms.mb_sgd, {"lr": 0.5}, "Woodworth et al., 2020"),
    "mb_ac_sgd": Choice(algorithms.mb_ac_sgd, {"lr": 0.5, "mu": 0.1}, "Yuan and Ma, 2020"),
}

# Round t has the client rate lr * lr_decay^t, where the algorithm admits a schedule; gradients are
# clipped to the norm clip, then weight_decay times the model is added, then the algorithm's terms.
COMMON = ("lr_decay", "clip", "weight_decay")

# Name -> shape of the examples it takes (None: any) and its builder from (shape, classes, conv).
MODELS: dict[
    str, tuple[tuple[int, ...] | None, Callable[[tuple[int, ...], int, Convolution], Model]]
] = {
    "digits_cnn": ((8, 8, 1), lambda _, classes, conv: models.digits_cnn(classes, conv)),
    "femnist_cnn": ((28, 28, 1), lambda _, classes, conv: models.femnist_cnn(classes, conv)),
    "lenet5": ((32, 32, 3), lambda _, classes, conv: models.lenet5(classes, conv=conv)),
    "mlp": (None, lambda shape, classes, _: models.mlp(shape, (200, 200), classes)),
    "mlp_small": (None, lambda shape, classes, _: models.mlp(shape, (64,), classes)),
    "resnet18": ((32, 32, 3), lambda _, classes, conv: models.resnet18(classes, conv=conv)),
    "resnet20": ((32, 32, 3), lambda _, classes, conv: models.resnet20(classes, conv=conv)),
    "softmax_regression": (
        None,
        lambda shape, classes, _: models.softmax_regression(shape, classes),
    ),
    "vgg11": ((32, 32, 3), lambda _, classes, conv: models.vgg11(classes, conv=conv)),
    "vit_tiny": ((32, 32, 3), lambda _, classes, __: models.vit_tiny((32, 32, 3), classes)),
    "vit_tiny_64": (
        (64, 64, 3),
        lambda _, classes, __: models.vit_tiny((64, 64, 3), classes, patch_size=8),
    ),
}
_AUTO = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}

Rows = list[np.ndarray]  # of each client

# Name -> what it is, and (config, dataset) -> rows, with the clients' names if they have some.
PARTITIONS: dict[
    str, tuple[str, Callable[[CompareConfig, Dataset], Rows | tuple[Rows, tuple[str, ...]]]]
] = {
    "dirichlet": (
        "labels of each client Dirichlet(--alpha); equal sizes",
        lambda c, d: partition.dirichlet(
            d.train["y"], c.num_clients, c.alpha, c.partition_seed, disjoint=True
        ),
    ),
    "dirichlet-by-class": (
        "each label split Dirichlet(--alpha) over the clients; ragged sizes",
        lambda c, d: partition.dirichlet_by_class(
            d.train["y"], c.num_clients, c.alpha, c.partition_seed
        ),
    ),
    "iid": (
        "at random; equal sizes",
        lambda c, d: partition.iid(len(d.train["y"]), c.num_clients, c.partition_seed),
    ),
    "classes": (
        "--classes-per-client labels each; equal sizes",
        lambda c, d: partition.classes_per_client(
            d.train["y"], c.num_clients, c.classes_per_client, c.partition_seed, method="pairs"
        ),
    ),
    "quantity": (
        "labels at random; sizes Dirichlet(--alpha)",
        lambda c, d: partition.quantity_skew(
            len(d.train["y"]), c.num_clients, c.alpha, c.partition_seed
        ),
    ),
    "natural": ("the data set's own clients (writers, ...)", lambda c, d: _natural(d)),
}


def hyper_parameters(config: CompareConfig) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of each algorithm: defaults, then lr and server_lr, then hyper.

    Raises:
        ValueError: an unknown algorithm or hyper-parameter, or a value out of range.

    Example:
        >>> config = CompareConfig(algorithms=("fedprox",), lr=0.2, hyper=("fedprox.mu=1",))
        >>> hyper_parameters(config)
        {'fedprox': {'lr': 0.2, 'mu': 1.0}}
    """
    for name in config.algorithms:
        if name not in ALGORITHMS:
            raise ValueError(f"algorithms has {name!r}; expected some of {', '.join(ALGORITHMS)}")
    resolved = {name: dict(ALGORITHMS[name].defaults) for name in config.algorithms}
    for key in COMMON:
        if (value := getattr(config, key)) is not None:
            for name in resolved:
                if key not in common_hyper(name):
                    raise ValueError(f"{key} is {value}, but {name} does not have it")
                resolved[name][key] = value
    for key in ("lr", "server_lr"):
        value = getattr(config, key)
        takers = [name for name in resolved if key in resolved[name]]
        if value is not None and not takers:
            raise ValueError(f"{key} is {value}, but none of {', '.join(resolved)} has one")
        for name in takers:
            resolved[name][key] = resolved[name][key] if value is None else value
    for setting in config.hyper:
        name, key, text = _parse(setting)
        if name not in resolved:
            raise ValueError(f"hyper has {setting!r}; expected one of {', '.join(resolved)}")
        known = hyper_defaults(name)
        every = (*known, *common_hyper(name))
        if key not in every:
            raise ValueError(f"hyper has {setting!r}; {name} has {', '.join(every)}")
        named = isinstance(known.get(key), str)
        resolved[name][key] = text if named else number(setting, key, text)
    for name, hyper in resolved.items():
        try:
            algorithm(name, hyper)
        except ValueError as error:  # what only the factory can tell
            raise ValueError(f"hyper has {hyper} for {name}: {error}") from error
    return resolved


def hyper_defaults(name: str) -> dict[str, Any]:
    """The own hyper-parameters of an algorithm that can be written on a command line.

    Example:
        >>> hyper_defaults("fedprox")
        {'lr': 0.2, 'mu': 0.1}
    """
    not_writable = ("server", "transform", "anchored")
    choice = ALGORITHMS[name]
    parameters = inspect.signature(choice.factory).parameters
    defaults = {key: p.default for key, p in parameters.items() if key not in not_writable}
    return defaults | dict(choice.defaults)


def common_hyper(name: str) -> tuple[str, ...]:
    """Those of :data:`COMMON` that an algorithm has.

    Example:
        >>> common_hyper("fedavg"), common_hyper("fedac")
        (('lr_decay', 'clip', 'weight_decay'), ('clip', 'weight_decay'))
    """
    lr = inspect.signature(ALGORITHMS[name].factory).parameters["lr"]
    return tuple(key for key in COMMON if key != "lr_decay" or lr.annotation == Rate)


def algorithm(name: str, hyper: Hyper) -> FedAlgorithm:
    """The algorithm with these hyper-parameters, its own and :data:`COMMON` ones.

    Example:
        >>> hyper = {"lr": 0.1, "weight_decay": 1e-3}
        >>> algorithm("fedavg", hyper).init({"w": np.zeros(2)}).params["w"].tolist()
        [0.0, 0.0]
    """
    own = {key: value for key, value in hyper.items() if key not in COMMON}
    common = {key: hyper[key] for key in COMMON if key in hyper}
    factory = ALGORITHMS[name].factory
    if "lr_decay" in common:
        own["lr"] = exponential(own["lr"], common.pop("lr_decay"))
    if not common:
        return factory(**own)
    transform = functools.partial(_regular, **common)
    # Methods that perturb the model take the transform of the gradient at the perturbed one.
    if "transform" in inspect.signature(factory).parameters:
        return factory(**own, transform=transform)
    return with_oracle(factory(**own), transform)


def _regular(oracle: Oracle, clip: Any = None, weight_decay: Any = None) -> Oracle:
    oracle = oracle if clip is None else clipped(oracle, clip)
    return oracle if weight_decay is None else weight_decayed(oracle, weight_decay)


def model(
    config: CompareConfig, dataset: Dataset, conv: Convolution = models.auto
) -> tuple[str, Model]:
    """The model's name and the model; "auto" chooses by the examples' shape.

    Raises:
        ValueError: a model that takes examples of another shape.
    """
    shape = dataset.train["x"].shape[1:]
    name = _AUTO.get(shape, "softmax_regression") if config.model == "auto" else config.model
    taken, build = MODELS[name]
    if taken not in (None, shape):
        raise ValueError(
            f"model is {name!r}, which takes examples of shape {list(taken)}; expected one for "
            f"{list(shape)}, the shape of {dataset.name}"
        )
    return name, _built(build, shape, dataset.num_classes, conv)


@functools.cache
def _built(build: Callable, shape: tuple[int, ...], classes: int, conv: Convolution) -> Model:
    """One object for equal arguments, so that a problem made anew does not compile anew."""
    return build(shape, classes, conv)


def clients(config: CompareConfig, dataset: Dataset) -> FederatedData:
    """The training examples, divided among the clients.

    Raises:
        ValueError: a partition that the data set does not admit.
    """
    try:
        found = PARTITIONS[config.partition][1](config, dataset)
    except ValueError as error:
        raise ValueError(f"partition is {config.partition!r}: {error}") from error
    assignment, names = found if isinstance(found, tuple) else (found, None)
    return from_assignment({key: dataset.train[key] for key in ("x", "y")}, assignment, names)


def batches(config: CompareConfig) -> Batches:
    """The minibatch rule: local steps if given, else local epochs."""
    if config.local_steps is not None:
        return with_replacement(config.batch_size, config.local_steps)
    return epochs(config.local_epochs, config.batch_size)


def timelines(config: CompareConfig, task: Task, keys: Array) -> Timeline:
    """One schedule per key, ``[n, T, S]``."""
    rounds, size, steps = config.rounds, config.cohort_size, task.num_steps
    num_clients = task.num_clients

    def schedule(key: Array) -> Timeline:
        sample_key, dropout_key = jax.random.split(key)
        match config.sampling:
            case "uniform":
                drawn = participation.uniform(sample_key, rounds, num_clients, size, steps)
            case "weighted":
                sizes = np.asarray(task.num_examples)
                drawn = participation.weighted(sample_key, rounds, sizes, size, steps)
            case "bernoulli":
                share = size / num_clients
                drawn = participation.bernoulli(sample_key, rounds, num_clients, share, steps)
            case "cyclic":
                drawn = participation.cyclic(rounds, num_clients, size, steps)
            case "full":
                drawn = participation.full(rounds, num_clients, steps)
        if config.dropout:
            drawn = participation.dropout(dropout_key, drawn, config.dropout)
        return drawn

    return jax.jit(jax.vmap(schedule))(keys)


def execution(config: CompareConfig) -> Cohort:
    """The strategy that executes a round's clients."""
    match config.execution:
        case "vmapped":
            return cohort.vmapped()
        case "chunked":
            return cohort.chunked(config.chunk_size)
        case "sequential":
            return cohort.sequential()
        case "auto":
            return cohort.auto()


def weighting(config: CompareConfig) -> Weighting:
    """The weights of the clients' uploads."""
    return by_examples if config.weighting == "examples" else uniform_weights


def number(setting: str, key: str, text: str) -> float:
    """The value of a hyper-parameter: rates are positive, other numbers not negative.

    Raises:
        ValueError: it is not.

    Example:
        >>> number("fedprox.mu=0", "mu", "0")
        0.0
    """
    positive = key.endswith("lr")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
        expected = "a positive number" if positive else "a number of at least 0"
        raise ValueError(f"hyper has {setting!r}; expected {expected}")
    return value


def _parse(setting: str) -> tuple[str, str, str]:
    target, equals, text = setting.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and name and key and text):
        raise ValueError(f"hyper has {setting!r}; expected ALGORITHM.NAME=VALUE")
    return name, key, text


def _natural(dataset: Dataset) -> tuple[Rows, tuple[str, ...]]:
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(f"data set {dataset.name} does not say which client an example is from")
    return partition.by_group(np.asarray(dataset.group_names)[dataset.train_groups])
