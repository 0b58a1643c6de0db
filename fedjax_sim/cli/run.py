"""Several algorithms on one federated problem, all seeds of each in one compiled program."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import datasets, plotting
from fedjax_sim.cli import build, registry, report
from fedjax_sim.cli import diagnose as diagnosing
from fedjax_sim.cli.config import FREE_FIELDS, RunConfig, check, to_json
from fedjax_sim.cli.diagnosis_report import Diagnosis
from fedjax_sim.data.federated import FederatedData
from fedjax_sim.data.summary import label_counts, summarize
from fedjax_sim.data.task import Objective, empirical_task
from fedjax_sim.evaluation import evaluator, merge_evaluators
from fedjax_sim.execution import distributed
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.models import Model, in_precision
from fedjax_sim.models.convolution.lowering import Convolution, auto
from fedjax_sim.objectives import Metrics, classification_metrics, cross_entropy
from fedjax_sim.simulation import tuning
from fedjax_sim.simulation.simulate import Progress, Simulation, simulate
from fedjax_sim.types import FedAlgorithm, Params, Task, Timeline

OnProgress = Callable[[str, Progress | None], None]  # (algorithm, None when it starts)


class Problem(NamedTuple):
    """What every algorithm of a comparison is given; n seeds."""

    data: FederatedData  # with --num-strata the labels only
    task: Task
    timeline: Timeline  # [n, T, S]
    params: Params  # [n, ...]
    keys: Array  # [n]
    eval_fn: Partial
    num_classes: int
    description: dict[str, Any]  # for config.json


class ComparisonResult(NamedTuple):
    """What a comparison found; the same is in the files of its output folder."""

    history: pd.DataFrame  # columns algorithm, seed, round, metric, value
    summary: pd.DataFrame  # a row per algorithm, see report.summarize
    config: RunConfig
    interrupted: bool
    diagnosis: Diagnosis | None = None


def compare(
    config: RunConfig,
    on_progress: OnProgress | None = None,
    tuning_file: pathlib.Path | None = None,
    *,
    diagnose: bool = False,
) -> ComparisonResult:
    """Runs every algorithm of the configuration and writes what it found to ``config.output``.

    ``history.csv`` (algorithm, seed, round, metric, value), ``summary.json``, ``config.json``
    (all that is needed to repeat the run), ``curves.png``, ``clients.png``, and a folder per
    algorithm with its own history and checkpoints.  Called again, it resumes unfinished algorithms
    and does not repeat finished ones; called with other algorithms, it adds them.  Ctrl-C ends it
    after the rounds in progress, with everything so far on disk.

    Args:
        config: the comparison.
        on_progress: called as ``on_progress(algorithm, None)`` when an algorithm starts and with
            its :class:`~fedjax_sim.simulation.simulate.Progress` after every segment.
        tuning_file: choices that :func:`fedjax_sim.simulation.tuning.store` kept; with ``execution="auto"``
            they go before the rules of :func:`fedjax_sim.execution.strategies.auto`.
        diagnose: put the bounds of theory over FedAvg's curve (:mod:`fedjax_sim.cli.diagnose`).

    Raises:
        ValueError: a value out of range, an output folder that holds another comparison, or what
            cannot be diagnosed; before anything is compiled or written.
        fedjax_sim.simulation.simulate.DivergenceError: with ``on_divergence="raise"``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = compare(RunConfig(
        ...         output=pathlib.Path(folder), algorithms=("fedavg",), rounds=2, seeds=2))
        >>> result.summary.loc["fedavg", "rounds"]
        np.int64(2)
    """
    hyper = checked(config)
    if diagnose and config.num_strata is not None:
        raise ValueError(
            f"num_strata is {config.num_strata}; expected none with --diagnose, which measures on "
            "the data of all clients"
        )
    if jax.process_count() > 1 and config.num_strata is None:
        raise ValueError(
            f"num_strata is None; expected a multiple of the {jax.device_count()} devices of the "
            f"{jax.process_count()} processes"
        )
    with build.arithmetic(config):
        return _compared(config, hyper, on_progress, tuning_file, diagnose)


def checked(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Every algorithm's hyper-parameters, after all that can be checked before data are read.

    Raises:
        ValueError: a value out of range, an unknown name.
    """
    check(config)
    hyper = registry.hyper_parameters(config)
    if config.dataset not in datasets.NAMES:
        raise ValueError(f"dataset is {config.dataset!r}; expected {', '.join(datasets.NAMES)}")
    return hyper


