r"""Part ``generated``: clients whose examples are generated from their number, 10 each.

S15 has 15,000,000 clients, the pool of Flower's paper (https://arxiv.org/abs/2007.14390), which
gives no time; S1 and S100 have 10^6 and 10^8.  FedAvg on logistic regression, 1,000 clients per
round, one epoch of batches of 5, evaluated on 1,000 clients that take part in no round.  With z and
v_i standard normal, w and u fixed directions of length 3 and 60 features:

    x = v_i / 2 + z,    y = 1 where x . (w + c_i u) + logistic noise > 0,    c_i standard normal.

A cohort is drawn by Floyd's algorithm, a visit generates its client's examples, and no array has
the length of the population, so neither time nor memory depends on it.  ``peak_rss_mb`` is that of
the whole process; ``idle_rss_mb`` is that of the process before the task is made.
"""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.report import Case
from fedjax_sim import models, objectives
from fedjax_sim.evaluation import evaluator
from fedjax_sim.execution.devices import num_cores, use_all_cores

POPULATIONS = {"S1": 1_000_000, "S15": 15_000_000, "S100": 100_000_000}
COHORT, EXAMPLES, FEATURES = 1000, 10, 60
ROUNDS, BATCH, LR, NORM = 500, 5, 0.1, 3.0
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


def is_candidate(candidate: str) -> bool:
    """Returns False: this part has no other candidates."""
    return candidate == "ours"


def jobs(options: Options) -> list[Job]:
    """Returns a job per population, since the peak of memory is that of a process."""
    if options.candidates and not any(map(is_candidate, options.candidates)):
        return []
    return [
        Job(name, "ours", "benchmarks.generated", {"num_clients": num_clients})
        for name, num_clients in POPULATIONS.items()
    ]


def measure(num_clients: int, rounds: int = ROUNDS, cohort: int = COHORT) -> Measured:
    """Trains on a population, in a process of its own."""
    use_all_cores()
    jax.config.update("jax_enable_compilation_cache", False)  # `compile_seconds` counts all of it
    jax.block_until_ready(jnp.zeros(1))
    idle = _rss_mb()
    model = models.logistic_regression(FEATURES)
    key = jax.random.key(0)
    loss = objectives.binary_cross_entropy(model.apply)
    task = fs.generated_task(loss, generate, num_clients, fs.epochs(1, BATCH), key=key)
    others = fs.generated_data(generate, num_clients + np.arange(HELD_OUT), key=key)
    evaluate = evaluator(objectives.binary_classification_metrics(model.apply), others.examples)

    def schedule(key):
        return fs.timelines.uniform(key, rounds, num_clients, cohort, task.num_steps)

    began = time.perf_counter()
    timeline = schedule(jax.random.key(1))
    jax.block_until_ready(timeline.clients)
    first = time.perf_counter() - began
    began = time.perf_counter()
    jax.block_until_ready(schedule(jax.random.key(2)).clients)
    drawing = time.perf_counter() - began
    params = model.init(jax.random.key(3))
    setup = fs.Setup(task, timeline, params, eval_fn=evaluate, eval_every=rounds // 5)
    result = fs.simulate(fs.fedavg(LR), setup, jax.random.key(4))
    assert result.history is not None
    metrics = result.history.metrics
    return {
        "seconds": (result.run_seconds + drawing) / rounds,
        "seconds_per_round": (result.run_seconds + drawing) / rounds,
        "compile_seconds": result.compile_seconds + first - drawing,
        "drawing_seconds_per_round": drawing / rounds,
        "rounds": rounds,
        "clients": num_clients,
        "cohort": cohort,
        "peak_rss_mb": _rss_mb(),
        "idle_rss_mb": idle,
        "cores": num_cores(),
        **{name: float(np.asarray(values)[-1]) for name, values in metrics.items()
           if name in ("loss", "accuracy")},
    }  # fmt: skip


def _rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the cases as tables, which have no floor in seconds."""
    del machine
    return [
        Case(name, f"{name}: {POPULATIONS[name]:,} generated clients", "a round", rows, ours="ours")
        for name, rows in results.items()
    ]
