"""Checks of options against each other, before data are loaded."""

import numpy as np

from fedjax_sim.algorithms import fedavg
from fedjax_sim.studies.setups import fields, privacy
from fedjax_sim.studies.setups.attack import Attacked, Backdoor, LabelFlip
from fedjax_sim.studies.setups.clients import NoShift
from fedjax_sim.studies.setups.compression import compressed
from fedjax_sim.studies.setups.data import HuggingFace, Table
from fedjax_sim.studies.setups.entries import Hyper
from fedjax_sim.studies.setups.evaluation import Evaluation
from fedjax_sim.studies.setups.model import NoAdapters
from fedjax_sim.studies.setups.partition import Natural
from fedjax_sim.studies.setups.privacy import NoPrivacy
from fedjax_sim.studies.setups.robust import NoRule, rule_of
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.sampling import Stratified, Uniform
from fedjax_sim.studies.setups.selection import NoSelection
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.studies.setups.time import SCHEDULES, ClockOptions, Rounds
from fedjax_sim.wrappers import Attackers as Mask


def check_study(study: Study) -> None:
    """Refuses options that no data set could make valid."""
    run = study.options
    fields.check(run)
    _check_seeds(run)
    _check_work(run)
    _check_storage(study)
    _check_evaluation(study)
    _check_wrappers(run)
    _check_time(study)
    reads_column = isinstance(run.partition, Natural) or study.rows is not None
    column = run.data.client_column if isinstance(run.data, Table | HuggingFace) else None
    if column is not None and not reads_column:
        raise ValueError(
            f"client_column is {column!r}; expected partition:natural with it, not "
            f"{run.partition.kind}"
        )


def _check_seeds(run: Run) -> None:
    last = 2**32 - run.seeds
    if run.seed > last:
        raise ValueError(f"seed is {run.seed}; expected an integer of at most {last}")
    population = run.population
    last = 2**32 - run.seed - run.seeds  # partition_seed + seed of the last one is a seed
    if population.partition_per_seed and population.partition_seed > last:
        raise ValueError(
            f"partition_seed is {population.partition_seed}; expected an integer of at most {last} "
            f"with --partition-per-seed, which adds the seeds {run.seed} .. "
            f"{run.seed + run.seeds - 1}"
        )


def _check_work(run: Run) -> None:
    options, cohort = run.algorithms, run.cohort
    if options.epoch_fraction is not None and options.local_steps is not None:
        raise ValueError(
            f"epoch_fraction is {options.epoch_fraction}; expected none with --local-steps"
        )
    if cohort.cohort_fraction is None and cohort.cohort_rounding != "nearest":
        raise ValueError(
            f"cohort_rounding is {cohort.cohort_rounding!r}; expected --cohort-fraction with it"
        )


def _check_storage(study: Study) -> None:
    run, execution = study.options, study.options.execution
    by_stratum = execution.num_strata is not None
    if execution.examples_memory is not None and by_stratum:
        raise ValueError(
            f"examples_memory is {execution.examples_memory}; expected none with --num-strata, "
            "which keeps all examples on the devices"
        )
    if execution.states == "host" and execution.examples_memory is None:
        raise ValueError("states is host; expected --examples-memory with it")
    if isinstance(run.sampling, Stratified) and not by_stratum:
        raise ValueError("num_strata is None; expected a number, which sampling:stratified needs")
    blocks = "which loads the examples of the data set block by block"
    if not isinstance(run.shift, NoShift) and by_stratum:
        raise ValueError(f"shift is {run.shift.kind!r}; expected none with --num-strata, {blocks}")
    if isinstance(run.attack, LabelFlip | Backdoor) and by_stratum:
        raise ValueError(
            f"attack is {run.attack.kind!r}; expected none with --num-strata, {blocks}"
        )
    if study.timeline is not None and by_stratum:
        raise ValueError("timeline of the study is given; expected none with --num-strata")
    if study.setup is not None:
        # What changes data or the model before a setup is made of them.
        changes = {"attack": isinstance(run.attack, LabelFlip | Backdoor)}
        changes["adapters"] = not isinstance(run.adapters, NoAdapters)
        for name in (name for name, given in changes.items() if given):
            kind = getattr(run, name).kind
            raise ValueError(f"{name} is {kind!r}; expected none with a setup of the study")
    if run.population.partition_per_seed or study.setup is not None:
        why = "a setup of the study" if study.setup is not None else "--partition-per-seed"
        if isinstance(run.time, ClockOptions):
            raise ValueError(f"time is 'clock'; expected rounds with {why}")
        for name in ("num_strata", "examples_memory"):
            if (value := getattr(execution, name)) is not None:
                raise ValueError(f"{name} is {value}; expected none with {why}")


