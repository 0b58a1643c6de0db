"""Part ``published``: setups of other simulators beside the run times that were published.

    python -m benchmarks published B1 F1       # these setups only; the others' results are kept
    python -m benchmarks published --full      # all rounds of the sources, for accelerators

``ours`` is a run of ``simulate`` with ``execution.auto`` on all cores of this machine, or on its
accelerator.  ``seconds`` are those of all rounds and evaluations without compilation.  A setup
with fewer rounds than its source is named ``ours (extrapolated)``: its seconds are scaled to the
rounds of the source.  A run that is interrupted goes on; one that is killed loses its last part.

The others' seconds were measured by others on their hardware, which the title names.
"""

import dataclasses
import json
import math
import os
import pathlib
import shutil
import time

import jax
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import ROOT, Job, Measured, Options, Results
from benchmarks.published_setups import SETUPS, PublishedSetup
from benchmarks.report import Case
from fedjax_sim.runs import write_text
from fedjax_sim.types import EvalFn, Params

OURS, EXTRAPOLATED = "ours", "ours (extrapolated)"
CANDIDATES = (OURS,)
IGNORE = -1  # label of the positions that do not count
UNFINISHED = ROOT / "results" / "unfinished" / "published"


def jobs(options: Options) -> list[Job]:
    """Returns a job per setup that the command names, by default for all."""
    if not options.chosen(CANDIDATES):
        return []
    return [
        Job(
            name,
            OURS,
            "benchmarks.published",
            {"setup": name, "folder": str(UNFINISHED / name), "full": options.full},
        )
        for name in options.setups or SETUPS
    ]


def measure(setup: str, folder: str, full: bool) -> Measured:
    """Runs a setup in a process of its own; ``full``: all rounds of the source."""
    fs.execution.use_all_cores()
    jax.config.update("jax_enable_compilation_cache", False)  # `compile_seconds` counts all of it
    chosen = SETUPS[setup]
    chosen = chosen._replace(measured_rounds=chosen.rounds) if full else chosen
    return run(chosen, pathlib.Path(folder))


def run(setup: PublishedSetup, folder: pathlib.Path) -> Measured:
    """Returns seconds and metrics of a setup, from the beginning or from its last finished part.

    Raises:
        KeyboardInterrupt: after SIGINT or SIGTERM and the rounds in progress; a later call goes on.
        RuntimeError: the folder holds rounds whose seconds are not known.
    """
    began, load = time.perf_counter(), os.getloadavg()[0]
    problem, evaluate = prepare(setup)
    prepare_seconds = time.perf_counter() - began
    record = folder / "seconds.json"
    done = {"rounds": 0, "run": 0.0, "compile": 0.0, "local_steps": 0, "highest_load": 0.0}
    done |= json.loads(record.read_text()) if record.exists() else {}

    def advance(last: int) -> fs.Simulation:
        # Checkpoints at the ends of parts only, so that no seconds count twice or get lost.
        return fs.simulate(
            fs.fedavg(setup.lr),
            dataclasses.replace(problem, timeline=problem.timeline[:last]),
            jax.random.key(2),
            storage=fs.Storage(folder / "run", checkpoint_seconds=math.inf),
        )

    for last in (end for end in _ends(setup) if end > done["rounds"]):
        result = advance(last)
        if result.history is None:
            raise RuntimeError(f"{folder} holds rounds whose seconds are not known; delete it")
        done["run"] += result.run_seconds
        done["compile"] += result.compile_seconds
        done["local_steps"] += result.local_steps
        done["highest_load"] = max(done["highest_load"], load, os.getloadavg()[0])
        done["rounds"] = result.rounds_done
        write_text(record, json.dumps(done) + "\n")
        if result.interrupt_requested:
            raise KeyboardInterrupt
    params = advance(setup.measured_rounds).state.server.params  # no rounds are left
    evaluation_seconds, metrics = _timed_evaluation(evaluate, params)
    shutil.rmtree(folder)
    per_round = done["run"] / setup.measured_rounds
    if problem.eval_fn is None:
        per_round += evaluation_seconds / setup.eval_every
    return {
        "seconds": per_round * setup.rounds,
        "seconds_per_round": per_round,
        "compile_seconds": done["compile"],
        "prepare_seconds": prepare_seconds,
        "evaluation_seconds": evaluation_seconds,
        "measured_rounds": setup.measured_rounds,
        "local_steps": done["local_steps"],
        "highest_load": done["highest_load"],
        "cores": fs.execution.num_cores(),
        **metrics,
    }


