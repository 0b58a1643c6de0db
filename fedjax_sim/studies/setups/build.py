"""From a study to objects: :func:`resolve` turns options and own parts into a comparison."""

import dataclasses
import pathlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_sim import models
from fedjax_sim.checks import shapes_of_one
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine import Execution, check_run, offload
from fedjax_sim.models import Convolution
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.config_file import Record, record_of
from fedjax_sim.studies.setups.data import examples_digest
from fedjax_sim.studies.setups.entries import AlgorithmEntry
from fedjax_sim.studies.setups.evaluation import Evaluation
from fedjax_sim.studies.setups.execution import ExecutionOptions, arithmetic, strategy_of
from fedjax_sim.studies.setups.own_digests import OwnDigests, of_parts, of_setup
from fedjax_sim.studies.setups.privacy import Accounts, Privacy, accounts_of, check_parts
from fedjax_sim.studies.setups.problem import (
    Problem,
    batches,
    clients_of,
    entries_of,
    load_dataset,
    prepare,
)
from fedjax_sim.studies.setups.robust import check_uploads
from fedjax_sim.studies.setups.selection import AdaComm
from fedjax_sim.studies.setups.settings import check_tuning, resolve_hyper, untuned_rates
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.studies.setups.time import Time
from fedjax_sim.types import FedAlgorithm, Setup
from fedjax_sim.wrappers import Guarantee


class ResolvedRun(NamedTuple):
    """A comparison that is built: what runs it, saves it and prints it takes nothing else."""

    entries: dict[str, AlgorithmEntry]  # by algorithm
    hyper: dict[str, dict[str, Any]]  # by algorithm
    problem: Problem  # with a partition per seed: of the first seed, with the keys of all
    setups: dict[str, Setup]  # by algorithm
    setup_of_seed: Callable[[str, int, Convolution], Setup] | None  # where seeds run one by one
    lowered: Callable[[Convolution], Problem]  # the problem with its convolutions computed so
    accounts: Accounts  # with the noise that a target of privacy requires
    guarantee: Guarantee | None  # of all algorithms, with privacy
    seeds: list[str]  # names of the replicas
    batch_size: int
    time: Time
    evaluation: Evaluation
    computed: ExecutionOptions
    output: pathlib.Path
    record: Record  # of all options, for config.json and captions
    examples: str | None  # digest of the data set; None: of a setup of the study's own
    own: OwnDigests  # of the parts of a study module
    untuned: str | None  # note on algorithms without a rate tuned for the preset

    @property
    def execution(self) -> Execution | None:
        """The strategy; None: a stored choice, else by the rules of strategies.auto."""
        return strategy_of(self.computed)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Returns the context around all computations."""
        return arithmetic(self.computed)

    def algorithm(self, name: str) -> FedAlgorithm:
        """Returns one of the algorithms, for the clients of the problem."""
        return self.problem.algorithm(self.entries[name], self.hyper[name], self.accounts.options)

    def config_of(self, name: str) -> dict[str, Any]:
        """Returns the values that identify one of the runs, besides its setup and its key."""
        return {"algorithm": name, "hyper": dict(self.hyper[name]), **self.record.identity}


def resolve(study: Study) -> ResolvedRun:
    """Returns the comparison that a study describes; loads the data.

    Example:
        >>> from fedjax_sim.studies.setups.presets import options
        >>> resolve(Study(options(algorithms=("fedavg",), seeds=2))).hyper
        {'fedavg': {'lr': 0.2}}
    """
    check_study(study)
    run = study.options
    entries = entries_of(study)
    hyper = resolve_hyper(entries, run.algorithms)
    for name, entry in entries.items():
        check_tuning(entry, hyper[name])
    if jax.process_count() > 1 and run.execution.num_strata is None:
        raise ValueError(
            f"num_strata is None; expected a multiple of the {jax.device_count()} devices of the "
            f"{jax.process_count()} processes"
        )
    dataset, seed = load_dataset(study), run.population.partition_seed
    check_steps(study, dataset)
    shown = of_first_partition(study)

    def lowered(conv: Convolution) -> Problem:
        with arithmetic(run.execution):
            return prepare(shown, dataset, conv, attack_seed=seed)

    def setup_of_seed(algorithm: str, own_seed: int, conv: Convolution) -> Setup:
        with arithmetic(run.execution):
            # What an algorithm is built from (attackers, accounting) is that of all seeds.
            own = prepare(of_seed(study, own_seed), dataset, conv, attack_seed=seed)
            return one_seed(own.setup_of(algorithm))

    one_by_one = run.population.partition_per_seed or study.setup is not None
    problem = lowered(models.auto)
    with arithmetic(run.execution):
        if dataset is None:
            own = of_setup(problem.setup, problem.keys)
        else:
            own = of_parts(study, dataset, problem.setup.task)
    setups = {name: problem.setup_of(name) for name in hyper}
    accounts = accounts_of(run.privacy, problem.setup)
    accounts = accounts._replace(options=accounts.with_noise())
    rates = untuned_rates(entries, hyper, run.algorithms)
    texts = " ".join(f"{name}.lr={rate}" for name, rate in rates.items())
    comparison = ResolvedRun(
        entries=entries,
        hyper=hyper,
        problem=problem,
        setups=setups,
        setup_of_seed=setup_of_seed if one_by_one else None,
        lowered=lowered,
        accounts=accounts,
        guarantee=None,
        seeds=[str(run.seed + i) for i in range(run.seeds)],
        batch_size=run.algorithms.batch_size,
        time=run.time,
        evaluation=run.evaluation,
        computed=run.execution,
        output=run.output,
        record=record_of(study, accounts.options),
        examples=examples_digest(dataset),
        own=own,
        untuned=f"not tuned for these settings, default rate: {texts}" if rates else None,
    )
    with arithmetic(run.execution):
        for name in hyper:
            _check_memory(run.execution.examples_memory, setups[name])
            check_uploads(run.robust, setups[name].timeline)
            _check_algorithm(comparison, name, run.privacy)
    return comparison._replace(guarantee=accounts.guarantee())


def _check_memory(gigabytes: float | None, setup: Setup) -> None:
    """Refuses a memory for examples that those of one round's clients exceed."""
    if gigabytes is None:
        return
    try:
        offload.plan(setup.task, setup.timeline, 0, setup.eval_every, setup.eval_every)
    except ValueError as error:
        raise ValueError(f"examples_memory is {gigabytes} gigabytes: {error}") from error


