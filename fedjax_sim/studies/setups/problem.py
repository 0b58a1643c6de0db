"""From options to the problem of a comparison: clients, timelines, models, evaluation."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen
from jax import Array

from fedjax_sim import models
from fedjax_sim.checks import did_you_mean
from fedjax_sim.data import (
    Batches,
    FederatedData,
    Objective,
    empirical_task,
    epochs,
    summarize,
    with_replacement,
)
from fedjax_sim.datasets import IGNORE, Dataset, check_dataset, layout_hint
from fedjax_sim.models import MODELS, Convolution, Model, Shape, in_precision
from fedjax_sim.objectives import Metrics, as_float
from fedjax_sim.studies.setups.attack import Attacked, Backdoor, LabelFlip, attack_of
from fedjax_sim.studies.setups.clients import Clients, Placement, clients
from fedjax_sim.studies.setups.compression import compressed
from fedjax_sim.studies.setups.data import load
from fedjax_sim.studies.setups.entries import AlgorithmEntry, Hyper, StepsPerVisit
from fedjax_sim.studies.setups.evaluation import evaluation
from fedjax_sim.studies.setups.losses import Losses
from fedjax_sim.studies.setups.model import (
    adapted,
    for_model,
    initial_params,
    on_adapters,
    statistics_of,
    trained_model,
)
from fedjax_sim.studies.setups.options_of_algorithms import AlgorithmOptions
from fedjax_sim.studies.setups.partition import Division
from fedjax_sim.studies.setups.privacy import Privacy, privatized
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.studies.setups.robust import aggregated
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import Full, Geometric, Stratified, drawn, failing
from fedjax_sim.studies.setups.study import Study, own_code
from fedjax_sim.studies.setups.time import Clock, ClockOptions, Rounds, step_law
from fedjax_sim.timelines import arrange_by_stratum, sampling, stacked
from fedjax_sim.tree import fast, usual
from fedjax_sim.types import (
    FedAlgorithm,
    Setup,
    Task,
    Timeline,
    uniform_weights,
    weight_by_examples,
)

_EVALUATIONS = 40  # of a run with a clock, by default
# Shape of the examples -> model that "auto" chooses; softmax_regression for all others.
AUTO_MODELS: dict[Shape, str] = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}
# The same for examples that are token ids: integers other than uint8, which are pixels.
AUTO_TOKEN_MODELS: dict[Shape, str] = {(80,): "lstm"}
# The same with a label at every position.
AUTO_SEQUENCE_MODELS: dict[Shape, str] = {(80,): "lstm_sequence"}


class Problem(NamedTuple):
    """The part of a comparison that all algorithms share; n seeds."""

    setup: Setup  # params [n, ...]; the timeline [n, T, S], with a clock of the first one
    keys: Array  # [n]
    parts: "Parts | None"  # None: the setup is a study module's
    description: dict[str, Any]  # of data, partition and model, for config.json
    clock: Clock | None
    schedule_keys: Array  # [n]
    run: Run
    attack: Attacked | None

    def setup_of(self, algorithm: str) -> Setup:
        """Returns the setup of one algorithm: with a clock it has a timeline of its own.

        A timeline with many evaluations ends with the last whole interval between two of them, so
        that one program serves all segments of the run.
        """
        if self.clock is None:
            return self.setup
        timeline = self.clock.timelines(algorithm, self.schedule_keys)
        times = np.asarray(timeline.time)
        per_update = times.max() / timeline.num_rounds
        options = self.clock.options
        eval_time = options.eval_time or options.horizon / _EVALUATIONS
        every = int(np.clip(round(eval_time / per_update), 1, timeline.num_rounds))
        if timeline.num_rounds >= _EVALUATIONS // 2 * every:
            timeline = timeline[: timeline.num_rounds // every * every]
        return dataclasses.replace(self.setup, timeline=timeline, eval_every=every)

    def algorithm(self, entry: AlgorithmEntry, hyper: Hyper, privacy: Privacy) -> FedAlgorithm:
        """Returns an algorithm for this problem's clients."""
        algorithm = entry.build(hyper, self.steps_per_visit(entry), self.setup.task.num_clients)
        model = None if self.parts is None else self.parts.model
        run = dataclasses.replace(self.run, privacy=privacy)
        return wrapped(entry, algorithm, model, run, self.attack, self.setup.timeline)

    def steps_per_visit(self, entry: AlgorithmEntry) -> StepsPerVisit | None:
        """Returns the law of a client's steps per visit, if the algorithm needs it."""
        if self.clock is None or not entry.reweights_visits:
            return None
        return self.clock.steps_per_visit()