def _timed_evaluation(evaluate: EvalFn, params: Params) -> tuple[float, Measured]:
    """Returns the seconds of one evaluation, and loss and accuracy of the test examples."""
    compiled = jax.jit(lambda evaluate, params: evaluate(params))
    jax.block_until_ready(compiled(evaluate, params))
    began = time.perf_counter()
    metrics = jax.block_until_ready(compiled(evaluate, params))
    seconds = time.perf_counter() - began
    return seconds, {name: float(metrics[f"test/{name}"]) for name in ("accuracy", "loss")}


def prepare(setup: PublishedSetup) -> tuple[fs.Setup, EvalFn]:
    """Returns the setup to run and its evaluation, which a short run does not contain."""
    clients = setup.make_clients()
    model = setup.make_model(clients)
    tokens = clients.test["y"].ndim > 1
    ignore = IGNORE if tokens else None
    task = fs.empirical_task(
        fs.objectives.cross_entropy(model, ignore=ignore),
        clients.train,
        fs.epochs(setup.epochs, setup.batch),
    )
    metrics = fs.objectives.classification_metrics(model, ignore=ignore)
    batch = 32 if tokens else None  # activations of 80 positions each
    parts = {"test": fs.evaluation.evaluator(metrics, clients.test, batch)}
    if setup.evaluates_training:
        parts["train"] = fs.evaluation.evaluator(metrics, clients.train.examples, batch)
    evaluate = fs.evaluation.merge_evaluators(**parts)
    num_clients, rounds = clients.train.num_clients, setup.measured_rounds
    if setup.cohort == num_clients:
        timeline = fs.timelines.full(rounds, num_clients, task.num_steps)
    else:
        timeline = fs.timelines.uniform(
            jax.random.key(0), rounds, num_clients, setup.cohort, task.num_steps
        )
    params = jax.jit(model.init)(jax.random.key(1))
    problem = fs.Setup(task, timeline, params, weighting=setup.weighting, eval_every=rounds)
    if rounds >= setup.eval_every:
        problem = dataclasses.replace(problem, eval_fn=evaluate, eval_every=setup.eval_every)
    return problem, evaluate


def _ends(setup: PublishedSetup) -> list[int]:
    """Returns the rounds after which a run can be resumed, multiples of the evaluations' period."""
    every = min(setup.eval_every, setup.measured_rounds)
    evaluations = -(-setup.measured_rounds // every)
    ends = np.ceil(np.linspace(0, evaluations, setup.slices + 1)[1:]).astype(int)
    return [min(every * int(end), setup.measured_rounds) for end in ends]


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the setups with the others' times beside ours."""
    del machine
    return [case(name, rows[OURS]) for name, rows in results.items()]


def case(name: str, row: Measured) -> Case:
    """Returns one setup; the others' seconds are those of their sources."""
    setup = SETUPS[name]
    row = dict(row)
    if setup.per_round:
        row["seconds"] = row["seconds_per_round"]
    extrapolated = row["measured_rounds"] < setup.rounds and not setup.per_round
    ours = EXTRAPOLATED if extrapolated else OURS
    others = {program: {"seconds": seconds} for program, seconds in setup.seconds.items()}
    return Case(
        name=name,
        title=f"{name}: {setup.title}; ours on {_hardware(row)}, theirs on {setup.hardware}",
        unit="a round" if setup.per_round else "a run",
        rows={ours: row, **others},
        ours=ours,
    )


def _hardware(row: Measured) -> str:
    if jax.default_backend() == "cpu":
        return f"{row['cores']:.0f} CPU cores"
    return jax.devices()[0].device_kind
