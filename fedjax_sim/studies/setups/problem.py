"""From options to the problem of a comparison: clients, timelines, models, evaluation."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import models
from fedjax_sim.data import (
    Batches,
    FederatedData,
    Objective,
    empirical_task,
    epochs,
    summarize,
    with_replacement,
)
from fedjax_sim.datasets import IGNORE, Dataset, layout_hint
from fedjax_sim.models import Convolution, Model, in_precision
from fedjax_sim.objectives import Metrics, as_float
from fedjax_sim.studies.setups import own_objects
from fedjax_sim.studies.setups.adapters import adapted, initial_params, on_adapters
from fedjax_sim.studies.setups.aggregators import aggregated
from fedjax_sim.studies.setups.attacks import Attack, attack_of
from fedjax_sim.studies.setups.clients import clients
from fedjax_sim.studies.setups.clocks import Clock, step_law
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.entries import AlgorithmEntry, Hyper, StepsPerVisit
from fedjax_sim.studies.setups.evaluation import evaluation
from fedjax_sim.studies.setups.model_statistics import for_model, statistics_of, trained_model
from fedjax_sim.studies.setups.names import AUTO_MODELS, AUTO_SEQUENCE_MODELS, AUTO_TOKEN_MODELS
from fedjax_sim.studies.setups.own_functions import OwnFunctions
from fedjax_sim.studies.setups.own_objects import own_timeline
from fedjax_sim.studies.setups.private_runs import privatized
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.timelines import (
    arrange_by_stratum,
    delay_uploads,
    lose_uploads,
    sampling,
    stacked,
)
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


class Problem(NamedTuple):
    """The part of a comparison that all algorithms share; n seeds."""

    setup: Setup  # params [n, ...]; the timeline [n, T, S], with a clock of the first one
    keys: Array  # [n]
    data: FederatedData  # with --num-strata the labels only
    batches: Batches
    model: Model
    num_classes: int  # 1: of numbers
    description: dict[str, Any]  # of data, partition and model, for config.json
    clock: Clock | None
    eval_time: float  # with a clock: simulated time between evaluations
    schedule_keys: Array  # [n]
    config: RunConfig
    attack: Attack | None  # --attack

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
        every = int(np.clip(round(self.eval_time / per_update), 1, timeline.num_rounds))
        if timeline.num_rounds >= _EVALUATIONS // 2 * every:
            timeline = timeline[: timeline.num_rounds // every * every]
        return dataclasses.replace(self.setup, timeline=timeline, eval_every=every)

    def algorithm(self, entry: AlgorithmEntry, hyper: Hyper) -> FedAlgorithm:
        """Returns an algorithm for this problem's clients."""
        algorithm = entry.build(hyper, self.steps_per_visit(entry), self.setup.task.num_clients)
        timeline = self.setup.timeline
        return wrapped(entry, algorithm, hyper, self.model, self.config, self.attack, timeline)

    def steps_per_visit(self, entry: AlgorithmEntry) -> StepsPerVisit | None:
        """Returns the law of a client's steps per visit, if the algorithm needs it."""
        if self.clock is None or not entry.reweights_visits:
            return None
        return self.clock.steps_per_visit()


def wrapped(
    entry: AlgorithmEntry,
    algorithm: FedAlgorithm,
    hyper: Hyper,
    model: Model,
    config: RunConfig,
    attack: Attack | None,
    timeline: Timeline | None,
) -> FedAlgorithm:
    """Returns an algorithm with the wrappers that follow all others.

    These are the adapters, the running statistics, the robust rule, the attack and the privacy.

    Args:
        entry: of the algorithm.
        algorithm: as the entry builds it.
        hyper: its hyper-parameters, with those of rule and privacy.
        model: the model that is trained.
        config: the options.
        attack: ``--attack``.
        timeline: of all seeds, for privacy; None: there is none.
    """
    of_adapters = on_adapters(algorithm, config.adapters)
    statistics = statistics_of(config.statistics, [entry])
    trained = for_model(of_adapters, model.statistics, statistics)
    ruled = aggregated(trained, hyper.get("aggregator"))
    attacked = ruled if attack is None else attack.on(ruled)
    return privatized(attacked, hyper, timeline)


