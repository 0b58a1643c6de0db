"""From options to the problem of a comparison: clients, timelines, models, evaluation."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import models
from fedjax_sim.data import (
    Batches,
    FederatedData,
    empirical_task,
    epochs,
    summarize,
    with_replacement,
)
from fedjax_sim.datasets import IGNORE, Dataset, check_dataset
from fedjax_sim.models import Convolution, Model
from fedjax_sim.studies.setups.attack import Attacked, attack_of
from fedjax_sim.studies.setups.clients import Clients, Placement, clients
from fedjax_sim.studies.setups.compression import CodecOptions, Feedback, compressed
from fedjax_sim.studies.setups.data import load
from fedjax_sim.studies.setups.entries import AlgorithmEntry, Hyper, StepsPerVisit
from fedjax_sim.studies.setups.evaluation import evaluation
from fedjax_sim.studies.setups.losses import Losses
from fedjax_sim.studies.setups.model import (
    Adapters,
    check_outputs,
    for_model,
    functions_of,
    initial_params,
    model_of,
    on_adapters,
    statistics_of,
)
from fedjax_sim.studies.setups.own_code import own_code
from fedjax_sim.studies.setups.partition import own_division
from fedjax_sim.studies.setups.privacy import Privacy, privatized
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.studies.setups.robust import Robust, aggregated
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import Full, Geometric, sized, timelines
from fedjax_sim.studies.setups.selection import Selection, selected
from fedjax_sim.studies.setups.settings import AlgorithmOptions
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.studies.setups.time import Clock, Rounds, clock_of
from fedjax_sim.tree import fast, usual
from fedjax_sim.types import (
    FedAlgorithm,
    Params,
    Setup,
    Timeline,
    uniform_weights,
    weight_by_examples,
)

_EVALUATIONS = 40  # of a run with a clock, by default


class Problem(NamedTuple):
    """The part of a comparison that all algorithms share; n seeds."""

    setup: Setup  # params [n, ...]; the timeline [n, T, S], with a clock of the first one
    keys: Array  # [n]
    parts: "Parts | None"  # None: the setup is a study module's
    description: dict[str, Any]  # of data, partition and model, for config.json
    clock: Clock | None
    schedule_keys: Array  # [n]
    wrappers: "Wrappers"
    attack: Attacked | None
    periods: dict[str, int]  # rounds between evaluations, of those options that have their own

    def setup_of(self, algorithm: str) -> Setup:
        """Returns the setup of one algorithm: with a clock it has a timeline of its own.

        A timeline with many evaluations ends with the last whole interval between two of them, so
        that one program serves all segments of the run.  The interval divides the periods.
        """
        if self.clock is None:
            return self.setup
        timeline = self.clock.timelines(algorithm, self.schedule_keys)
        times = np.asarray(timeline.time)
        per_update = times.max() / timeline.num_rounds
        options = self.clock.options
        eval_time = options.eval_time or options.horizon / _EVALUATIONS
        every = int(np.clip(round(eval_time / per_update), 1, timeline.num_rounds))
        updates = f"server updates of {algorithm} on the clock"
        _check_periods(self.periods, timeline.num_rounds, updates)
        common = math.gcd(*self.periods.values())  # 0 without any, which all numbers divide
        every = max(n for n in range(1, every + 1) if common % n == 0)
        if timeline.num_rounds >= _EVALUATIONS // 2 * every:
            timeline = timeline[: timeline.num_rounds // every * every]
        return dataclasses.replace(self.setup, timeline=timeline, eval_every=every)

    def algorithm(self, entry: AlgorithmEntry, hyper: Hyper, privacy: Privacy) -> FedAlgorithm:
        """Returns an algorithm for this problem's clients."""
        model = None if self.parts is None else self.parts.model
        steps, num_clients = self.steps_per_visit(entry), self.setup.task.num_clients
        algorithm = entry.build(hyper, steps, num_clients, model)
        wrappers = self.wrappers._replace(privacy=privacy)
        return wrappers.on(algorithm, entry, model, self.attack, self.setup.timeline)

    def steps_per_visit(self, entry: AlgorithmEntry) -> StepsPerVisit | None:
        """Returns the law of a client's steps per visit, if the algorithm needs it."""
        if self.clock is None or not entry.reweights_visits:
            return None
        return self.clock.steps_per_visit()


def _check_periods(periods: dict[str, int], rounds: int, kind: str) -> None:
    """Refuses periods between evaluations of which only the initial model would be evaluated."""
    for name, period in periods.items():
        if period > rounds:
            raise ValueError(f"{name} is {period}; expected at most {rounds}, the {kind}")


