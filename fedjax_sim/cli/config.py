"""What a comparison of algorithms is made of."""

import dataclasses
import json
import math
import pathlib
import typing
from typing import Any, Literal

ALGORITHMS = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A comparison: one data set, one partition, several algorithms, several seeds.

    All algorithms see the same clients, cohorts and minibatches, and start from the same models;
    these differ between seeds, the partition does not.  The defaults are the quickstart.

    Example:
        >>> RunConfig(rounds=20, algorithms=("fedavg",)).cohort_size
        10
    """

    output: pathlib.Path = pathlib.Path("results/quickstart")
    """Folder for the results; a folder with an unfinished run of this configuration is resumed."""

    dataset: str = "digits"
    """Data set (see fedjax-sim list)."""
    data_dir: pathlib.Path | None = None
    """Where the data set's files lie; default: the environment variable FEDJAX_SIM_DATA."""
    model: Literal[
        "auto", "digits_cnn", "femnist_cnn", "lenet5", "mlp", "mlp_small", "resnet18", "resnet20",
        "softmax_regression", "vgg11", "vit_tiny", "vit_tiny_64",
    ] = "auto"  # fmt: skip
    """Model; auto chooses by the shape of the examples."""

    partition: Literal[
        "dirichlet", "dirichlet-by-class", "iid", "classes", "quantity", "natural"
    ] = "dirichlet"
    """How the training examples are divided among the clients."""
    num_clients: int = 100
    """Number of clients (not used by the natural partition)."""
    alpha: float = 0.1
    """Concentration of the Dirichlet and quantity partitions; smaller is more heterogeneous."""
    classes_per_client: int = 2
    """Labels that each client has in the partition by classes."""
    partition_seed: int = 0
    """Seed of the partition, which is the same for all seeds of the runs."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Algorithms to compare (see fedjax-sim list)."""
    lr: float | None = None
    """Client learning rate of all algorithms; default: each its own (see fedjax-sim list)."""
    server_lr: float | None = None
    """Server learning rate of the algorithms that have one; default: each its own."""
    lr_decay: float | None = None
    """Factor by which the client learning rate falls from round to round; default: it does not."""
    clip: float | None = None
    """Norm to which local gradients are clipped; default: no clipping."""
    weight_decay: float | None = None
    """Weight decay in the local steps, added after clipping; default: none."""
    hyper: tuple[str, ...] = ()
    """Hyper-parameters of single algorithms, e.g. fedprox.mu=0.1 fedadam.server_lr=0.01."""

    sampling: Literal["uniform", "weighted", "bernoulli", "cyclic", "full", "stratified"] = (
        "uniform"
    )
    """Who takes part in a round: a uniform subset, one weighted by examples, independent coins,
    clients in turn, everybody, or a uniform subset of every stratum."""
    num_strata: int | None = None
    """Keep clients' data and states by device: blocks of clients, of which every device owns as
    many; default: every device has all data. Needed for several processes."""
    examples_memory: float | None = None
    """Gigabytes of the device's memory for clients' examples; all others stay in the host's memory
    until a round needs them; default: all are on the device."""
    states: Literal["device", "host"] = "device"
    """Where what clients keep between rounds is; host goes with --examples-memory."""
    cohort_size: int = 10
    """Clients per round (on average for bernoulli; not used by full)."""
    dropout: float = 0.0
    """Probability that a sampled client does not report."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the clients' uploads in the mean."""

    rounds: int = 100
    """Rounds of communication."""
    local_epochs: int = 5
    """Passes of a client over its examples in a round."""
    local_steps: int | None = None
    """Local steps on minibatches drawn with replacement, instead of local epochs."""
    batch_size: int = 7
    """Examples per local step."""

    seeds: int = 5
    """Number of seeds; all seeds of an algorithm run in one compiled program."""
    seed: int = 0
    """The first seed; the others follow it."""

    eval_every: int = 2
    """Rounds between evaluations on the test and training examples."""
    target_accuracy: float = 0.8
    """Test accuracy whose first reaching is counted in rounds."""

    execution: Literal["auto", "vmapped", "chunked", "sequential"] = "auto"
    """How the clients of a round are executed; results agree up to the order of summation."""
    chunk_size: int = 10
    """Clients per chunk of the chunked execution."""
    precision: Literal["default", "float32", "tf32", "bfloat16", "float64"] = "default"
    """Of the models' arithmetic. default: float32, products as the device likes it; float32: exact;
    tf32: products of 10 bits on GPUs; bfloat16: local gradients in bfloat16, all else in float32;
    float64: everything."""
    on_divergence: Literal["record", "stop", "raise"] = "record"
    """When a model is no longer finite: go on and record it, stop the algorithm once all seeds
    have diverged, or end with an error."""