def prepare(
    config: RunConfig,
    dataset: Dataset,
    conv: Convolution = models.auto,
    attack_seed: int | None = None,
) -> Problem:
    """Returns clients, timelines, initial models and evaluation of a comparison.

    Seed s gives the keys of the initial model, of the timeline and of the minibatches, so these
    are the same for every algorithm.

    Args:
        config: the options.
        dataset: the data set that they name.
        conv: how convolutions are computed.
        attack_seed: of the attackers; default: the partition's.

    Raises:
        ValueError: a model or partition that does not suit the data set, a cohort larger than the
            population, a clock that admits no timeline.
    """
    model_name, net = model(config, dataset, conv)
    own = OwnFunctions.of(config, dataset)
    own.check(net, dataset)
    ignore = IGNORE if dataset.train["y"].ndim == 2 else None
    half = config.precision == "bfloat16"
    loss, metrics = _functions(net, half, config.statistics, own, ignore)
    divided = clients(config, dataset)
    data, source, placement, train, _, valid, *_ = divided
    all_take_part = config.sampling in ("full", "geometric") or config.timeline is not None
    if not all_take_part and config.cohort_size > data.num_clients:
        raise ValueError(
            f"cohort_size is {config.cohort_size}; expected 1 .. {data.num_clients}, the clients"
        )
    rule = batches(config)
    attack = attack_of(config, data.num_clients, attack_seed)
    if attack is not None and isinstance(source, FederatedData):
        source = attack.poisoned(source, dataset.num_classes)
    task = empirical_task(loss, source, rule, placement=placement)
    init_keys, schedule_keys, run_keys = seed_keys(config)
    params = initial_params(config, net, init_keys)
    if config.precision == "float64":
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
    entries = algorithms_of(config.algorithms).values()
    statistics = statistics_of(config.statistics, entries) if net.statistics else "averaged"
    clock = None if config.clock == "none" else _clock(config, data.num_clients)
    setup = Setup(
        task,
        timelines(config, task, schedule_keys)
        if clock is None
        else clock.timelines(config.algorithms[0], schedule_keys),
        params,
        eval_fn=evaluation(
            config, metrics, divided, lambda data: empirical_task(loss, data, rule), statistics
        ),
        eval_every=config.eval_every,
        weighting=weight_by_examples if config.weighting == "examples" else uniform_weights,
    )
    return Problem(
        setup,
        run_keys,
        data,
        rule,
        net,
        dataset.num_classes,
        description,
        clock,
        config.eval_time or config.horizon / _EVALUATIONS,
        schedule_keys,
        config,
        attack,
    )


def _scaling(dataset: Dataset) -> dict[str, Any]:
    """Returns the map from raw features to those of the model, for config.json."""
    if dataset.scaling is None:
        return {}
    return {"scaling": {key: values.tolist() for key, values in dataset.scaling._asdict().items()}}


def model(
    config: RunConfig, dataset: Dataset, conv: Convolution = models.auto
) -> tuple[str, Model]:
    """Returns the model's name and the model; "auto" chooses by the examples' shape.

    Raises:
        ValueError: a model that takes examples of another shape.
    """
    x = dataset.train["x"]
    if config.model == "auto":
        tokens = np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8
        sequences = dataset.train["y"].ndim == 2
        token_models = AUTO_SEQUENCE_MODELS if sequences else AUTO_TOKEN_MODELS
        known = token_models if tokens else AUTO_MODELS
        name = known.get(x.shape[1:], "softmax_regression")
        config = dataclasses.replace(config, model=name)
    return config.model, build_model(config, x.shape[1:], dataset.num_classes, x.dtype, conv)


