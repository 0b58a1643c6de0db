"""Part ``evaluation``: cost per example of an evaluation beside that of a training step.

One process per model takes turns between a round of FedAvg and an evaluation, as in part
``methods``.  ``seconds`` are per example and model; ``ratio`` is the median quotient to training,
``cpu_ratio`` that of CPU times, which other processes disturb less.  ``evaluation`` evaluates one
model; ``evaluation-seeds`` three models, vmapped as a run with three seeds does for dense models;
``evaluation-1000`` one model in batches of 1,000.  The floor is the arithmetic of the forward
pass, its products and convolutions without the form that computes them, at the rate of a matrix
product.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_sim as fs
from benchmarks.floors import Machine
from benchmarks.jobs import Job, Measured, Options, Results
from benchmarks.methods import Timed, in_turns
from benchmarks.products import products
from benchmarks.report import Case
from fedjax_sim.engine import evaluator
from fedjax_sim.models import Convolution

TRAINING, SEEDS = "training", 3
ASPIRED = 0.5  # times a training step's cost per example


class Subject(NamedTuple):
    """A model and its examples."""

    build: Callable[[Convolution], fs.models.Model]
    shape: tuple[int, ...]  # of one example
    batch: int  # of a training step
    examples: int  # evaluated; as many are trained on


SUBJECTS = {
    "lenet5": Subject(lambda conv: fs.models.lenet5(conv=conv), (32, 32, 3), 50, 2000),
    "femnist_cnn": Subject(lambda conv: fs.models.femnist_cnn(conv=conv), (28, 28, 1), 20, 200),
    "mlp": Subject(lambda _: fs.models.mlp((28, 28, 1), (200, 200), 10), (28, 28, 1), 20, 10_000),
    "resnet": Subject(
        lambda conv: fs.models.resnet(10, channels=(8, 16, 32), blocks=(1, 1, 1), conv=conv),
        (32, 32, 3),
        20,
        200,
    ),
}
CANDIDATES = (TRAINING, "evaluation", "evaluation-seeds", "evaluation-1000")


def jobs(options: Options) -> list[Job]:
    """Returns a job per model; the workloads of the other parts do not matter."""
    names = options.chosen(CANDIDATES)
    arguments = {"names": names, "seconds": options.seconds}
    return [
        Job(subject, "evaluation", "benchmarks.evaluation", {"subject": subject} | arguments)
        for subject in (SUBJECTS if names else ())
    ]


def measure(subject: str, names: list[str], seconds: float) -> Measured:
    """Runs in a process of its own; ``seconds`` counts the calls of one candidate."""
    fs.execution.use_all_cores()
    build, shape, batch, count = SUBJECTS[subject]
    model = build(fs.models.auto)
    rng = np.random.default_rng(0)
    examples = {
        "x": rng.integers(0, 256, (count, *shape)).astype(np.uint8),
        "y": rng.integers(0, 10, count).astype(np.int32),
    }
    params = model.init(jax.random.key(0))
    metrics = fs.objectives.classification_metrics(model.apply)
    together = jax.tree.map(lambda x: jnp.stack([x] * SEEDS), params)
    evaluate = evaluator(metrics, examples)
    vmapped = jax.jit(lambda evaluate, params: jax.vmap(evaluate)(params))
    calls = {
        TRAINING: _training(model, examples, params, batch),
        "evaluation": _timed(jax.jit(lambda f, x: f(x)), evaluate, params, count),
        "evaluation-seeds": _timed(vmapped, evaluate, together, SEEDS * count),
        "evaluation-1000": _timed(
            jax.jit(lambda f, x: f(x)), evaluator(metrics, examples, 1000), params, count
        ),
    }
    kept = {name: call for name, call in calls.items() if name in (TRAINING, *names)}
    flops = forward_flops(subject)
    return in_turns(kept, seconds, rounds=1, baseline=TRAINING) | {"evaluation:flops": flops}


def forward_flops(subject: str) -> float:
    """Returns the arithmetic of the products of one example's forward pass, multiply-add = 2."""
    build, shape, *_ = SUBJECTS[subject]
    model = build(lax.conv_general_dilated)
    params = jax.eval_shape(model.init, jax.random.key(0))
    return sum(p.flops for p in products(model.apply, params, jnp.zeros((1, *shape))))


def _training(model: fs.models.Model, examples: dict, params: Any, batch: int) -> Timed:
    """Returns a round of FedAvg: ten clients (or fewer) with one epoch each."""
    count = len(examples["y"])
    clients = min(10, count // batch)
    data = fs.FederatedData(examples, np.linspace(0, count, clients + 1).astype(np.int32))
    loss = fs.objectives.cross_entropy(model.apply)
    task = fs.empirical_task(loss, data, fs.epochs(1, batch))
    setup = fs.Setup(task, fs.timelines.full(1, clients, task.num_steps), params)
    keys = itertools.count()

    @jax.jit
    def round(setup: fs.Setup, seed: jax.Array) -> Any:
        return fs.run(fs.fedavg(0.01), setup, jax.random.key(seed))[0].server.params

    return _timed(lambda setup, _: round(setup, next(keys)), setup, None, count)


def _timed(call: Callable[[Any, Any], Any], first: Any, second: Any, examples: int) -> Timed:
    """Returns a function of seconds and CPU seconds per example of a call, already compiled."""

    def timed() -> tuple[float, float]:
        began = time.perf_counter(), time.process_time()
        jax.block_until_ready(call(first, second))
        ended = time.perf_counter(), time.process_time()
        return (ended[0] - began[0]) / examples, (ended[1] - began[1]) / examples

    timed()
    return timed


def cases(results: Results, machine: Machine) -> list[Case]:
    """Returns the models, with the forward pass as the floor."""

    def case(name: str, flat: Measured) -> Case:
        rows: dict[str, Measured] = {}
        for key, value in flat.items():
            candidate, _, quantity = key.partition(":")
            rows.setdefault(candidate, {})[quantity] = value
        flops = rows["evaluation"].pop("flops")
        return Case(
            name=name,
            title=f"{name}, per example",
            unit="an example",
            rows={candidate: row for candidate, row in rows.items() if "seconds" in row},
            ours="",
            floor=flops / machine.flops,
            baseline=TRAINING,
            limits={"evaluation": ASPIRED, "evaluation-seeds": ASPIRED},
        )

    return [case(name, rows["evaluation"]) for name, rows in results.items()]
