r"""From a thousand clients to a million: a round's time, memory, and what is learnt.

    python -m experiments.million_clients
    python -m experiments.million_clients --clients 1000 1000000 --algorithms scaffold --seeds 1

Logistic regression by FedAvg and SCAFFOLD on M clients of 10 examples of 60 features, 1,000 clients
a round.  Clients differ in what they have and in how they label it: with u, v_i, z standard normal
and a label of 1 where ``x @ w_i`` plus logistic noise is positive,

    x = v_i / 2 + z,    w_i = 3 u / |u| + h v_i' / sqrt(60),    v_i' standard normal.

A client's examples depend on its number alone, so populations contain each other, and what fresh
clients lose is the same measure for all.  Data and control variates lie by client on all devices;
examples are made stratum by stratum, as a program would read them that has no room for a second
copy.  Every case runs in a process of its own, whose peak of memory is the case's.
"""

import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import pathlib
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.output import write
from fedjax_sim import models, objectives
from fedjax_sim.analysis.intervals import mean_interval
from fedjax_sim.analysis.tables import markdown
from fedjax_sim.cli import report
from fedjax_sim.data.source import ClientSource
from fedjax_sim.evaluation import evaluator
from fedjax_sim.execution.devices import use_all_cores
from fedjax_sim.execution.placement import by_client

FEATURES, EXAMPLES, COHORT, STRATA = 60, 10, 1000, 8
EPOCHS, BATCH_SIZE = 5, 5
LR, HETEROGENEITY, NORM = 0.1, 3.0, 3.0
BLOCK = 1000  # clients that are made at a time
FRESH = 10_000  # clients that are in no population
TARGET_SECONDS, TARGET_GB = 0.1, 8.0  # a round; the process
ALGORITHMS = {"fedavg": fs.fedavg, "scaffold": fs.scaffold}


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    clients: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    rounds: int = 500
    cohort: int = COHORT
    seeds: int = 3
    work: pathlib.Path = pathlib.Path("results/million_clients")  # finished cases, to continue from
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        for name in ("rounds", "seeds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.cohort < 1 or self.cohort % STRATA:
            raise ValueError(
                f"cohort is {self.cohort}; expected a multiple of {STRATA}, the strata"
            )
        if not self.clients or min(self.clients) < self.cohort:
            raise ValueError(
                f"clients is {self.clients}; expected at least the {self.cohort} of a round"
            )
        unknown = set(self.algorithms) - set(ALGORITHMS)
        if unknown or not self.algorithms:
            raise ValueError(
                f"algorithms is {self.algorithms}; expected some of {', '.join(ALGORITHMS)}"
            )


@functools.lru_cache(maxsize=4)
def block(number: int) -> dict[str, np.ndarray]:
    """The examples of the clients ``BLOCK number .. BLOCK (number + 1) - 1``, ``[BLOCK, 10]``."""
    direction = np.random.default_rng(0).standard_normal(FEATURES, np.float32)
    rng = np.random.default_rng([1, number])
    means, own = rng.standard_normal((2, BLOCK, 1, FEATURES), np.float32)
    planes = NORM * direction / np.linalg.norm(direction) + HETEROGENEITY * own / FEATURES**0.5
    x = means / 2 + rng.standard_normal((BLOCK, EXAMPLES, FEATURES), np.float32)
    noise = rng.logistic(size=(BLOCK, EXAMPLES))
    return {"x": x, "y": (np.sum(x * planes, -1) + noise > 0).astype(np.float32)}


def load(start: int, stop: int) -> dict[str, np.ndarray]:
    """The examples of some clients, concatenated: ``x`` ``[10 n, 60]``, ``y`` ``[10 n]``."""
    x = np.empty((stop - start, EXAMPLES, FEATURES), np.float32)
    y = np.empty((stop - start, EXAMPLES), np.float32)
    for number in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = max(start, number * BLOCK), min(stop, (number + 1) * BLOCK)
        part = slice(first - number * BLOCK, last - number * BLOCK)
        here = slice(first - start, last - start)
        x[here], y[here] = block(number)["x"][part], block(number)["y"][part]
    return {"x": x.reshape(-1, FEATURES), "y": y.reshape(-1)}


def case(algorithm: str, clients: int, rounds: int, cohort: int, seeds: int) -> dict[str, Any]:
    """Trains on a population; runs in a process of its own.

    Returns:
        seconds a round and of compilation, GB at the peak, by seed the mean loss of the
        population's and of fresh clients.
    """
    use_all_cores()
    model = models.logistic_regression(FEATURES)
    loss = objectives.binary_cross_entropy(model.apply)
    where = by_client(clients, num_strata=STRATA)
    source = ClientSource(np.full(clients, EXAMPLES), load)
    task = fs.empirical_task(loss, source, fs.epochs(EPOCHS, BATCH_SIZE), placement=where)
    jax.block_until_ready(task)
    made = peak()
    runs = []
    for seed in range(seeds):
        keys = jax.random.split(jax.random.key(seed), 3)
        timeline = fs.timelines.stratified(
            keys[0], rounds, clients, cohort, task.num_steps, num_strata=STRATA
        )
        params = model.init(keys[1])
        runs.append(fs.simulate(ALGORITHMS[algorithm](LR), task, timeline, params, keys[2]))
    trained = peak()
    del task  # the populations' loss is taken block by block
    servers = [run.state.server.params for run in runs]
    beyond = max(1_000_000, clients)
    return {
        "seconds": [run.run_seconds / rounds for run in runs],
        "compile_seconds": [run.compile_seconds for run in runs],
        "data_gb": made,
        "peak_gb": trained,
        "train/loss": mean_losses(loss, servers, 0, clients),
        "test/loss": mean_losses(loss, servers, beyond, beyond + FRESH),
        "devices": len(where.mesh.devices),
        "device": jax.devices()[0].device_kind,
    }


def mean_losses(loss: Any, servers: list[Any], start: int, stop: int) -> list[float]:
    """The loss of some clients' examples under each model."""
    together = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *servers)
    metrics = lambda params, examples: {"loss": loss(params, examples, None)}  # noqa: E731
    total = np.zeros(len(servers))
    for first in range(start, stop, 10 * BLOCK):
        last = min(first + 10 * BLOCK, stop)
        found = jax.vmap(evaluator(metrics, load(first, last)))(together)["loss"]
        total += np.asarray(found, np.float64) * (last - first)
    return (total / (stop - start)).tolist()