def build_model(
    config: RunConfig,
    shape: tuple[int, ...],
    num_classes: int,
    dtype: Any,
    conv: Convolution = models.auto,
) -> Model:
    """Returns the model that the options name, for examples of a shape and type.

    Raises:
        ValueError: a model that takes examples of another shape.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    inputs = jax.eval_shape(as_float, jax.ShapeDtypeStruct((1, *shape), dtype))
    taken, build = own_objects.model_row(config, inputs.dtype)
    if taken not in (None, shape):
        raise ValueError(
            f"model is {config.model!r}, which takes examples of shape {list(taken)}; expected one "
            f"for {list(shape)}, the shape of {config.dataset}{layout_hint(shape, taken)}"
        )
    net = _built(build, shape, num_classes, conv)
    return net if config.adapters is None else adapted(net, config.adapters)


@functools.cache
def _built(build: Callable, shape: tuple[int, ...], classes: int, conv: Convolution) -> Model:
    """One object for equal arguments, so that rebuilding a problem does not recompile."""
    return build(shape, classes, conv)


@functools.cache
def _functions(
    net: Model, half: bool, statistics: str, own: OwnFunctions, ignore: int | None
) -> tuple[Objective, Metrics]:
    """Loss and metrics, one object each per model, so that rebuilding a problem does not recompile.

    In half precision only the clients' models are half; the server's are evaluated as they are.
    """
    trained = trained_model(net, statistics)
    trained = in_precision(trained, jnp.bfloat16) if half else trained
    return own.objective(trained, ignore), own.evaluated(net, ignore)


def batches(config: RunConfig) -> Batches:
    """Returns the minibatch rule: local steps if given, else local epochs."""
    if config.local_steps is not None:
        return with_replacement(config.batch_size, config.local_steps)
    return epochs(config.local_epochs, config.batch_size)


def seed_keys(config: RunConfig) -> tuple[Array, Array, Array]:
    """Returns keys of the initial models, of the timelines and of the runs, ``[seeds]`` each."""
    seeds = np.arange(config.seed, config.seed + config.seeds, dtype=np.uint32)
    return _seed_keys(seeds)


@jax.jit
def _seed_keys(seeds: Array) -> tuple[Array, Array, Array]:
    keys = jax.vmap(lambda seed: jax.random.split(fast(jax.random.key(seed)), 3))(seeds)
    init, schedule, run = (usual(keys[:, i]) for i in range(3))
    return init, schedule, run


def timelines(config: RunConfig, task: Task, keys: Array) -> Timeline:
    """Returns one timeline of rounds per key, ``[n, T, S]``."""
    reference = own_objects.reference_of(config, "timeline")
    rule = own_objects.sampling_of(config) if reference is None else own_timeline(reference)

    def schedule(key: Array) -> Timeline:
        sample_key, dropout_key = usual(jax.random.split(fast(key)))
        drawn = rule(config, sample_key, task.num_examples, task.num_steps)
        if config.dropout:
            drawn = sampling.dropout(dropout_key, drawn, config.dropout)
        return failing(config, dropout_key, drawn)

    if reference is not None:
        return stacked([schedule(key) for key in keys])
    drawn = jax.jit(jax.vmap(schedule))(keys)
    if config.num_strata is None or config.sampling == "stratified":
        return drawn
    return arrange_by_stratum(drawn, task.num_clients, config.num_strata)


def failing(config: RunConfig, key: Array, timeline: Timeline) -> Timeline:
    """Returns a timeline with lost and late uploads, as the options say.

    The draws do not depend on the probabilities.
    """
    if config.lost:
        timeline = lose_uploads(jax.random.fold_in(key, 1), timeline, config.lost)
    if config.late:
        timeline = delay_uploads(
            jax.random.fold_in(key, 2), timeline, config.late, delay=config.delay
        )
    return timeline


def _clock(config: RunConfig, num_clients: int) -> Clock:
    law = step_law(
        config.clock,
        num_clients,
        step_time=config.step_time,
        slow_fraction=config.slow_fraction,
        slow_factor=config.slow_factor,
        log_sigma=config.log_sigma,
        trace=None if config.trace is None else str(config.trace),
        seed=config.partition_seed,
    )
    return Clock(
        law,
        num_clients,
        config.cohort_size,
        config.local_steps or 1,
        config.interval,
        config.interaction,
        config.buffer_size,
        config.concurrency,
        config.horizon,
        config.updates,
        functools.partial(failing, config),
    )
