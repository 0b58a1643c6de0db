r"""Part ``generated``: clients whose examples are generated from their number, 10 each.

S15 has 15,000,000 clients, the pool of Flower's paper (https://arxiv.org/abs/2007.14390), which
gives no time; S1 and S100 have 10^6 and 10^8.  FedAvg on logistic regression, 1,000 clients per
round, one epoch of batches of 5, evaluated on 1,000 clients that take part in no round.  With z and
v_i standard normal, w and u fixed directions of length 3 and 60 features:

    x = v_i / 2 + z,    y = 1 where x . (w + c_i u) + logistic noise > 0,    c_i standard normal.

A cohort is drawn by Floyd's algorithm, a visit generates its client's examples, and no array has
the length of the population, so neither time nor memory depends on it.  Seconds include both.
``peak_rss_mb`` is that of the whole process; ``idle_rss_mb`` is that of the process before the task
is made.  ``cpu_seconds_per_round`` adds the cores' times and is the steadier number if other
processes work on the machine, whose load is ``load``.
"""

import os
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Measured, Options, Results, peak_mb
from benchmarks.memory import loop
from benchmarks.report import Case

POPULATIONS = {"S1": 1_000_000, "S15": 15_000_000, "S100": 100_000_000}
COHORT, EXAMPLES, FEATURES = 1000, 10, 60
ROUNDS, CALLS, BATCH, LR, NORM = 500, 5, 5, 0.1, 3.0  # a call does some of the rounds
CANDIDATES = ("ours",)
HELD_OUT = 1000


def generate(client: jax.Array, key: jax.Array) -> dict[str, jax.Array]:
    """Returns a client's examples, ``x`` ``[10, 60]`` and ``y`` ``[10]``."""
    del client  # the key is the client's
    directions = np.random.default_rng(0).standard_normal((2, FEATURES))
    plane, shift = NORM * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    keys = jax.random.split(key, 3)
    normal = jax.random.normal(keys[0], (EXAMPLES + 1, FEATURES), jnp.float32)
    x = normal[0] / 2 + normal[1:]
    own = plane + jax.random.normal(keys[1], (), jnp.float32) * shift
    margin = x @ own.astype(jnp.float32) + jax.random.logistic(keys[2], (EXAMPLES,), jnp.float32)
    return {"x": x, "y": (margin > 0).astype(jnp.float32)}


def jobs(options: Options) -> list[Job]:
    """Returns a job per population, since the peak of memory is that of a process."""
    if not options.chosen(CANDIDATES):
        return []
    return [
        Job(name, "ours", "benchmarks.generated", {"num_clients": num_clients})
        for name, num_clients in POPULATIONS.items()
    ]


def measure(num_clients: int, rounds: int = ROUNDS, cohort: int = COHORT) -> Measured:
    """Trains on a population, in a process of its own."""
    fs.execution.use_all_cores()
    jax.config.update("jax_enable_compilation_cache", False)  # `compile_seconds` counts all of it
    jax.block_until_ready(jnp.zeros(1))
    idle = peak_mb()
    model = fs.models.logistic_regression(FEATURES)
    key = jax.random.key(0)
    loss = fs.objectives.binary_cross_entropy(model.apply)
    task = fs.generated_task(loss, generate, num_clients, fs.epochs(1, BATCH), key=key)
    part, num_steps = rounds // CALLS, task.num_steps

    def timeline(key):
        return fs.timelines.uniform(key, part, num_clients, cohort, num_steps)

    run = loop(fs.fedavg(LR), timeline, model.init(jax.random.key(1)))
    began = time.perf_counter()
    proceed = run.proceed.lower(task, jax.eval_shape(run.begin, task), key).compile()
    compiling = time.perf_counter() - began
    state, times, cpu = run.begin(task), [], time.process_time()
    for i in range(CALLS):
        began = time.perf_counter()
        state = jax.block_until_ready(proceed(task, state, jax.random.key(i)))
        times.append((time.perf_counter() - began) / part)
    cpu = time.process_time() - cpu
    peak = peak_mb()
    others = fs.generated_data(generate, num_clients + np.arange(HELD_OUT), key=key)
    evaluate = fs.evaluation.evaluator(
        fs.objectives.binary_classification_metrics(model.apply), others.examples
    )
    metrics = jax.jit(lambda params: evaluate(params))(state.server.params)
    return {
        "seconds": statistics.median(times),
        "seconds_per_round": statistics.median(times),
        "cpu_seconds_per_round": cpu / (CALLS * part),
        "compile_seconds": compiling,
        "rounds": CALLS * part,
        "clients": num_clients,
        "cohort": cohort,
        "peak_rss_mb": peak,
        "idle_rss_mb": idle,
        "cores": fs.execution.num_cores(),
        "load": os.getloadavg()[0],
        **{name: float(metrics[name]) for name in ("loss", "accuracy")},
    }


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the cases as tables, which have no floor in seconds."""
    del machine
    return [
        Case(name, f"{name}: {POPULATIONS[name]:,} generated clients", "a round", rows, ours="ours")
        for name, rows in results.items()
    ]