def _check_algorithm(comparison: ResolvedRun, name: str, privacy: Privacy) -> None:
    setup, algorithm = comparison.setups[name], comparison.algorithm(name)
    check_run({name: algorithm}, setup, len(comparison.problem.keys))
    try:
        # What only the model's leaves can show, such as none that are private.
        jax.eval_shape(algorithm.init, shapes_of_one(setup.params, batched=True))
    except ValueError as error:  # of several algorithms, which one
        raise ValueError(f"algorithms has {name!r}: {error}") from error
    check_parts(algorithm, privacy, setup)


def of_seed(study: Study, seed: int) -> Study:
    """Returns the study of one seed alone, whose partition has a seed of its own."""
    run, population = study.options, study.options.population
    if population.partition_per_seed:
        population = dataclasses.replace(
            population,
            partition_seed=population.partition_seed + seed,
            partition_per_seed=False,
        )
    run = dataclasses.replace(run, seed=seed, seeds=1, population=population)
    return study.replaced(options=run)


def of_first_partition(study: Study) -> Study:
    """Returns a study with one partition, that of the first seed, and the keys of all seeds."""
    run = study.options
    if not run.population.partition_per_seed:
        return study
    first = of_seed(study, run.seed).options.population
    population = dataclasses.replace(run.population, partition_seed=first.partition_seed)
    return study.replaced(options=dataclasses.replace(run, population=population))


def check_steps(study: Study, dataset: Dataset | None) -> None:
    """Refuses adaptive local steps that would begin with those of another seed's partition."""
    run = study.options
    per_seed = run.population.partition_per_seed and isinstance(run.selection, AdaComm)
    if dataset is None or not per_seed:
        return
    rule, seeds = batches(run.algorithms), range(run.seed, run.seed + run.seeds)
    sizes = [clients_of(of_seed(study, seed), dataset).data.sizes for seed in seeds]
    most = [int(rule.num_steps(np.asarray(own, np.int64)).max()) for own in sizes]
    if len(set(most)) > 1:
        raise ValueError(
            f"selection is 'adacomm', and clients do at most {', '.join(map(str, most))} local "
            f"steps in the partitions of seeds {seeds[0]} .. {seeds[-1]}; expected one number for "
            "all, as with --local-steps or clients of equal sizes"
        )


def one_seed(setup: Setup) -> Setup:
    """Returns a setup of one seed without the axis of seeds."""
    timeline, params = jax.tree.map(lambda x: x[0], (setup.timeline, setup.params))
    return dataclasses.replace(setup, timeline=timeline, params=params)