# Hyper-parameters of personal models, which only their evaluation has.
_FINE_TUNING = ("tuning_steps", "tuning_lr", "visits", "adapt_steps")


def check_fine_tuning(options: Evaluation, hyper: Hyper) -> None:
    """Refuses hyper-parameters of personal models that are not evaluated."""
    for name in _FINE_TUNING:
        if options.personal is None and hyper.get(name) is not None:
            raise ValueError(
                f"{name} is {hyper[name]}; expected --personal with it, which evaluates the models"
            )


def _check_evaluation(study: Study) -> None:
    run = study.options
    options, population = run.evaluation, run.population
    for name in ("per_client", "personal"):
        if (every := getattr(options, name)) is None:
            continue
        for other in ("num_strata", "examples_memory"):
            if getattr(run.execution, other) is not None:
                raise ValueError(
                    f"{name} is {every}; expected none with --{other.replace('_', '-')}"
                )
        if isinstance(run.time, Rounds) and every % run.time.eval_every:
            raise ValueError(
                f"{name} is {every}; expected a multiple of --eval-every, {run.time.eval_every}"
            )
        if isinstance(run.time, Rounds) and study.timeline is None and every > run.time.rounds:
            # Only the initial model would be evaluated.
            raise ValueError(f"{name} is {every}; expected at most --rounds, {run.time.rounds}")
    own_examples = population.test_of == "clients" or (
        population.validation and population.validation_of == "clients"
    )
    if options.personal is not None and not own_examples:
        raise ValueError(
            f"personal is {options.personal}; expected clients' own examples with it: --test-of "
            "clients, or --validation"
        )
    shared = {name: getattr(run.algorithms, name) for name in ("tuning_steps", "tuning_lr")}
    own = study.algorithms
    built_in = [hyper for name, hyper in run.algorithms.hyper.items() if name not in own]
    for hyper in (shared, *built_in):
        check_fine_tuning(options, hyper)
    if options.first_visit and (options.personal is None or not population.held_out_clients):
        raise ValueError(
            "first_visit is True; expected --personal and --held-out-clients with it, whose "
            "clients it is for"
        )


def _check_wrappers(run: Run) -> None:
    compressed(fedavg(1.0), run.compress, run.feedback, run.compress_down)
    if not isinstance(run.robust, NoRule):
        rule_of(run.robust)
    Attacked(run.attack, Mask(np.ones(1, bool))).on(fedavg(1.0))
    privacy.check_noise(run.privacy)
    if isinstance(run.privacy, NoPrivacy):
        return
    if not isinstance(run.selection, NoSelection):
        raise ValueError(
            f"selection is {run.selection.kind!r}; expected none with privacy:gaussian, whose "
            "accountant knows no choice that depends on the clients' data"
        )
    if isinstance(run.time, ClockOptions):
        raise ValueError("time is 'clock'; expected 'rounds' with privacy:gaussian")
    if run.cohort.weighting != "uniform":
        raise ValueError(
            f"weighting is {run.cohort.weighting!r}; expected 'uniform' with privacy:gaussian"
        )


def _check_time(study: Study) -> None:
    run = study.options
    if isinstance(run.time, Rounds):
        for name in run.algorithms.algorithms:
            if name in SCHEDULES and name not in study.algorithms and study.timeline is None:
                raise ValueError(
                    f"time is 'rounds'; expected time:clock for {name}, as in the preset "
                    "asynchronous"
                )
        return
    if not isinstance(run.selection, NoSelection):
        raise ValueError(f"selection is {run.selection.kind!r}; expected none with time:clock")
    if run.algorithms.local_steps is None:
        raise ValueError("local_steps is None; expected a number with time:clock")
    if run.time.horizon < run.time.interval:
        raise ValueError(
            f"horizon is {run.time.horizon}; expected at least --interval, {run.time.interval}"
        )
    if not isinstance(run.sampling, Uniform):
        raise ValueError(f"sampling is {run.sampling.kind!r}; expected uniform with time:clock")
    if run.cohort.dropout:
        raise ValueError(f"dropout is {run.cohort.dropout}; expected 0.0 with time:clock")
    if run.execution.num_strata is not None:
        raise ValueError(f"num_strata is {run.execution.num_strata}; expected none with time:clock")
    if study.timeline is not None:
        raise ValueError("timeline of the study is given; expected none with time:clock")
