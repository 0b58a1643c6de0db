"""Options of ``fedjax-sim run`` and ``fedjax-sim sweep``.

The docstring below a field is its text in ``--help``.
:mod:`fedjax_sim.studies.setups.config_checks` checks the values.
:mod:`fedjax_sim.studies.setups.build` turns options into objects; the modules behind it do not read
options.
"""

import dataclasses
import pathlib
from typing import Literal

from fedjax_sim.engine import HEARTBEAT_TIMEOUT, PERSONAL

ALGORITHMS = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A comparison: one data set, one partition, several algorithms, several seeds.

    All algorithms see the same clients, cohorts and minibatches, and start from the same models;
    these differ between seeds, the partition does not.  With a clock, algorithms differ in who
    reports when, and are compared over simulated time.  The defaults are the quickstart.

    Example:
        >>> RunConfig(rounds=20, algorithms=("fedavg",)).cohort_size
        10
    """

    # In config.json, see fedjax_sim.studies.setups.validation: other keys are refused.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    output: pathlib.Path = pathlib.Path("results/quickstart")
    """Folder for the results; a folder with an unfinished run of this configuration is resumed."""

    dataset: str = "digits"
    """Data set (see fedjax-sim list), a table (.csv, .parquet, .npz), a plain text (.txt: the next
    character at each of 80; best with --partition contiguous) or a function MODULE:FUNCTION of
    the data_dir that returns a fedjax_sim.datasets.Dataset."""
    data_dir: pathlib.Path | None = None
    """Folder with the data set's files; default: the environment variable FEDJAX_SIM_DATA."""
    label_column: str | None = None
    """Column of a table with the labels, numbers or text; default: y or label."""
    client_column: str | None = None
    """Column of a table with the client of each example; requires --partition natural, in a sweep
    also in the grid; default: none."""
    model: str = "auto"
    """Model (see fedjax-sim list); auto chooses by the shape of the examples. Or MODULE:FUNCTION of
    shape and num_classes that returns a fedjax_sim.models.Model or a flax module."""
    initial_model: pathlib.Path | None = None
    """File (.npz) that fedjax-sim export wrote: the initial model of all seeds; default: random."""
    adapters: str | None = None
    """Train adapters of low rank beside the queries and values of the frozen model: lora:RANK, or
    ffa-lora:RANK, whose first factors are frozen, too; default: train the model."""
    statistics: Literal["averaged", "private", "frozen"] = "averaged"
    """Running statistics of a model with batch normalisation: averaged over clients (fedbn: private
    by definition); private, kept by each client (the server's model then has the initial ones, and
    personal/accuracy/mean is that of the clients' models); or frozen at the initial ones, which
    training uses, too."""
    loss: str | None = None
    """Loss MODULE:FUNCTION of outputs and y with one value per example, or squared or huber, for
    targets that are numbers; default: cross-entropy of classes, squared of numbers."""
    metrics: str | None = None
    """Metrics MODULE:FUNCTION of outputs and y, {name: one value per example}, evaluated beside
    loss and accuracy, or beside loss, rmse and r2 of numbers; default: none."""

    partition: str = "dirichlet"
    """Division of the training examples among the clients (see fedjax-sim list), or MODULE:FUNCTION
    of dataset, num_clients, seed and alpha that returns row numbers per client."""
    num_clients: int = 100
    """Number of clients (not used by the natural partition)."""
    alpha: float = 0.1
    """Concentration of the Dirichlet, quantity, Pachinko and PFLlib partitions; smaller is more
    heterogeneous."""
    fine_alpha: float = 10.0
    """Concentration of the labels within a coarse one in the Pachinko partition."""
    classes_per_client: int = 2
    """Labels per client in the partitions classes, label-quantity, pfllib-pat and pfllib-exdir;
    shards per client in shards."""
    size_sigma: float = 1.0
    """Standard deviation of the logarithm of a client's size in the log-normal partition."""
    partition_seed: int = 0
    """Seed of the partition, which is the same for all seeds of the runs."""
    partition_per_seed: bool = False
    """Divide the examples once per seed, with the partition seed plus the seed; the seeds then run
    one after the other."""
    test_of: Literal["dataset", "clients"] = "dataset"
    """Test examples: those of the data set; or every client's own (as in PFLlib): training and test
    examples are merged, divided among the clients, and a fraction of each client's is kept for
    testing."""
    test_fraction: float = 0.25
    """With --test-of clients: fraction of a client's examples that is for testing."""
    feature_shift: Literal["none", "rotation", "noise"] = "none"
    """Change of each client's examples, once, before training: rotation, client i's images by i mod
    4 quarter turns; noise, Gaussian of variance i / M times --noise for client i of M. Test
    examples of the data set remain as they are, those of clients are changed, too."""
    noise: float = 0.1
    """With --feature-shift noise: variance of the noise of the last client, for features in [0,
    1]."""
    validation: float = 0.0
    """Fraction of the training examples that is kept out of training and evaluated as valid/loss
    and valid/accuracy, so that rates need not be chosen on the test examples."""
    validation_of: Literal["clients", "pool"] = "clients"
    """Draw the validation examples from every client, or from all examples before they are
    divided."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Algorithms to compare (see fedjax-sim list), and functions MODULE:FUNCTION that return a
    fedjax_sim.FedAlgorithm."""
    lr: float | None = None
    """Client learning rate of all algorithms; default: one per algorithm (see fedjax-sim list)."""
    server_lr: float | None = None
    """Server learning rate of the algorithms that have one; default: one per algorithm."""
    lr_decay: float | None = None
    """Factor of the client learning rate from one round to the next; default: constant rates."""
    clip: float | None = None
    """Largest norm of a local gradient, longer ones are clipped; default: no clipping."""
    weight_decay: float | None = None
    """Weight decay in the local steps, added after clipping; default: none."""
    tuning_steps: int | None = None
    """With --personal: local steps that a client's model takes on the client's training examples
    before it is evaluated, for any algorithm; fedavg_ft and fedbabu have their own number of
    visits; default: none."""
    tuning_lr: float | None = None
    """Rate of --tuning-steps, fedavg_ft and fedbabu; default: the algorithm's lr."""
    compress: str | None = None
    """Codec of the uploads: top_k:NUMBER, random_k:NUMBER (entries per tensor, or their fraction),
    sign, natural, power_sgd:RANK, qsgd:LEVELS, uniform:VALUES, luq:POWERS or none, for single
    algorithms also ALGORITHM.compress in --hyper; default: none."""
    feedback: str | None = None
    """Memory of compression: ef14 or ef21 (error feedback), diana, marina (needs --sampling full)
    or pp_marina (needs --sampling full-or-uniform); default: none. The uploads of the algorithm
    have to be changes of the model."""
    feedback_rate: float | None = None
    """Rate of DIANA's shifts, or MARINA's probability of whole uploads; default: 1 / (1 + omega)
    for a codec of variance omega."""
    compress_down: str | None = None
    """Codec of the changes of the server's messages (EF21-P): as --compress, but neither qsgd
    nor uniform; default: none."""
    aggregator: str | None = None
    """Robust rule instead of the mean of the uploads: NAME:KEY=VALUE, such as median or krum:f=2,
    for sweeps in --grid; nnm+NAME or bucketing+NAME mix the uploads before it (see fedjax-sim
    list); default: none."""
    privacy_clip: float | str | None = None
    """Differential privacy of clients (extra privacy): largest norm of an upload; or
    adaptive:QUANTILE or adaptive:QUANTILE:INITIAL, which follows a quantile of the norms; or a
    bound per part of the upload, NAME=BOUND:NAME=BOUND. Needs --privacy-noise or
    --privacy-epsilon; default: no privacy."""
    privacy_noise: float | None = None
    """Noise multiplier: standard deviation of the noise on the sum of the uploads divided by
    --privacy-clip; default: none."""
    privacy_noise_law: str | None = None
    """Noise that partly cancels between rounds (DP-FTRL), for timelines in which clients return
    late, as --sampling cyclic: tree, efficient_tree (or NAME:ROUNDS, per tree) or banded:BANDS;
    default: independent."""
    privacy_epsilon: float | None = None
    """Epsilon of the whole run, from which the noise multiplier is computed; default: none."""
    privacy_delta: float = 1e-5
    """Delta of the guarantee, well below one over the number of clients."""
    hyper: tuple[str, ...] = ()
    """Hyper-parameters of single algorithms, e.g. fedprox.mu=0.1 fedadam.server_lr=0.01; default:
    see fedjax-sim list, or those in CONFIG.json. Options for all algorithms, as --lr, replace those
    in CONFIG.json too; those in CONFIG.json hold for algorithms that it does not have."""
    rates: tuple[str, ...] = ()
    """Rates of single algorithms that all other options replace, e.g. scaffold.lr=0.05; those of
    algorithms that do not run are ignored; default: the rates that were tuned for the preset."""

    sampling: str = "uniform"
    """Clients per round: uniform, a subset; weighted, a subset weighted by examples; bernoulli,
    independent coin flips; poisson, the same with few slots; cyclic, clients in turn; full, all
    clients; stratified, a uniform subset of every stratum; pairs, a uniform subset for every two
    rounds (mime and fedlin require it); geometric, all clients with a random number of steps per
    round, equal for all, whose mean is the number of local steps (for scaffnew, with probability 1
    / steps); full-or-uniform, all clients or a uniform subset, by --full-probability; or
    MODULE:FUNCTION of key, rounds, sizes, cohort_size and num_steps that returns a
    fedjax_sim.Timeline, inside jit."""
    full_probability: float | None = None
    """With --sampling full-or-uniform: probability of a round with all clients; default: the cohort
    size divided by the number of clients."""
    timeline: str | None = None
    """Timeline MODULE:FUNCTION, as --sampling, but called per seed outside of jit; it replaces
    --sampling; default: none."""
    num_strata: int | None = None
    """Store clients' data and states by device: number of blocks of clients, the same number on
    every device; default: all data on every device. Required for several processes."""
    examples_memory: float | None = None
    """Gigabytes of device memory for clients' examples; the others stay in host memory until a
    round needs them; default: all on the device."""
    states: Literal["device", "host"] = "device"
    """Storage of client state between rounds; host requires --examples-memory."""
    cohort_size: int = 10
    """Clients per round (on average for bernoulli and poisson; not used by full and geometric)."""
    dropout: float = 0.0
    """Probability that a sampled client does not report."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights of the clients' uploads in the mean."""
    lost: float = 0.0
    """Probability that an upload does not arrive; unlike with --dropout the client does its work,
    and its state changes."""
    late: float = 0.0
    """Probability that an upload is late: the client started from the model of --delay rounds
    before."""
    delay: int = 1
    """With --late: rounds by which an upload is late."""
    attack: str = "none"
    """Attack on all algorithms: NAME or NAME:NUMBER of sign_flip, scaling, gaussian, infinity,
    alie, inner_product, mimic, label_flip and backdoor (see fedjax-sim list), or none. The success
    of a backdoor is backdoor/accuracy."""
    attackers: float = 0.2
    """With --attack: fraction of the clients that attack in all their visits, drawn with the
    partition's seed."""

    rounds: int = 100
    """Rounds of communication (not used with --clock)."""
    local_epochs: int = 5
    """Passes of a client over its examples per round."""
    local_steps: int | None = None
    """Local steps on minibatches drawn with replacement; default: local epochs. With --clock: steps
    per report, and the largest number of steps between two contacts."""
    batch_size: int = 7
    """Examples per local step."""

    clock: Literal["none", "geometric", "exponential", "deterministic", "log-normal", "trace"] = (
        "none"
    )
    """Law of the simulated duration of one local step; required by the asynchronous algorithms.
    none: rounds without simulated time."""
    step_time: float = 2.0
    """With --clock: mean duration of a local step on a fast client, in units of simulated time."""
    slow_fraction: float = 1 / 3
    """With --clock: fraction of clients that are slow, drawn with the partition's seed."""
    slow_factor: float = 8.0
    """With --clock: mean duration of a step on a slow client divided by that on a fast one."""
    log_sigma: float = 1.0
    """With --clock log-normal: standard deviation of the logarithm of a duration."""
    trace: pathlib.Path | None = None
    """With --clock trace: CSV file with columns client,duration, one measured step per row, which
    replaces --step-time, --slow-fraction and --slow-factor; default: none."""
    interval: float = 7.0
    """With --clock: time between two contacts of the server (favano, quafl); --cohort-size clients
    are contacted at once."""
    interaction: float = 3.0
    """With --clock: time that the server needs per update (synchronous algorithms, fedbuff)."""
    buffer_size: int = 10
    """With --clock: reports per server update of fedbuff."""
    concurrency: int | None = None
    """With --clock: clients that compute at the same time (fedbuff, fedasync, async_sgd); default:
    all."""
    horizon: float = 1000.0
    """With --clock: simulated time at which every algorithm ends."""
    updates: int | None = None
    """With --clock: largest number of server updates per algorithm; default: no limit."""
    eval_time: float | None = None
    """With --clock: simulated time between evaluations, which replaces --eval-every; default: a
    fortieth of the horizon."""

    seeds: int = 5
    """Number of seeds; all seeds of an algorithm run in one compiled program."""
    seed: int = 0
    """The first seed; the others follow it."""

    eval_every: int = 2
    """Rounds between evaluations on the test and training examples (not used with --clock)."""
    eval_examples: int | Literal["all"] = 10_000
    """Training examples in an evaluation: a fixed uniform subsample of at most this many, or all.
    The metric train/examples is their number."""
    per_client: int | None = None
    """Rounds between evaluations of every client, a multiple of --eval-every: statistics over
    clients in the history, a figure of their distribution, and a row per client in a run's
    clients.csv (clients.parquet, if there are more than 100,000 rows and pyarrow is installed);
    default: none."""
    personal: int | None = None
    """Rounds between evaluations of the model that every client uses itself (the algorithm's
    personal model, else the server's), a multiple of --eval-every: statistics over clients, and a
    row per client in clients.csv. It requires the clients' own examples: --test-of clients, or
    --validation. Clients that are held out are evaluated as unseen, with --test-of clients;
    default: none."""
    first_visit: bool = False
    """With --personal: clients that are held out do the local work of one round before they are
    evaluated, so that their own models and heads are trained."""
    held_out_clients: float = 0.0
    """Fraction of the clients that never train, drawn with the partition's seed; they are evaluated
    as held_out, and one by one with --per-client or --personal."""
    target_accuracy: float = 0.8
    """Test accuracy; the table shows the rounds, or the simulated time, until a run reaches it."""

    execution: Literal["auto", "vmapped", "chunked", "sequential"] = "auto"
    """Execution of the clients per round; results agree up to the order of summation."""
    chunk_size: int = 10
    """Clients per chunk of the chunked execution."""
    measured: tuple[str, ...] = ()
    """With --execution auto: executions of algorithms, ALGORITHM=CLIENTSxDEVICES:LOWERING, e.g.
    fedavg=4x2:im2col; default: those that fedjax-sim measure stored for this machine. config.json
    records them, so that a resumed or repeated run is not changed by later measurements."""
    precision: Literal["default", "float32", "tf32", "bfloat16", "float64"] = "default"
    """Precision of the models' arithmetic. default: float32, matrix products as the device prefers;
    float32: exact products; tf32: products of 10 bits on GPUs; bfloat16: local gradients in
    bfloat16, the rest in float32; float64: everything."""
    on_divergence: Literal["record", "stop", "raise"] = "record"
    """Reaction to a model that is no longer finite: continue and record it, stop the algorithm
    after all seeds have diverged, or end with an error."""