class Parts(NamedTuple):
    """Data, model and losses that the setup of a comparison is built from."""

    data: FederatedData  # with --num-strata the labels only
    batches: Batches
    model: Model
    num_classes: int  # 1: of numbers
    losses: Losses
    clients: Clients


class Wrappers(NamedTuple):
    """Options of the wrappers of all algorithms, whose numbers may be traced."""

    compress: CodecOptions
    feedback: Feedback
    compress_down: CodecOptions
    adapters: Adapters
    statistics: str
    robust: Robust
    selection: Selection
    privacy: Privacy

    @classmethod
    def of(cls, run: Run) -> "Wrappers":
        """Returns those of all options."""
        return cls(
            run.compress, run.feedback, run.compress_down, run.adapters, run.model.statistics,
            run.robust, run.selection, run.privacy,
        )  # fmt: skip

    def on(
        self,
        algorithm: FedAlgorithm,
        entry: AlgorithmEntry,
        model: Model | None,
        attack: Attacked | None,
        timeline: Timeline,
    ) -> FedAlgorithm:
        """Returns the algorithm of an entry with all wrappers, in their order.

        The model is None where no model of this package is known; the timeline is that of all
        seeds, concrete.
        """
        try:
            return self._on(algorithm, entry, model, attack, timeline)
        except ValueError as error:
            if not str(error).startswith("algorithm "):  # of an option
                raise
            raise ValueError(f"algorithms has {entry.name!r}: {error}") from error

    def _on(
        self,
        algorithm: FedAlgorithm,
        entry: AlgorithmEntry,
        model: Model | None,
        attack: Attacked | None,
        timeline: Timeline,
    ) -> FedAlgorithm:
        algorithm = compressed(algorithm, self.compress, self.feedback, self.compress_down)
        algorithm = on_adapters(algorithm, self.adapters)
        if model is not None:
            statistics = statistics_of(self.statistics, [entry])
            algorithm = for_model(algorithm, model.statistics, statistics)
        algorithm = aggregated(algorithm, self.robust)
        if attack is not None:
            algorithm = attack.on(algorithm)
        algorithm = selected(algorithm, self.selection, timeline)
        return privatized(algorithm, self.privacy, timeline)


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
    name, net = model_of(run.model, run.adapters, study.model, dataset, conv)
    losses = Losses.of(dataset, run.model.loss, study.loss, study.metrics)
    with own_code("model, loss or metrics of the study"):
        losses.check(net, dataset)
        if study.model is not None and study.loss is None:
            check_outputs(net, dataset)
    ignore = IGNORE if dataset.train["y"].ndim == 2 else None
    half = run.execution.precision == "bfloat16"
    loss, metrics = functions_of(net, half, run.model.statistics, losses, ignore)
    divided = clients_of(study, dataset)
    data, source = divided.data, divided.source
    all_take_part = isinstance(run.sampling, Full | Geometric) or study.timeline is not None
    cohort = sized(run.cohort, data.num_clients)
    if not all_take_part and cohort.cohort_size > data.num_clients:
        raise ValueError(
            f"cohort_size is {cohort.cohort_size}; expected 1 .. {data.num_clients}, the clients "
            "(sampling full takes all of them)"
        )
    rule = batches(run.algorithms)
    seed = run.population.partition_seed if attack_seed is None else attack_seed
    attack = attack_of(run.attack, data.num_clients, seed)
    if attack is not None and isinstance(source, FederatedData):
        source = attack.poisoned(source, dataset.num_classes)
    task = empirical_task(loss, source, rule, placement=divided.placement)
    init_keys, schedule_keys, run_keys = seed_keys(run.seed, run.seeds)
    with own_code("model of the study"):
        params = initial_params(run.model.initial_model, run.adapters, net, init_keys)
    if run.execution.precision == "float64":
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    evaluated = {name: getattr(run.evaluation, name) for name in ("per_client", "personal")}
    periods = {name: period for name, period in evaluated.items() if period is not None}
    entries = entries_of(study)
    statistics = statistics_of(run.model.statistics, entries.values())
    own_statistics = bool(net.statistics) and statistics == "private"
    if isinstance(run.time, Rounds):
        clock, every = None, run.time.eval_every
        strata, rounds = run.execution.num_strata, run.time.rounds
        timeline = timelines(
            run.sampling, cohort, rounds, strata, study.timeline, task, schedule_keys
        )
        _check_periods(periods, timeline.num_rounds, "rounds")
    else:
        num_steps, seed = run.algorithms.local_steps or 1, run.population.partition_seed
        clock, every = clock_of(run.time, cohort, data.num_clients, num_steps, seed), 1
        timeline = clock.timelines(next(iter(entries)), schedule_keys)
    setup = Setup(
        task,
        timeline,
        params,
        eval_fn=evaluation(
            run.evaluation,
            run.attack,
            metrics,
            net,
            divided,
            lambda data: empirical_task(loss, data, rule),
            own_statistics and not run.execution.num_strata and run.execution.states == "device",
        ),
        eval_every=every,
        weighting=weight_by_examples if run.cohort.weighting == "examples" else uniform_weights,
    )
    parts = Parts(data, rule, net, dataset.num_classes, losses, divided)
    described = _described(dataset, divided, name, params)
    wrappers = Wrappers.of(run)
    return Problem(
        setup, run_keys, parts, described, clock, schedule_keys, wrappers, attack, periods
    )