def _compared(
    config: RunConfig,
    hyper: dict[str, dict[str, Any]],
    on_progress: OnProgress | None,
    tuning_file: pathlib.Path | None,
    diagnose: bool,
) -> ComparisonResult:
    output = config.output
    header = _header(config, hyper)
    dataset = datasets.load(config.dataset, config.data_dir)
    problem = prepare(config, dataset)
    made = diagnosing.plan(config, dataset, problem, hyper) if diagnose else None
    output.mkdir(parents=True, exist_ok=True)
    header |= problem.description | {"environment": report.environment()}
    distributed.wait("configuration compared")
    if distributed.is_first():
        report.write_json(output / "config.json", header)
        counts = label_counts(problem.data, problem.num_classes)
        plotting.client_label_map(counts).savefig(output / "clients.png", dpi=110)

    interrupted, final = False, {}
    try:
        for name in config.algorithms:
            if on_progress is not None:
                on_progress(name, None)
            own, cohort = executed(config, dataset, problem, name, hyper[name], tuning_file)
            result = _run(config, own, name, hyper[name], cohort, on_progress)
            interrupted, final[name] = result.interrupted, result.state.server.params
            if interrupted:
                break
    except KeyboardInterrupt:  # between two algorithms, or a second Ctrl-C within one
        interrupted = True
    finally:
        history, summary = _write_results(config, header["algorithms"])
    found = None
    if made is not None and not interrupted:
        found = diagnosing.diagnose(config, problem, hyper, made, final["fedavg"])
    return ComparisonResult(history, summary, config, interrupted, found)


def prepare(config: RunConfig, dataset: datasets.Dataset, conv: Convolution = auto) -> Problem:
    """Clients, schedules, initial models and evaluation of a comparison.

    Seed s gives the keys of the initial model, of the schedule and of the minibatches, hence these
    are the same for every algorithm.

    Raises:
        ValueError: a model or partition that does not suit the data set, a cohort larger than the
            population.
    """
    model_name, model = build.model(config, dataset, conv)
    loss, metrics = _functions(model, config.precision == "bfloat16")
    data, source, placement = build.clients(config, dataset)
    if config.sampling != "full" and config.cohort_size > data.num_clients:
        raise ValueError(
            f"cohort_size is {config.cohort_size}; expected 1 .. {data.num_clients}, the clients"
        )
    task = empirical_task(loss, source, build.batches(config), placement=placement)
    init_keys, schedule_keys, run_keys = seed_keys(config)
    params = jax.vmap(model.init)(init_keys)
    if config.precision == "float64":
        params = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    parts = {"test": dataset.test, "train": {key: dataset.train[key] for key in ("x", "y")}}
    description = {
        "data": {
            "name": dataset.name,
            "source": dataset.source,
            "train_examples": len(dataset.train["y"]),
            "test_examples": len(dataset.test["y"]),
            "classes": dataset.num_classes,
        },
        "partition": summarize(data, dataset.num_classes)._asdict(),
        "model": {
            "name": model_name,
            "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(params)),
        },
    }
    return Problem(
        data,
        task,
        build.timelines(config, task, schedule_keys),
        params,
        run_keys,
        merge_evaluators(**{name: evaluator(metrics, part) for name, part in parts.items()}),
        dataset.num_classes,
        description,
    )


@functools.cache
def _functions(model: Model, half: bool) -> tuple[Objective, Metrics]:
    """Loss and metrics, the same for the same model, so that nothing compiles anew for them.  In
    half precision clients learn; the server's models are evaluated as they are."""
    learnt = in_precision(model, jnp.bfloat16) if half else model
    return cross_entropy(learnt.apply), classification_metrics(model.apply)


def seed_keys(config: RunConfig) -> tuple[Array, Array, Array]:
    """Keys of the initial models, of the schedules and of the runs, ``[seeds]`` each."""
    seeds = jnp.arange(config.seed, config.seed + config.seeds)
    keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(seeds)
    return keys[:, 0], keys[:, 1], keys[:, 2]