class Parts(NamedTuple):
    """Data, model and losses that the setup of a comparison is built from."""

    data: FederatedData  # with --num-strata the labels only
    batches: Batches
    model: Model
    num_classes: int  # 1: of numbers
    losses: Losses
    clients: Clients


def wrapped(
    entry: AlgorithmEntry,
    algorithm: FedAlgorithm,
    model: Model | None,
    run: Run,
    attack: Attacked | None,
    timeline: Timeline | None,
) -> FedAlgorithm:
    """Returns an algorithm with the wrappers of the options, in their order."""
    algorithm = compressed(algorithm, run.compress, run.feedback, run.compress_down)
    algorithm = on_adapters(algorithm, run.adapters)
    if model is not None:
        statistics = statistics_of(run.model.statistics, [entry])
        algorithm = for_model(algorithm, model.statistics, statistics)
    algorithm = aggregated(algorithm, run.robust)
    if attack is not None:
        algorithm = attack.on(algorithm)
    return privatized(algorithm, run.privacy, timeline)


def load_dataset(study: Study) -> Dataset | None:
    """Returns the data set of a comparison; None for a study with a setup of its own."""
    if study.setup is not None:
        return None
    if study.dataset is not None:
        try:
            return check_dataset(study.dataset)
        except ValueError as error:
            raise ValueError(f"dataset of the study is not usable: {error}") from error
    run = study.options
    numbers = run.model.loss in ("squared", "huber")
    return load(
        run.data, run.population.num_clients, run.population.partition_seed, numbers=numbers
    )


def prepare(
    study: Study,
    dataset: Dataset | None,
    conv: Convolution = models.auto,
    attack_seed: int | None = None,
) -> Problem:
    """Returns clients, timelines, initial models and evaluation of a comparison.

    Seed s gives the keys of the initial model, of the timeline and of the minibatches, so these
    are the same for every algorithm.
    """
    run = study.options
    if study.setup is not None:
        return _of_setup(study)
    assert dataset is not None
    model_name, net = model(study, dataset, conv)
    losses = Losses.of(dataset, run.model.loss, study.loss, study.metrics)
    with own_code("model, loss or metrics of the study"):
        losses.check(net, dataset)
        if study.model is not None and study.loss is None:
            _check_outputs(net, dataset)
    ignore = IGNORE if dataset.train["y"].ndim == 2 else None
    half = run.execution.precision == "bfloat16"
    loss, metrics = _functions(net, half, run.model.statistics, losses, ignore)
    divided = clients_of(study, dataset)
    data, source, placement, train, _, valid, *_ = divided
    all_take_part = isinstance(run.sampling, Full | Geometric) or study.timeline is not None
    if not all_take_part and run.cohort.cohort_size > data.num_clients:
        raise ValueError(
            f"cohort_size is {run.cohort.cohort_size}; expected 1 .. {data.num_clients}, the "
            "clients"
        )
    rule = batches(run.algorithms)
    seed = run.population.partition_seed if attack_seed is None else attack_seed
    attack = attack_of(run.attack, data.num_clients, seed)
    if attack is not None and isinstance(source, FederatedData):
        source = attack.poisoned(source, dataset.num_classes)
    task = empirical_task(loss, source, rule, placement=placement)
    init_keys, schedule_keys, run_keys = seed_keys(run.seed, run.seeds)
    with own_code("model of the study"):
        params = initial_params(run.model.initial_model, run.adapters, net, init_keys)
    if run.execution.precision == "float64":
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    description = {
        "data": {
            "name": dataset.name,
            "source": dataset.source,
            "train_examples": len(train["y"]),
            "valid_examples": 0 if valid is None else len(valid["y"]),
            "test_examples": len(divided.test["y"]),
            "classes": dataset.num_classes,
            "class_names": dataset.class_names,
            "shape": list(dataset.train["x"].shape[1:]),
            "dtype": str(dataset.train["x"].dtype),
            **_scaling(dataset),
        },
        "partition": summarize(data, dataset.num_classes)._asdict(),
        "model": {
            "name": model_name,
            "parameters": sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(params)),
        },
    }
    entries = entries_of(study)
    statistics = statistics_of(run.model.statistics, entries.values())
    own_statistics = bool(net.statistics) and statistics == "private"
    clock = None if isinstance(run.time, Rounds) else _clock(run, run.time, data.num_clients)
    setup = Setup(
        task,
        timelines(study, task, schedule_keys)
        if clock is None
        else clock.timelines(next(iter(entries)), schedule_keys),
        params,
        eval_fn=evaluation(
            run.evaluation,
            run.attack,
            metrics,
            divided,
            lambda data: empirical_task(loss, data, rule),
            own_statistics and not run.execution.num_strata and run.execution.states == "device",
        ),
        eval_every=run.time.eval_every if isinstance(run.time, Rounds) else 1,
        weighting=weight_by_examples if run.cohort.weighting == "examples" else uniform_weights,
    )
    parts = Parts(data, rule, net, dataset.num_classes, losses, divided)
    return Problem(setup, run_keys, parts, description, clock, schedule_keys, run, attack)


