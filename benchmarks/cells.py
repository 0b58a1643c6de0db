"""Part ``cells``: the cell of a plot of accelerated local SGD, thousands of tiny clients.

Logistic regression with l2 regularisation 1e-3 on data of a9a's shape (32,561 x 123, 14 features of
a row are 1, synthetic); M clients who all draw from all rows, with replacement, one row a step;
64 local steps a round, 4,096 steps; FedAvg with 13 learning rates.

``sweep`` is the 13 rates as one :func:`fedjax_sim.sweep`, ``run`` one rate with
:func:`fedjax_sim.run`; ``numpy`` is a NumPy loop, for 13 rates one after the other.  Where a part
of the 64 rounds is measured it is counted for all, being the same work (16 of M = 8192, 8 of
``numpy``, and one rate for all 13).  Seconds are without compilation.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.floors import Machine, floor
from benchmarks.jobs import Job, Options, Results
from benchmarks.report import Case

if TYPE_CHECKING:
    from benchmarks.sweep import Training

ROWS, FEATURES, ONES = 32_561, 123, 14
L2 = 1e-3
LOCAL_STEPS, ROUNDS = 64, 64
RATES = np.geomspace(1e-3, 1.0, 13).tolist()
# By M; many, so that what a call costs once (placing arguments, waking threads) does not count.
MEASURED_ROUNDS = {64: 64, 1024: 64, 8192: 16}
MEASURED_NUMPY_ROUNDS = 8
CANDIDATES = ("sweep", "run", "numpy")


def jobs(options: Options) -> list[Job]:
    """A job per number of clients and candidate."""
    return [
        Job(
            f"M={clients}",
            name,
            "benchmarks.cells",
            {"candidate": name, "clients": clients, "rounds": rounds},
        )
        for clients, rounds in MEASURED_ROUNDS.items()
        for name in options.chosen(CANDIDATES)
    ]


def measure(candidate: str, clients: int, rounds: int) -> dict[str, float]:
    """Runs in the candidate's own process."""
    x, y = make_data()
    if candidate == "numpy":
        rng = np.random.default_rng(1)
        began = time.perf_counter()
        numpy_cell(
            x, y, RATES[6], clients, LOCAL_STEPS, MEASURED_NUMPY_ROUNDS,
            lambda round, step: rng.integers(ROWS, size=clients),
        )  # fmt: skip
        each = (time.perf_counter() - began) / MEASURED_NUMPY_ROUNDS
        return {"seconds": ROUNDS * each}
    from fedjax_sim.engine import use_all_cores

    use_all_cores()
    run = sweep_cell if candidate == "sweep" else single_cell
    _, seconds, compile_seconds = run(x, y, clients, rounds)
    return {"seconds": ROUNDS / rounds * seconds, "compile_seconds": compile_seconds}


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """x float32 ``[n, d]`` of zeros and ones, y float32 ``[n]`` by a noisy plane."""
    rng = np.random.default_rng(0)
    columns = rng.random((ROWS, FEATURES), np.float32).argpartition(ONES, axis=1)[:, :ONES]
    x = np.zeros((ROWS, FEATURES), np.float32)
    np.put_along_axis(x, columns, 1, axis=1)
    margin = x @ rng.normal(size=FEATURES) + rng.normal(size=ROWS)
    return x, (margin > 0).astype(np.float32)


def numpy_cell(
    x: np.ndarray,
    y: np.ndarray,
    lr: float,
    clients: int,
    local_steps: int,
    rounds: int,
    draw: Callable[[int, int], np.ndarray],
) -> np.ndarray:
    """FedAvg in NumPy; ``draw(round, step)`` gives each client's row ``[M]``."""
    lr, l2 = x.dtype.type(lr), x.dtype.type(L2)
    server = np.zeros(x.shape[1], x.dtype)
    for t in range(rounds):
        w = np.tile(server, (clients, 1))
        for k in range(local_steps):
            rows = draw(t, k)
            xb, yb = x[rows], y[rows]
            z = np.einsum("md,md->m", w, xb)
            residual = 1 / (1 + np.exp(-z)) - yb
            w -= lr * (residual[:, None] * xb + l2 * w)
        server = w.mean(axis=0)
    return server