def tunable(problem: Problem, algorithm: FedAlgorithm, rounds: int | None = None) -> tuning.Problem:
    """A comparison's problem as the tuner sees it, of so many rounds."""
    timeline = problem.timeline[:rounds]
    return tuning.Problem(algorithm, problem.task, timeline, problem.params, problem.keys)


def executed(
    config: RunConfig,
    dataset: datasets.Dataset,
    problem: Problem,
    name: str,
    hyper: registry.Hyper,
    tuning_file: pathlib.Path | None,
) -> tuple[Problem, Execution]:
    """The strategy over clients, and the problem with the lowering that goes with it."""
    whole = problem.task.placement is None
    if config.execution == "auto" and whole and tuning_file is not None:
        seen = tunable(problem, registry.algorithm(name, hyper))
        choice = tuning.stored(tuning_file, tuning.describe(seen, config.batch_size))
        if choice is not None:
            if choice.lowering != "auto":
                problem = prepare(config, dataset, tuning.LOWERINGS[choice.lowering])
            return problem, choice.cohort()
    return problem, build.execution(config)


def _run(
    config: RunConfig,
    problem: Problem,
    name: str,
    hyper: registry.Hyper,
    cohort: Execution,
    on_progress: OnProgress | None,
) -> Simulation:
    """One algorithm, or what is left of it."""
    fixed = {k: v for k, v in to_json(config).items() if k not in FREE_FIELDS}
    result = simulate(
        registry.algorithm(name, hyper),
        problem.task,
        problem.timeline,
        problem.params,
        problem.keys,
        cohort=cohort,
        weighting=build.weighting(config),
        eval_fn=problem.eval_fn,
        eval_every=config.eval_every,
        directory=config.output / name,
        replicas=[str(config.seed + i) for i in range(config.seeds)],
        config={"algorithm": name, "hyper": dict(hyper), **fixed},
        on_divergence=config.on_divergence,
        on_progress=None if on_progress is None else lambda p: on_progress(name, p),
    )
    if result.history is None and on_progress is not None:  # it was finished before
        on_progress(name, Progress(config.rounds, config.rounds, {}))
    if distributed.is_first():
        report.add_timing(
            config.output / name / "timing.json",
            compile_seconds=result.compile_seconds,
            run_seconds=result.run_seconds,
            local_steps=result.local_steps,
            diverged=int(np.count_nonzero(result.state.diverged_at)),
        )
    return result


def _header(config: RunConfig, hyper: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The part of config.json that makes a comparison what it is.

    Raises:
        ValueError: the output folder's config.json says otherwise.
    """
    new = json.loads(json.dumps({"config": to_json(config), "algorithms": hyper}))
    path = config.output / "config.json"
    if not path.exists():
        return new
    old = json.loads(path.read_text())
    differing = [
        f"{key} is {value!r} there and {new['config'][key]!r} here"
        for key, value in old["config"].items()
        if key not in FREE_FIELDS and new["config"].get(key) != value
    ]
    differing += [
        f"{name} has {old['algorithms'][name]} there and {values} here"
        for name, values in new["algorithms"].items()
        if old["algorithms"].get(name, values) != values
    ]
    if differing:
        raise ValueError(
            f"output is '{config.output}', which holds another comparison: "
            f"{'; '.join(differing)}; choose another folder or delete that one"
        )
    # Algorithms of earlier calls stay in the comparison.
    known = old["algorithms"] | new["algorithms"]
    return {"config": new["config"] | {"algorithms": list(known)}, "algorithms": known}


def _write_results(
    config: RunConfig, hyper: dict[str, dict[str, Any]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """history.csv, summary.json and curves.png from what the algorithms left on disk."""
    output = config.output
    distributed.wait("histories written")
    first = distributed.is_first()
    history = report.merge_histories(output, list(hyper), write=first)
    timings = report.read_timings(output, list(hyper))
    summary = report.summarize(history, config.rounds, config.target_accuracy, timings)
    rows = {
        str(name): {**row, "hyper_parameters": hyper[str(name)]}
        for name, row in summary.to_dict(orient="index").items()
    }
    values = {"target_accuracy": config.target_accuracy, "algorithms": rows}
    if not first:
        return history, summary
    report.write_json(output / "summary.json", values)
    if len(history):
        figure = plotting.curves(history, [report.ACCURACY, "train/loss"])
        figure.savefig(output / "curves.png", dpi=110)
    return history, summary