@dataclasses.dataclass(frozen=True)
class RunOptions(RunConfig):
    """Every option of ``fedjax-sim run``: a comparison, and what to do with it."""

    dry_run: bool = False
    """Print what the comparison needs (memory by part, arithmetic, time) without running it."""
    diagnose: bool = False
    """Convex problems (softmax_regression): measure the constants of FedAvg's theory, and draw its
    bounds over the suboptimality."""
    log: tuple[str, ...] = ()
    """Logs of every evaluation: csv:FILE, tensorboard:DIRECTORY, wandb:PROJECT or
    mlflow:EXPERIMENT."""
    keep_best: str | None = None
    """Metric, e.g. valid/accuracy, by which the best model of every seed is kept (best.npz).
    METRIC:max or METRIC:min for a metric of your own whose name does not say which is better."""
    stop_early: str | None = None
    """METRIC:PATIENCE, e.g. valid/loss:10: ends an algorithm after 10 evaluations without an
    improvement of the metric's mean over the seeds. METRIC:PATIENCE:max or :min for a metric of
    your own whose name does not say which is better."""
    time_limit: float | None = None
    """Seconds after which the comparison is interrupted; the same command continues."""
    distributed: bool = False
    """Run as one of several processes that a cluster started (Slurm, Open MPI, Kubernetes, Cloud
    TPU); all processes need the same options."""
    coordinator: str | None = None
    """Address host:port of process 0; default: as the cluster provides it."""
    num_processes: int | None = None
    """With --coordinator: number of processes; default: as the cluster provides it."""
    process_id: int | None = None
    """With --coordinator: number of this process, from 0; default: as the cluster provides it."""
    heartbeat_timeout: int = HEARTBEAT_TIMEOUT
    """With several processes: seconds without a sign of life after which one counts as lost, and
    all others end."""


