"""Part ``asynchrony``: asynchronous rounds beside engines that do the same in other ways.

engine: FAVANO on the setting of its Table 2 (100 clients of 600 images, 784-32-10 perceptron, 20
clients a contact, at most 20 steps of 128 images, a third slow), random images, 100 contacts.
``ours`` runs the clients that report, one after the other, each as many steps as it has done;
``ours=devices`` half of them on each of two host devices, or as many as there are cores;
``ours=chunked:4`` four at a time, who wait for the longest; ``eager`` keeps every client's model
and advances all of them between contacts, one after the other; ``eager=vmapped`` does it with all
at once, for as many steps as the busiest does between any two contacts; ``torch`` is a PyTorch loop
over clients and steps in one thread, ``torch=cores`` in one a core.

tick: the engines of JAX with softmax regression on batches of 20, 60 images a client.

clients: FAVANO with logistic regression on n clients of 10 examples, 20 a contact: seconds a server
step, of its schedule, memory, and how many old models are kept.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs
from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results, peak_mb
from benchmarks.report import Case
from fedjax_sim.algorithms._shared import ModelState
from fedjax_sim.algorithms.staleness import realised_steps
from fedjax_sim.engine import devices, strategies
from fedjax_sim.types import Params

CONTACTS, CLIENTS, COHORT, MAX_STEPS = 100, 100, 20, 20
PIXELS, HIDDEN, CLASSES, LR, P_ACTIVE = 784, 32, 10, 0.05, 0.9
NUM_CLIENTS = (100, 1_000, 10_000, 100_000)
EXECUTIONS: dict[str, Callable[[], fs.execution.Execution]] = {
    "ours": strategies.sequential,
    "ours=devices": lambda: strategies.sharded(
        fs.execution.make_mesh(devices.workers()), strategies.sequential()
    ),
    "ours=chunked:4": lambda: strategies.chunked(4),
    "eager": strategies.sequential,
    "eager=vmapped": strategies.vmapped,
}
TORCH: dict[str, int | None] = {"torch": 1, "torch=cores": None}  # threads
ENGINE = (*EXECUTIONS, *TORCH)


class Learned(NamedTuple):
    """A model, and the clients' data."""

    model: fs.models.Model
    batch: int
    examples: int  # of a client
    flops: float  # of one example's forward and backward products, without its own gradient


CASES = {
    "engine": Learned(
        fs.models.mlp(PIXELS, (HIDDEN,), CLASSES),
        128,
        600,
        # Forward and the kernel's gradient, then the small layer's two and its input's.
        4.0 * PIXELS * HIDDEN + 6.0 * HIDDEN * CLASSES,
    ),
    "tick": Learned(fs.models.softmax_regression(PIXELS, CLASSES), 20, 60, 4.0 * PIXELS * CLASSES),
}


class Schedule(NamedTuple):
    """A timeline of contacts, and what the clients have done after each."""

    timeline: fs.Timeline
    flight: fs.timelines.InFlight


def schedule(num_clients: int, cohort_size: int, num_contacts: int, max_steps: int) -> Schedule:
    """Contacts every 7 time units; steps take 2 units, or 16 for a third of the clients."""
    key = jax.random.key(0)
    success = fs.timelines.two_speeds(key, num_clients, 1 / 3, fast=1 / 2, slow=1 / 16)
    shared = {
        "horizon": 7.0 * num_contacts, "num_clients": num_clients, "cohort_size": cohort_size,
        "max_steps": max_steps,
    }  # fmt: skip
    steps = fs.timelines.renewal_counts(fs.timelines.geometric(success))
    return Schedule(
        fs.timelines.contacts(key, steps, **shared),
        fs.timelines.contacts_in_flight(key, steps, every=1, **shared),
    )


def eager_timeline(made: Schedule) -> fs.Timeline:
    """Timeline in which every client reports its steps since the last contact."""
    timeline, flight = made
    rounds, num_clients = flight.num_steps.shape
    steps = np.array(flight.num_steps)
    for t in range(rounds):  # steps of contacted clients, before they restart
        steps[t, np.asarray(timeline.clients)[t]] = np.asarray(timeline.num_steps)[t]
    since = np.concatenate([np.zeros((1, num_clients), int), flight.num_steps[:-1]])
    first = np.concatenate([np.zeros((1, num_clients), int), flight.first_step[:-1]]) + since
    every = jnp.broadcast_to(jnp.arange(num_clients, dtype=jnp.int32), steps.shape)
    now = jnp.broadcast_to(jnp.arange(rounds, dtype=jnp.int32)[:, None], steps.shape)
    return fs.Timeline(
        clients=every,
        version=now,
        num_steps=jnp.asarray(steps - since, jnp.int32),
        mask=jnp.ones(steps.shape, bool),
        time=timeline.time,
        max_steps=int((steps - since).max()),
        first_step=jnp.asarray(first, jnp.int32),
    )