@dataclasses.dataclass(frozen=True)
class RunOptions(RunConfig):
    """A comparison, and what is to be done with it besides; every option of ``fedjax-sim run``."""

    dry_run: bool = False
    """Say what the comparison takes (memory by part, arithmetic, time), and run nothing."""
    diagnose: bool = False
    """Convex problems (softmax_regression): measure the constants of FedAvg's theory, and draw its
    bounds over the suboptimality."""
    distributed: bool = False
    """One process of several, which learn of each other from the cluster (Slurm, Open MPI,
    Kubernetes, Cloud TPU); all are given the same options."""
    coordinator: str | None = None
    """Address host:port of process 0, where there is no cluster that tells."""
    num_processes: int | None = None
    """With a coordinator: how many processes there are."""
    process_id: int | None = None
    """With a coordinator: the number of this one, from 0."""


# What may change between two calls on one output folder, because no result depends on it
# (algorithms and hyper-parameters are compared by their resolved values).
FREE_FIELDS = {
    "output", "data_dir", "algorithms", "lr", "server_lr", "lr_decay", "clip", "weight_decay",
    "hyper", "target_accuracy", "on_divergence", "examples_memory", "states",
}  # fmt: skip


def check(config: RunConfig) -> None:
    """Refuses values that no data set could make valid.

    Raises:
        ValueError: naming the field, its value and what was expected.

    Example:
        >>> check(RunConfig(rounds=0))
        Traceback (most recent call last):
        ValueError: rounds is 0; expected an integer of at least 1
    """
    for name, hint in typing.get_type_hints(RunConfig).items():
        value: Any = getattr(config, name)
        allowed = typing.get_args(hint)  # of a Literal its values, of a union its types
        if typing.get_origin(hint) is Literal and value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
        if hint is int or (int in allowed and value is not None):
            low = 0 if name.endswith("seed") else 1
            if value < low:
                raise ValueError(f"{name} is {value}; expected an integer of at least {low}")
    if config.examples_memory is not None and config.num_strata is not None:
        raise ValueError(
            f"examples_memory is {config.examples_memory}; expected none with num_strata, which "
            "keeps all examples on the devices"
        )
    if config.states == "host" and config.examples_memory is None:
        raise ValueError("states is host; expected examples_memory with it")
    for name in ("alpha", "lr", "server_lr", "lr_decay", "clip", "examples_memory"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and (name == "alpha" or math.isfinite(value))):
            raise ValueError(f"{name} is {value}; expected a positive number")
    if config.weight_decay is not None and not 0 <= config.weight_decay < math.inf:
        raise ValueError(f"weight_decay is {config.weight_decay}; expected a number of at least 0")
    if not 0 <= config.dropout < 1:
        raise ValueError(f"dropout is {config.dropout}; expected a number in [0, 1)")
    if not 0 < config.target_accuracy <= 1:
        raise ValueError(f"target_accuracy is {config.target_accuracy}; expected (0, 1]")
    if config.sampling == "stratified" and config.num_strata is None:
        raise ValueError("num_strata is None; expected a number, which sampling stratified needs")
    repeated = len(set(config.algorithms)) != len(config.algorithms)
    if not config.algorithms or repeated:
        raise ValueError(
            f"algorithms is {config.algorithms}; expected distinct names, at least one"
        )


def to_json(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON values.

    Example:
        >>> to_json(RunConfig())["output"]
        'results/quickstart'
    """
    values = dataclasses.asdict(config)
    return {k: v.as_posix() if isinstance(v, pathlib.Path) else v for k, v in values.items()}


def read(path: str | pathlib.Path) -> RunConfig:
    """The configuration of a ``config.json``, hyper-parameters as they were resolved.

    Raises:
        ValueError: not a file that :func:`fedjax_sim.cli.run.compare` wrote.
    """
    try:
        saved = json.loads(pathlib.Path(path).read_text())
        values, resolved = dict(saved["config"]), saved["algorithms"]
        values |= {
            "output": pathlib.Path(values["output"]),
            "data_dir": values["data_dir"] and pathlib.Path(values["data_dir"]),
            "algorithms": tuple(values["algorithms"]),
            "lr": None,
            "server_lr": None,
            "lr_decay": None,
            "clip": None,
            "weight_decay": None,
            "hyper": tuple(
                f"{name}.{key}={value}"
                for name in values["algorithms"]
                for key, value in resolved[name].items()
            ),
        }
        return RunConfig(**values)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config.json of a comparison: {error}") from error