def _of_setup(study: Study) -> Problem:
    """Returns the problem of a study with a setup of its own for every seed."""
    assert study.setup is not None
    run = study.options
    with own_code("setup of the study"):
        setups = [study.setup(seed) for seed in range(run.seed, run.seed + run.seeds)]
    for setup in setups:
        if not isinstance(setup, Setup) or setup.timeline.clients.ndim != 2:
            raise ValueError(
                "setup of the study returned "
                f"{type(setup).__name__}; expected a fedjax_sim.Setup of one seed"
            )
    timeline, params = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[(setup.timeline, setup.params) for setup in setups]
    )
    first = dataclasses.replace(setups[0], timeline=timeline, params=params)
    _, schedule_keys, run_keys = seed_keys(run.seed, run.seeds)
    attack = attack_of(run.attack, first.task.num_clients, run.population.partition_seed)
    return Problem(first, run_keys, None, {}, None, schedule_keys, run, attack)


def entries_of(study: Study) -> dict[str, AlgorithmEntry]:
    """Returns the algorithms of a comparison by name."""
    return algorithms_of(study.options.algorithms.algorithms, study.algorithms)


def clients_of(study: Study, dataset: Dataset) -> Clients:
    """Returns the training examples of a comparison, divided among the clients."""
    run = study.options
    placed = Placement(
        run.execution.num_strata, run.execution.examples_memory, run.execution.states == "host"
    )
    own = None if study.rows is None else functools.partial(_own_rows, study.rows)
    return clients(run.population, own or run.partition, run.shift, placed, dataset)


def _own_rows(rows: Any, dataset: Dataset, seed: int) -> Division:
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


def _scaling(dataset: Dataset) -> dict[str, Any]:
    """Returns the map from raw features to those of the model, for config.json."""
    if dataset.scaling is None:
        return {}
    return {"scaling": {key: values.tolist() for key, values in dataset.scaling._asdict().items()}}


def model(study: Study, dataset: Dataset, conv: Convolution = models.auto) -> tuple[str, Model]:
    """Returns the model's name and the model; "auto" chooses by the examples' shape."""
    x = dataset.train["x"]
    run = study.options
    if study.model is not None:
        with own_code("model of the study"):
            net = _own_model(study.model, x)
        return "of the study", adapted(net, run.adapters)
    name = run.model.model
    if name == "auto":
        tokens = np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8
        sequences = dataset.train["y"].ndim == 2
        token_models = AUTO_SEQUENCE_MODELS if sequences else AUTO_TOKEN_MODELS
        known = token_models if tokens else AUTO_MODELS
        name = known.get(x.shape[1:], "softmax_regression")
    net = named_model(name, x.shape[1:], dataset.num_classes, conv)
    return name, adapted(net, run.adapters)


def named_model(
    name: str, shape: tuple[int, ...], num_classes: int, conv: Convolution = models.auto
) -> Model:
    """Returns a model by name, for examples of a shape."""
    if name not in MODELS:
        raise ValueError(
            f"model is {name!r}; expected auto or one of {', '.join(MODELS)}"
            f"{did_you_mean(name, MODELS)}"
        )
    taken, build = MODELS[name]
    if taken not in (None, shape):
        raise ValueError(
            f"model is {name!r}, which takes examples of shape {list(taken)}; expected one for "
            f"{list(shape)}, the shape of the examples{layout_hint(shape, taken)}"
        )
    return _built(build, shape, num_classes, conv)


@functools.cache
def _built(build: Any, shape: tuple[int, ...], classes: int, conv: Convolution) -> Model:
    """One object for equal arguments, so that rebuilding a problem does not recompile."""
    return build(shape, classes, conv)


