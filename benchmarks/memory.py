"""Part ``memory``: memory and time of very many clients, and of very much client state.

stateless: FedAvg, logistic regression, M clients of 10 examples of 60 float32 features, 1,000
clients a round, cohort drawn inside the program. The floor is the data: 2.4 GB for a million
clients.

stateful: SCAFFOLD on a model of 10,000 parameters with M control variates, 10 clients a round.
The floor is the state, 4 GB for 100,000 clients; updated in place, a round touches 10 rows of
it, copied it would take as long as writing all of it.  The compiled program's temporaries
say which.
"""

import resource
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Options, Results
from benchmarks.report import Case
from fedjax_sim import models, objectives


def _task(model, objective, num_clients: int, examples: int, features: int, batches) -> fs.Task:
    x = np.empty((num_clients * examples, features), np.float32)
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=x)
    y = (x[:, 0] > 0).astype(np.int32)
    offsets = np.arange(num_clients + 1, dtype=np.int32) * examples
    data = fs.FederatedData({"x": x, "y": y}, offsets)
    return fs.empirical_task(objective(model.apply), data, batches)


def stateless(num_clients: int, rounds: int) -> dict[str, float]:
    model = models.logistic_regression(60)
    batches = fs.epochs(1, batch_size=5)
    task = _task(model, objectives.binary_cross_entropy, num_clients, 10, 60, batches)
    return _measure(fs.fedavg(0.1), model, task, min(1000, num_clients), rounds)


def stateful(num_clients: int, rounds: int) -> dict[str, float]:
    model = models.softmax_regression(99, 100)  # 100 * 99 + 100 parameters
    batches = fs.epochs(2, batch_size=2)
    task = _task(model, objectives.cross_entropy, num_clients, 4, 99, batches)
    return _measure(fs.scaffold(0.1), model, task, min(10, num_clients), rounds)


def _measure(algorithm, model, task, cohort: int, rounds: int) -> dict[str, float]:
    num_steps = task.num_steps

    def timeline(key):
        return fs.participation.uniform(key, rounds, task.num_clients, cohort, num_steps)

    def rounds_of(task, state, key):
        schedule, visits = jax.random.split(key)
        return fs.advance(algorithm, task, timeline(schedule), state, visits)[0]

    params = model.init(jax.random.key(0))
    begin = jax.jit(lambda task: fs.start(algorithm, task, timeline(jax.random.key(0)), params))
    state = jax.block_until_ready(begin(task))
    compiled = jax.jit(rounds_of, donate_argnums=1).lower(task, state, jax.random.key(1)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend reports no memory analysis"
    times = []
    for i in range(5):
        began = time.perf_counter()
        state = jax.block_until_ready(compiled(task, state, jax.random.key(i)))
        times.append((time.perf_counter() - began) / rounds)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.server)):
        raise FloatingPointError("the benchmark's model diverged")
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(task.oracle))
    clients = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
    return {
        "seconds": statistics.median(times),
        "clients": task.num_clients,
        "cohort": cohort,
        "data_mb": round(data / 1e6, 1),
        "client_state_mb": round(clients / 1e6, 1),
        "program_temporaries_mb": round(memory.temp_size_in_bytes / 1e6, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
    }


CASES = {"stateless": (stateless, 1_000_000), "stateful": (stateful, 100_000)}


def knows(candidate: str) -> bool:
    """There is nothing beside ours."""
    return candidate == "ours"


def jobs(options: Options) -> list[Job]:
    """A job per case: the peak of memory is its process's."""
    if options.candidates and not any(map(knows, options.candidates)):
        return []
    return [Job(case, "ours", "benchmarks.memory", {"case": case}) for case in CASES]


def measure(case: str, clients: int | None = None) -> dict[str, float]:
    """Runs in a process of its own."""
    run, default = CASES[case]
    return run(clients or default, 20)


def cases(results: Results, machine: Machine) -> list[Case]:
    """The cases as tables; there is no floor in seconds."""
    del machine
    return [Case(name, name, "a round", rows, ours="ours") for name, rows in results.items()]