@dataclasses.dataclass(frozen=True)
class MeasureOptions(RunConfig):
    """Every option of ``fedjax-sim measure``: a comparison, and where the choice is stored."""

    user: bool = False
    """Store the fastest execution for all folders of this user; default: for the current one."""


@dataclasses.dataclass(frozen=True)
class SweepConfig(RunConfig):
    """Every option of ``fedjax-sim sweep``: a grid over a comparison's settings."""

    output: pathlib.Path = pathlib.Path("results/sweep")
    """Folder for the results; finished runs in it are not repeated."""

    algorithms: tuple[str, ...] = ("fedavg",)
    """Algorithms to sweep (see fedjax-sim list), and functions MODULE:FUNCTION that return a
    fedjax_sim.FedAlgorithm."""
    seeds: int = 3
    """Number of seeds per configuration."""

    grid: tuple[str, ...] = ("lr=0.05,0.1,0.2,0.4",)
    """Values that vary: NAME=V1,V2,... or NAME=LOW:HIGH:COUNT (geometric, integers rounded). NAME
    is a hyper-parameter, of all algorithms that have it or as ALGORITHM.NAME of one (the value then
    replaces the common one), or an option, as cohort_size. A name of both, as alpha, is the
    option; ALGORITHM.NAME is the hyper-parameter."""
    points: pathlib.Path | None = None
    """CSV file with a column per name and a row per configuration, which replaces --grid; default:
    none."""

    metric: str = "auto"
    """Metric by which configurations are chosen; auto: test/accuracy, with --personal
    personal/test/accuracy/weighted_mean. With --validation, valid/accuracy keeps the test examples
    out of the choice."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values: larger (max) or smaller (min); auto: as the metric's name says."""
    last: int = 1
    """Number of evaluations at the end of a run over which the metric is averaged."""
    best: bool = False
    """Score a run by its best evaluation instead."""
    cells: tuple[str, ...] = ()
    """Names for each of whose values a best configuration is chosen, e.g. cohort_size local_steps;
    default: one best configuration per algorithm."""
    over: Literal["cohort_size", "num_clients"] | None = None
    """Draw error and speed-up against this number of clients, one curve per algorithm; default: no
    such figure."""
    reference: float = 0.0
    """Value of the metric at the optimum; errors are differences from it."""
    part: str | None = None
    """Run part I of N of the grid only, as 2/8, for separate jobs that share the output folder. The
    part that ends last writes the tables; default: the whole grid."""
    memory: float | None = None
    """Gigabytes of device memory per program; default: most of an accelerator's memory, half of the
    host's."""

    @property
    def score_metric(self) -> str:
        """Name of the metric by which configurations are chosen."""
        if self.metric != "auto":
            return self.metric
        return "test/accuracy" if self.personal is None else PERSONAL


# Options that may differ between two calls on one output folder, because no result depends on them
# (algorithms and hyper-parameters are compared by their resolved values).
FREE_FIELDS = {
    "output", "data_dir", "algorithms", "lr", "server_lr", "lr_decay", "clip", "weight_decay",
    "tuning_steps", "tuning_lr", "compress", "feedback", "feedback_rate", "compress_down",
    "aggregator", "privacy_clip", "privacy_noise", "privacy_noise_law", "privacy_epsilon", "hyper",
    "rates", "target_accuracy", "on_divergence", "examples_memory", "states", "measured",
}  # fmt: skip
# Options that a later call on the same output folder may increase, to extend the run.
EXTENSIBLE_FIELDS = {"rounds"}


def from_comparison(config: RunConfig) -> SweepConfig:
    """Returns a sweep with the settings of a comparison.

    Example:
        >>> from_comparison(RunConfig(rounds=7)).rounds
        7
    """
    own = {"output", "algorithms", "seeds"}
    names = {field.name for field in dataclasses.fields(RunConfig)} - own
    return SweepConfig(**{name: getattr(config, name) for name in names})