def training(x: np.ndarray, y: np.ndarray, clients: int, rounds: int) -> "Training":
    """The runs of a cell, of one seed."""
    import jax
    import jax.numpy as jnp

    import fedjax_sim as fs
    from benchmarks.sweep import Training

    def losses(w, batch, key):
        del key
        z = w @ batch["x"].T  # the models first, as in fedjax_sim.models.dense
        return jax.nn.softplus(z) - batch["y"] * z

    def regularised(oracle, anchor):
        del anchor
        return fs.transforms.add_decayed_weights(oracle, L2)

    task = fs.shared_task(
        losses, {"x": x, "y": y}, clients, fs.with_replacement(1, num_steps=LOCAL_STEPS)
    )
    setup = fs.Setup(
        task=task,
        timeline=fs.timelines.full(rounds, clients, task.num_steps),
        params=jnp.zeros((1, x.shape[1]), x.dtype),
        eval_fn=lambda w: {"model": w},
        eval_every=rounds,
    )
    keys = jax.random.split(jax.random.key(1), 1)
    return Training(lambda lr: fs.fedavg(lr, anchored=regularised), setup, keys)


def sweep_cell(
    x: np.ndarray, y: np.ndarray, clients: int, rounds: int
) -> tuple[np.ndarray, float, float]:
    """Models of all learning rates ``[13, d]``, seconds to run and to compile."""
    import fedjax_sim as fs

    factory, setup, keys = training(x, y, clients, rounds)
    began = time.perf_counter()
    result = fs.sweep(factory, setup, {"lr": RATES}, keys)
    seconds = time.perf_counter() - began - result.compile_seconds
    models = np.stack([run.history.metrics["model"][-1] for run in result.runs])
    return models, seconds, result.compile_seconds


def single_cell(
    x: np.ndarray, y: np.ndarray, clients: int, rounds: int
) -> tuple[np.ndarray, float, float]:
    """The model of one learning rate ``[d]``, seconds to run and to compile."""
    import jax

    import fedjax_sim as fs
    from benchmarks.candidates import placed

    factory, setup, keys = training(x, y, clients, rounds)

    def one(task, timeline, params, key, lr):
        state, _ = fs.run(factory(lr), fs.Setup(task, timeline, params), key)
        return state.server.params

    arguments = (setup.timeline, setup.params[0], keys[0], RATES[6])
    began = time.perf_counter()
    call, task = placed(one, setup.task, *arguments)
    compile_seconds = time.perf_counter() - began
    jax.block_until_ready(call(task, *arguments))
    began = time.perf_counter()
    model = np.asarray(call(task, *arguments))
    return model, time.perf_counter() - began, compile_seconds


def cases(results: Results, machine: Machine) -> list[Case]:
    """For each M the sweep and the single run, beside NumPy."""
    found = []
    for name, rows in results.items():
        steps = int(name.removeprefix("M=")) * LOCAL_STEPS * ROUNDS
        numpy = rows.get("numpy")
        for ours, count in (("sweep", len(RATES)), ("run", 1)):
            if ours not in rows:
                continue
            beside = {ours: rows[ours]}
            if numpy is not None:
                beside["numpy"] = {key: count * value for key, value in numpy.items()}
            # A step: x'w, x * residual, and w - lr * g with the regularisation.
            flops = 6 * FEATURES * steps * count
            found.append(
                Case(
                    name=f"{name} {ours}",
                    title=f"{name}: {'one run' if count == 1 else f'{count} learning rates'}",
                    unit="a cell",
                    rows=beside,
                    ours=ours,
                    floor=floor(machine, flops, 4 * (FEATURES + 1) * steps),
                    local_steps=count * steps,
                )
            )
    return found