class Own(NamedTuple):
    """State of a client of the eager engine."""

    start: Params
    model: Params
    steps: Array


def eager_favano(lr: float, p_active: float, made: Schedule) -> tuple[fs.FedAlgorithm, Callable]:
    """FAVANO in which all clients advance between contacts, and the weights of the uploads."""
    rounds, num_clients = made.flight.version.shape
    size = made.timeline.cohort_size
    reports = np.zeros((rounds, num_clients), bool)
    np.put_along_axis(reports, np.asarray(made.timeline.clients), True, axis=1)
    table = jnp.asarray(reports)

    def local(w, own: Own, oracle, work):
        restarts = (work.round > 0) & table[work.round - 1, work.client]
        start = fs.tree.where(restarts, w, own.start)
        model = fs.local.local_steps(
            fs.local.sgd(lr, oracle.grad), fs.tree.where(restarts, w, own.model), work
        )
        steps = work.num_steps + jnp.where(restarts, 0, own.steps)
        alpha = p_active * jnp.maximum(steps, 1).astype(jnp.result_type(float))
        upload = fs.tree.add_scale(start, 1 / alpha, fs.tree.sub(model, start))
        return upload, Own(start, model, steps)

    def update(state, mean, round):
        del round
        return ModelState(fs.tree.divide(fs.tree.add_scale(state.params, size, mean), size + 1))

    def weights(work: fs.Work) -> Array:
        return table[work.round, work.client].astype(jnp.result_type(float))

    zero = jnp.array(0, jnp.int32)
    return fs.FedAlgorithm(
        ModelState, local, update, init_client=lambda x: Own(x, x, zero)
    ), weights