def peak() -> float:
    """GB at most so far: of the device if it says so, of the process otherwise."""
    device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    unit = 1 if sys.platform == "darwin" else 1024
    return (device or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 1e9


def measured(options: Options, algorithm: str, clients: int) -> dict[str, Any]:
    """A case's numbers, from an earlier call if there was one."""
    setting = {"algorithm": algorithm, "clients": clients, "rounds": options.rounds}
    setting |= {"cohort": options.cohort, "seeds": options.seeds}
    file = options.work / ("-".join(str(value) for value in setting.values()) + ".json")
    if file.exists():
        return json.loads(file.read_text())
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        found = setting | pool.submit(case, **setting).result()
    file.parent.mkdir(parents=True, exist_ok=True)
    report.write_json(file, found)
    print(found, flush=True)
    return found


def rows(cases: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per case, with intervals over its seeds."""
    found = []
    for c in cases:
        row = {"algorithm": c["algorithm"], "clients": c["clients"]}
        row |= {"ms a round": 1e3 * min(c["seconds"]), "peak GB": c["peak_gb"]}
        row |= {"data, analytic GB": 4e-9 * c["clients"] * EXAMPLES * (FEATURES + 1)}
        for name in ("train/loss", "test/loss"):
            mean, low, high = mean_interval(c[name])
            row |= {name: mean, f"{name} +-": (high - low) / 2}
        found.append(row)
    return pd.DataFrame(found)


def figure(table: pd.DataFrame) -> Figure:
    """Time, memory and losses against the number of clients."""
    drawn = Figure(figsize=(12, 3.6), layout="constrained")
    time, memory, losses = drawn.subplots(1, 3)
    for algorithm, part in table.groupby("algorithm", sort=False):
        clients = part["clients"]
        (line,) = time.plot(clients, part["ms a round"], "o-", label=str(algorithm))
        memory.plot(clients, part["peak GB"], "o-", label=str(algorithm))
        for name, style in (("test/loss", "o-"), ("train/loss", "o:")):
            whose = "fresh clients" if name == "test/loss" else "the population"
            losses.errorbar(
                clients, part[name], part[f"{name} +-"], fmt=style, color=line.get_color(),
                label=f"{algorithm}, {whose}", capsize=2,
            )  # fmt: skip
    first = table[table["algorithm"] == table["algorithm"].iloc[0]]
    memory.plot(first["clients"], first["data, analytic GB"], "k--", label="data")
    time.axhline(1e3 * TARGET_SECONDS, color="grey", lw=1, label="target")
    memory.axhline(TARGET_GB, color="grey", lw=1, label="target")
    for axes, label in ((time, "ms a round"), (memory, "GB at the peak"), (losses, "final loss")):
        axes.set(xscale="log", xlabel="clients M", ylabel=label)
        axes.legend(fontsize="small")
    time.set_yscale("log")
    memory.set_yscale("log")
    return drawn


def main(options: Options) -> None:
    """Runs all cases, prints and writes the table and the figure."""
    cases = [
        measured(options, algorithm, clients)
        for algorithm in options.algorithms
        for clients in options.clients
    ]
    table = rows(cases)
    most = max(options.clients)
    largest = [c for c in cases if c["clients"] == most]
    slow, big = max(min(c["seconds"]) for c in largest), max(c["peak_gb"] for c in largest)
    text = "\n\n".join(
        [
            "# A thousand to a million clients",
            f"Logistic regression, {EXAMPLES} examples of {FEATURES} features a client, "
            f"{options.cohort} clients a round ({STRATA} strata), {EPOCHS} epochs of batches of "
            f"{BATCH_SIZE}, rate {LR:g}, {options.rounds} rounds, {options.seeds} seeds; "
            f"{cases[0]['devices']} x {cases[0]['device']}. Time: the quickest seed; losses with "
            "95 % intervals, of the population's clients and of fresh ones.",
            markdown(table),
            f"At {most:,} clients: {slow:.3g} s a round (target "
            f"{TARGET_SECONDS:g}), {big:.3g} GB (target {TARGET_GB:g}).",
        ]
    )
    print(text, flush=True)
    folder = options.output / "million_clients"
    write(folder, "million_clients", table, text, cases=cases)
    figure(table).savefig(folder / "million_clients.png", dpi=90)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
