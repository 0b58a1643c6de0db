"""Part ``memory``: memory and time of very many clients, and of very much client state.

stateless: FedAvg, logistic regression, M clients of 10 examples of 60 float32 features, 1,000
clients a round, cohort drawn inside the program. The floor is the data: 2.4 GB for a million
clients.

stateful: SCAFFOLD on a model of 10,000 parameters with M control variates, 10 clients a round.
The floor is the state, 4 GB for 100,000 clients; updated in place, a round touches 10 rows of
it, copied it would take as long as writing all of it.  The compiled program's temporaries
say which.

controls: FedMoSWA on ResNet-18, M control variates of 11.2 million parameters, 4.5 GB for 100
clients, 2 of them a round, who take one step on 2 images each.  The temporaries and the bytes that
alias the donated state are XLA's analysis of a program compiled from shapes, before any state is
made.  If the state would take more than half of the free memory, fewer clients are really run
(``clients_run``).
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Options, Results, peak_mb
from benchmarks.report import Case


class Loop(NamedTuple):
    """A run without an end: ``state = begin(task)``, ``state = proceed(task, state, key)``."""

    begin: jax.stages.Wrapped
    proceed: jax.stages.Wrapped  # the state is donated


def loop(algorithm: fs.FedAlgorithm, timeline: Callable[[jax.Array], fs.Timeline], params) -> Loop:
    """Rounds from ``params``; a call of ``proceed`` does those that ``timeline(key)`` draws."""

    def proceed(task, state, key):
        schedule, visits = jax.random.split(key)
        rounds = timeline(schedule)
        setup = fs.Setup(task, rounds, None, eval_every=rounds.num_rounds)
        return fs.advance(algorithm, setup, state, visits)[0]

    def begin(task):
        return fs.init(algorithm, fs.Setup(task, timeline(jax.random.key(0)), params))

    return Loop(jax.jit(begin), jax.jit(proceed, donate_argnums=1))


def _task(
    model, objective, num_clients: int, examples: int, shape: tuple[int, ...], batches
) -> fs.Task:
    x = np.empty((num_clients * examples, *shape), np.float32)
    np.random.default_rng(0).standard_normal(dtype=np.float32, out=x)
    y = (x.reshape(len(x), -1)[:, 0] > 0).astype(np.int32)
    offsets = np.arange(num_clients + 1, dtype=np.int32) * examples
    data = fs.FederatedData({"x": x, "y": y}, offsets)
    return fs.empirical_task(objective(model.apply), data, batches)


def stateless(num_clients: int, rounds: int) -> dict[str, float]:
    model = fs.models.logistic_regression(60)
    batches = fs.epochs(1, batch_size=5)
    task = _task(model, fs.objectives.binary_cross_entropy, num_clients, 10, (60,), batches)
    return _measure(fs.fedavg(0.1), model, task, min(1000, num_clients), rounds)


def stateful(num_clients: int, rounds: int) -> dict[str, float]:
    model = fs.models.softmax_regression(99, 100)  # 100 * 99 + 100 parameters
    batches = fs.epochs(2, batch_size=2)
    task = _task(model, fs.objectives.cross_entropy, num_clients, 4, (99,), batches)
    return _measure(fs.scaffold(0.1), model, task, min(10, num_clients), rounds)


def controls(
    num_clients: int, rounds: int, model: fs.models.Model | None = None
) -> dict[str, float]:
    model = model or fs.models.resnet18()
    algorithm, cohort, image = fs.fedmoswa(0.01), min(2, num_clients), (32, 32, 3)

    def task(clients: int) -> fs.Task:
        batches = fs.epochs(1, batch_size=2)
        return _task(model, fs.objectives.cross_entropy, clients, 2, image, batches)

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    one = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    fitting = max(free_bytes() // 2 // one, cohort)
    if fitting >= num_clients:
        return _measure(algorithm, model, task(num_clients), cohort, rounds)
    found = _measure(algorithm, model, task(fitting), cohort, rounds)
    *_, whole = _compiled(algorithm, model, task(num_clients), cohort, rounds)
    return found | whole | {"clients_run": fitting}


def free_bytes() -> int:
    """Returns the bytes of the machine's unused memory."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _compiled(algorithm, model, task, cohort: int, rounds: int):
    """``begin`` and the compiled ``proceed``, made from shapes alone; the program's sizes."""

    def timeline(key):
        return fs.timelines.uniform(key, rounds, task.num_clients, cohort, num_steps)

    num_steps = task.num_steps
    run = loop(algorithm, timeline, model.init(jax.random.key(0)))
    state = jax.eval_shape(run.begin, task)
    compiled = run.proceed.lower(task, state, jax.random.key(1)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None, "this backend reports no memory analysis"
    clients = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.clients))
    sizes = {
        "clients": task.num_clients,
        "cohort": cohort,
        "client_state_mb": round(clients / 1e6, 1),
        "program_temporaries_mb": round(memory.temp_size_in_bytes / 1e6, 1),
        "program_aliased_mb": round(memory.alias_size_in_bytes / 1e6, 1),
    }
    return run.begin, compiled, sizes


def _measure(algorithm, model, task, cohort: int, rounds: int) -> dict[str, float]:
    begin, proceed, sizes = _compiled(algorithm, model, task, cohort, rounds)
    state = jax.block_until_ready(begin(task))
    times = []
    for i in range(5):
        began = time.perf_counter()
        state = jax.block_until_ready(proceed(task, state, jax.random.key(i)))
        times.append((time.perf_counter() - began) / rounds)
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.server)):
        raise FloatingPointError("the benchmark's model diverged")
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(task.oracle))
    return {
        "seconds": statistics.median(times),
        "data_mb": round(data / 1e6, 1),
        "peak_rss_mb": peak_mb(),
    } | sizes


CANDIDATES = ("ours",)
CASES = {  # name -> case, clients, rounds a call
    "stateless": (stateless, 1_000_000, 20),
    "stateful": (stateful, 100_000, 20),
    "controls": (controls, 100, 1),
}


def jobs(options: Options) -> list[Job]:
    """Returns a job per case, since the peak of memory is that of a process."""
    if not options.chosen(CANDIDATES):
        return []
    return [Job(case, "ours", "benchmarks.memory", {"case": case}) for case in CASES]


def measure(case: str, clients: int | None = None) -> dict[str, float]:
    """Runs in a process of its own."""
    run, default, rounds = CASES[case]
    return run(clients or default, rounds)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the cases as tables, which have no floor in seconds."""
    del machine
    return [Case(name, name, "a round", rows, ours="ours") for name, rows in results.items()]