def _described(dataset: Dataset, divided: Clients, name: str, params: Params) -> dict[str, Any]:
    """Returns data, partition and model as config.json has them."""
    valid, scaling = divided.valid, dataset.scaling
    data = {
        "name": dataset.name,
        "source": dataset.source,
        "train_examples": len(divided.train["y"]),
        "valid_examples": 0 if valid is None else len(valid["y"]),
        "test_examples": len(divided.test["y"]),
        "classes": dataset.num_classes,
        "class_names": dataset.class_names,
        "shape": list(dataset.train["x"].shape[1:]),
        "dtype": str(dataset.train["x"].dtype),
    }
    if scaling is not None:  # the map from raw features to those of the model
        data["scaling"] = {key: values.tolist() for key, values in scaling._asdict().items()}
    count = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(params))
    return {
        "data": data,
        "partition": summarize(divided.data, dataset.num_classes)._asdict(),
        "model": {"name": name, "parameters": count},
    }


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
        if run.execution.precision == "float64":
            _check_double(setup.params)
    timeline, params = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[(setup.timeline, setup.params) for setup in setups]
    )
    task = setups[0].task
    if run.execution.precision == "bfloat16":
        task = models.in_precision(task, jnp.bfloat16)
    first = dataclasses.replace(setups[0], task=task, timeline=timeline, params=params)
    _, schedule_keys, run_keys = seed_keys(run.seed, run.seeds)
    attack = attack_of(run.attack, first.task.num_clients, run.population.partition_seed)
    return Problem(first, run_keys, None, {}, None, schedule_keys, Wrappers.of(run), attack, {})


def _check_double(params: Params) -> None:
    """Refuses a model that would compute in its own precision, whatever the option says."""
    kinds = {str(x.dtype) for x in map(jnp.asarray, jax.tree.leaves(params))}
    if kinds := sorted(kind for kind in kinds if "float" in kind and kind != "float64"):
        raise ValueError(
            f"precision is 'float64'; expected a setup of the study whose model is in float64, not "
            f"{', '.join(kinds)}"
        )


def entries_of(study: Study) -> dict[str, AlgorithmEntry]:
    """Returns the algorithms of a comparison by name."""
    return algorithms_of(study.options.algorithms.algorithms, study.algorithms)


def clients_of(study: Study, dataset: Dataset) -> Clients:
    """Returns the training examples of a comparison, divided among the clients."""
    run = study.options
    placed = Placement(
        run.execution.num_strata, run.execution.examples_memory, run.execution.states == "host"
    )
    own = None if study.rows is None else functools.partial(own_division, study.rows)
    return clients(run.population, own or run.partition, run.shift, placed, dataset)


def batches(options: AlgorithmOptions) -> Batches:
    """Returns the minibatch rule: local steps if given, else a fraction of an epoch, or epochs."""
    if options.local_steps is not None:
        return with_replacement(options.batch_size, options.local_steps)
    return epochs(options.epoch_fraction or options.local_epochs, options.batch_size)


def seed_keys(first: int, count: int) -> tuple[Array, Array, Array]:
    """Returns keys of the initial models, of the timelines and of the runs, ``[count]`` each."""
    return _seed_keys(np.arange(first, first + count, dtype=np.uint32))


@jax.jit
def _seed_keys(seeds: Array) -> tuple[Array, Array, Array]:
    keys = jax.vmap(lambda seed: jax.random.split(fast(jax.random.key(seed)), 3))(seeds)
    init, schedule, run = (usual(keys[:, i]) for i in range(3))
    return init, schedule, run