def images(examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images, uint8 as those of MNIST."""
    rng = np.random.default_rng(0)
    shape = (CLIENTS * examples, PIXELS)
    return rng.integers(0, 256, shape, np.uint8), rng.integers(0, CLASSES, shape[0], np.int32)


def engine(candidate: str, num_contacts: int = CONTACTS, case: str = "engine") -> dict[str, float]:
    """Measures 100 contacts, after compilation."""
    made = schedule(CLIENTS, COHORT, num_contacts, MAX_STEPS)
    if candidate in TORCH:
        return torch_loop(made, TORCH[candidate])
    model, batch, examples, _ = CASES[case]
    x, y = images(examples)
    data = fs.FederatedData({"x": x, "y": y}, np.arange(CLIENTS + 1, dtype=np.int32) * examples)
    task = fs.empirical_task(
        fs.objectives.cross_entropy(model.apply), data, fs.stream(batch, MAX_STEPS)
    )
    if candidate.startswith("eager"):
        algorithm, weighting = eager_favano(LR, P_ACTIVE, made)
        timeline = eager_timeline(made)
    else:
        algorithm = fs.favano(LR, realised_steps(jnp.full(CLIENTS, P_ACTIVE)))
        weighting, timeline = fs.uniform_weights, made.timeline

    def train(task, timeline, params):
        setup = fs.Setup(task, timeline, params, weighting=weighting)
        state, _ = fs.run(algorithm, setup, jax.random.key(1), execution=EXECUTIONS[candidate]())
        return state.server.params

    arguments = task, timeline, model.init(jax.random.key(2))
    began = time.perf_counter()
    compiled = jax.jit(train).lower(*arguments).compile()
    compiling = time.perf_counter() - began
    seconds, params = timed(lambda: jax.block_until_ready(compiled(*arguments)))
    return {
        "seconds": seconds,
        "compile_seconds": compiling,
        "local_steps": float(timeline.num_steps.sum()),
        "norm": float(fs.tree.norm(params)),
    }


def timed(run: Callable) -> tuple[float, Params]:
    """Returns the time of the faster of two runs; the first one warms up."""
    seconds, result = [], None
    for _ in range(2):
        began = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - began)
    return min(seconds), result


def torch_loop(made: Schedule, threads: int | None) -> dict[str, float]:
    """PyTorch loop over clients and steps, which copies models in and out."""
    import torch  # pyright: ignore[reportMissingImports]

    from benchmarks.torch_loop import use_threads

    use_threads(threads)
    _, batch, examples, _ = CASES["engine"]
    pixels, labels = images(examples)
    x = torch.from_numpy(pixels).view(CLIENTS, examples, PIXELS)
    y = torch.from_numpy(labels).long().view(CLIENTS, examples)
    net = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    )
    params = list(net.parameters())
    optimizer = torch.optim.SGD(params, lr=LR, foreach=True)
    start = [p.detach().clone() for p in params]
    clients, steps = np.asarray(made.timeline.clients), np.asarray(made.timeline.num_steps)

    def run() -> list:
        server = [p.clone() for p in start]
        held = [server] * CLIENTS
        for chosen, counts in zip(clients, steps, strict=True):
            total = [p.clone() for p in server]
            for c, count in zip(chosen, counts, strict=True):
                with torch.no_grad():
                    for p, q in zip(params, held[c], strict=True):
                        p.copy_(q)
                order = torch.randperm(examples)
                for k in range(count):
                    rows = order[k * batch % examples :][:batch]
                    optimizer.zero_grad(set_to_none=True)
                    logits = net(x[c, rows].float() / 255)
                    torch.nn.functional.cross_entropy(logits, y[c, rows]).backward()
                    optimizer.step()
                with torch.no_grad():
                    alpha = P_ACTIVE * max(int(count), 1)
                    for t, p, q in zip(total, params, held[c], strict=True):
                        t += q + (p - q) / alpha
            server = [t / (len(chosen) + 1) for t in total]
            for c in chosen:
                held[c] = server
        return server

    seconds, _ = timed(run)
    return {"seconds": seconds, "local_steps": float(steps.sum())}


def clients(num_clients: int, num_contacts: int = 714) -> dict[str, float]:
    """Measures a whole run of 5,000 time units."""
    began = time.perf_counter()
    success = fs.timelines.two_speeds(
        jax.random.key(0), num_clients, 1 / 3, fast=1 / 2, slow=1 / 16
    )
    timeline = fs.timelines.contacts(
        jax.random.key(0), fs.timelines.renewal_counts(fs.timelines.geometric(success)),
        horizon=7.0 * num_contacts, num_clients=num_clients, cohort_size=COHORT,
        max_steps=MAX_STEPS,
    )  # fmt: skip
    scheduling = time.perf_counter() - began
    x = np.random.default_rng(0).standard_normal((num_clients * 10, 60), np.float32)
    data = fs.FederatedData(
        {"x": x, "y": (x[:, 0] > 0).astype(np.int32)},
        np.arange(num_clients + 1, dtype=np.int32) * 10,
    )
    model = fs.models.logistic_regression(60)
    task = fs.empirical_task(
        fs.objectives.binary_cross_entropy(model.apply), data, fs.stream(5, MAX_STEPS)
    )
    algorithm = fs.favano(LR, realised_steps(jnp.full(num_clients, P_ACTIVE)))

    def train(task, timeline, params):
        return fs.run(
            algorithm,
            fs.Setup(task, timeline, params),
            jax.random.key(1),
            execution=strategies.sequential(),
        )[0].server.params

    arguments = task, timeline, model.init(jax.random.key(2))
    compiled = jax.jit(train).lower(*arguments).compile()
    seconds, _ = timed(lambda: jax.block_until_ready(compiled(*arguments)))
    return {
        "seconds": seconds / num_contacts,
        "schedule_seconds": scheduling / num_contacts,
        "places": timeline.num_buffers,
        "max_staleness": timeline.max_staleness,
        "data_mb": round(x.nbytes / 1e6, 1),
        "peak_rss_mb": peak_mb(),
    }


def jobs(options: Options) -> list[Job]:
    """Returns a job per engine and per number of clients; ignores the other parts' workloads."""
    names = options.chosen(ENGINE)
    engines = [
        Job(case, name, "benchmarks.asynchrony", {"candidate": name, "case": case})
        for case in CASES
        for name in names
        if case == "engine" or name in EXECUTIONS
    ]
    if options.candidates:
        return engines
    return engines + [
        Job("clients", f"{n:,}", "benchmarks.asynchrony", {"num_clients": n}) for n in NUM_CLIENTS
    ]


def measure(
    candidate: str | None = None, num_clients: int | None = None, case: str = "engine"
) -> dict[str, float]:
    """Runs in a process of its own."""
    if num_clients is not None:
        return clients(num_clients)
    assert candidate is not None
    if candidate == "ours=devices":
        devices.use_all_cores()
    return engine(candidate, case=case)


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the engines with the floor of the reported products, and the numbers of clients."""
    found = []
    for name, rows in results.items():
        if name == "clients":
            title = "FAVANO on logistic regression, 20 clients a contact, 714 contacts"
            found.append(Case(name, title, "a server step", rows, ours=""))
            continue
        steps = next(iter(rows.values()))["local_steps"]
        least = floor(machine, steps * CASES[name].batch * CASES[name].flops, 0)
        what = "the setting of its Table 2" if name == "engine" else "softmax regression"
        title = f"FAVANO on {what}: 100 contacts"
        found.append(Case(name, title, "100 contacts", rows, "ours", least, local_steps=steps))
    return found
