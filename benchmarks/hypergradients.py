"""Part ``hypergradients``: memory and time of derivatives through a run, against its rounds.

FedAvg with one rate per round on a network of 12,730 parameters; 10 clients take 5 steps per round
on 20 examples each.  The candidates are the ways to differentiate: ``none`` stores the residuals of
all local steps, ``one`` a state per round, ``sqrt`` and ``log`` fewer states; ``forward`` takes two
rates only, since its cost grows with their number.  ``run`` is the run alone.  ``program_mb`` are
the bytes of results and temporaries that XLA reports.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Measured, Options, Results, peak_mb
from benchmarks.report import Case
from fedjax_sim.engine import program_bytes

ROUNDS = (16, 64, 256)
POLICIES: dict[str, Any] = {"none": None, "one": 1, "sqrt": "sqrt", "log": "log"}
OURS, FORWARD, RUN = "sqrt", "forward", "run"
CANDIDATES = (RUN, *POLICIES, FORWARD)
CLIENTS, EXAMPLES, BATCH, FEATURES, HIDDEN = 10, 100, 20, 784, 16


def jobs(options: Options) -> list[Job]:
    """Returns a job per number of rounds and way to differentiate."""
    names = options.chosen(CANDIDATES)
    return [
        Job(str(rounds), name, "benchmarks.hypergradients", {"rounds": rounds, "candidate": name})
        for rounds in ROUNDS
        for name in names
    ]


def measure(rounds: int, candidate: str, repeats: int = 3) -> Measured:
    """Differentiates a run, in a process of its own."""
    setup, loss = problem(rounds)
    key = jax.random.key(0)
    if candidate == FORWARD:
        hyper: Any = {"first": jnp.array(0.1), "second": jnp.array(0.05)}
        function = fs.hypergradient(loss, _two_rates(rounds), setup, key, mode="forward")
    else:
        hyper, policy = jnp.full(rounds, 0.1), POLICIES.get(candidate)
        function = fs.hypergradient(
            loss, _rate_per_round, setup, key, mode="reverse", checkpoint=policy
        )
    if candidate == RUN:
        run = jax.jit(lambda h, s: fs.run(_rate_per_round(h), s, key)[0].server.params)
        began = time.perf_counter()
        compiled = run.lower(hyper, setup).compile()
        compiling = time.perf_counter() - began
        size, one_call = program_bytes(compiled, arguments=False), lambda: compiled(hyper, setup)
    else:
        forecast = function.forecast(hyper)
        compiling, one_call = forecast.seconds.compile, lambda: function(hyper)
        size = sum(forecast.parts.values()) - forecast.parts["examples"]
    times = []
    jax.block_until_ready(one_call())
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(one_call())
        times.append(time.perf_counter() - began)
    return {
        "seconds": statistics.median(times),
        "program_mb": round(size / 1e6, 2),
        "peak_rss_mb": peak_mb(),
        "compile_seconds": compiling,
    }


def problem(rounds: int) -> tuple[fs.Setup, Any]:
    """Returns the setup, and the validation loss as a function of the model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=((CLIENTS + 1) * EXAMPLES, FEATURES)).astype(np.float32)
    y = rng.integers(0, 10, len(x)).astype(np.int32)
    model = fs.models.mlp((FEATURES,), (HIDDEN,), 10)
    losses = fs.objectives.cross_entropy(model.apply)
    offsets = np.arange(CLIENTS + 1, dtype=np.int32) * EXAMPLES
    data = fs.FederatedData({"x": x[: offsets[-1]], "y": y[: offsets[-1]]}, offsets)
    task = fs.empirical_task(losses, data, fs.epochs(1, BATCH))
    held_out = {"x": jnp.asarray(x[offsets[-1] :]), "y": jnp.asarray(y[offsets[-1] :])}
    loss = jax.tree_util.Partial(lambda held_out, w: losses(w, held_out, None).mean(), held_out)
    timeline = fs.timelines.full(rounds, CLIENTS, task.num_steps)
    return fs.Setup(task, timeline, model.init(jax.random.key(1)), eval_every=rounds), loss


def _rate_per_round(rates: jax.Array) -> fs.FedAlgorithm:
    return fs.fedavg(lambda t: rates[t])


def _two_rates(rounds: int) -> Callable[[Any], fs.FedAlgorithm]:
    def algorithm(h: Any) -> fs.FedAlgorithm:
        return fs.fedavg(lambda t: jnp.where(t < rounds // 2, h["first"], h["second"]))

    return algorithm


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns a table per number of rounds, without a floor.

    ``forward`` and ``run`` do less than the others: derivatives of two rates, and none.
    """
    del machine
    return [
        Case(
            name=rounds,
            title=f"Derivatives through {rounds} rounds",
            unit="a gradient",
            rows=rows,
            ours=OURS,
            same_work=tuple(POLICIES),
        )
        for rounds, rows in results.items()
    ]