def _own_model(net: Model | linen.Module, x: np.ndarray) -> Model:
    if isinstance(net, linen.Module):
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        inputs = jax.eval_shape(as_float, jax.ShapeDtypeStruct((1, *x.shape[1:]), dtype))
        return _from_linen(net, inputs.shape, inputs.dtype.name)
    return net


def _check_outputs(net: Model, dataset: Dataset) -> None:
    """Refuses a model whose outputs do not suit the labels; compiles nothing."""
    x, y = (np.asarray(dataset.train[key][:3]) for key in ("x", "y"))
    outputs = jax.eval_shape(lambda: net.apply(net.init(jax.random.key(0)), as_float(x)))
    shape, expected = getattr(outputs, "shape", None), (*y.shape, dataset.num_classes)
    if shape != expected and not (dataset.target == "numbers" and shape == y.shape):
        raise ValueError(
            f"model of the study returned outputs of shape {shape} for {len(y)} examples; expected "
            f"{expected}"
        )


@functools.cache
def _from_linen(net: linen.Module, shape: tuple[int, ...], dtype: str) -> Model:
    return models.from_linen(net, jax.ShapeDtypeStruct(shape, dtype))


@functools.cache
def _functions(
    net: Model, half: bool, statistics: str, losses: Losses, ignore: int | None
) -> tuple[Objective, Metrics]:
    """Loss and metrics, one object each per model, so that rebuilding a problem does not recompile.

    In half precision only the clients' models are half; the server's are evaluated as they are.
    """
    trained = trained_model(net, statistics)
    trained = in_precision(trained, jnp.bfloat16) if half else trained
    return losses.objective(trained, ignore), losses.evaluated(net, ignore)


def batches(options: AlgorithmOptions) -> Batches:
    """Returns the minibatch rule: local steps if given, else local epochs."""
    if options.local_steps is not None:
        return with_replacement(options.batch_size, options.local_steps)
    return epochs(options.local_epochs, options.batch_size)


def seed_keys(first: int, count: int) -> tuple[Array, Array, Array]:
    """Returns keys of the initial models, of the timelines and of the runs, ``[count]`` each."""
    return _seed_keys(np.arange(first, first + count, dtype=np.uint32))


@jax.jit
def _seed_keys(seeds: Array) -> tuple[Array, Array, Array]:
    keys = jax.vmap(lambda seed: jax.random.split(fast(jax.random.key(seed)), 3))(seeds)
    init, schedule, run = (usual(keys[:, i]) for i in range(3))
    return init, schedule, run


def timelines(study: Study, task: Task, keys: Array) -> Timeline:
    """Returns one timeline of rounds per key, ``[n, T, S]``."""
    run = study.options
    assert isinstance(run.time, Rounds)
    rounds, num_strata = run.time.rounds, run.execution.num_strata

    def schedule(key: Array) -> Timeline:
        sample_key, dropout_key = usual(jax.random.split(fast(key)))
        if study.timeline is None:
            timeline = drawn(
                run.sampling,
                rounds,
                run.cohort.cohort_size,
                sample_key,
                task.num_examples,
                task.num_steps,
                num_strata,
            )
        else:
            timeline = _own_timeline(study.timeline, sample_key, task)
        if run.cohort.dropout:
            timeline = sampling.dropout(dropout_key, timeline, run.cohort.dropout)
        return failing(run.cohort, dropout_key, timeline)

    if study.timeline is not None:
        return stacked([schedule(key) for key in keys])
    every = jax.jit(jax.vmap(schedule))(keys)
    if num_strata is None or isinstance(run.sampling, Stratified):
        return every
    return arrange_by_stratum(every, task.num_clients, num_strata)


def _own_timeline(own: Any, key: Array, task: Task) -> Timeline:
    with own_code("timeline of the study"):
        timeline = own(key, task) if callable(own) else own
    if not isinstance(timeline, Timeline) or np.ndim(timeline.clients) != 2:
        kind = type(timeline).__name__
        raise ValueError(
            f"timeline of the study is {kind}; expected a fedjax_sim.Timeline of clients [T, S]"
        )
    return timeline


def _clock(run: Run, options: ClockOptions, num_clients: int) -> Clock:
    return Clock(
        options,
        step_law(options.law, num_clients, run.population.partition_seed),
        num_clients,
        run.cohort.cohort_size,
        run.algorithms.local_steps or 1,
        functools.partial(failing, run.cohort),
    )


def changes_data(run: Run) -> bool:
    """Returns True for an attack that changes the attackers' examples."""
    return isinstance(run.attack, LabelFlip | Backdoor)
